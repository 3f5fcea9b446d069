/* The operations of a compiled network, for one image.
 *
 * A plan (an array of `struct op`) says what to run in which order, on which bytes of an arena, with which constants;
 * nothing here is specific to a model. The same file serves a server, where it is built once for the machine and once
 * more for each network, with the forms of its layers as constants, and a device, as part of one exported C file.
 *
 * Layout. An image is cut into LANES equal regions, and lane l of every vector holds region l. A channel is a plane of
 * rows x cols vectors with a halo around it, so that every tap of every convolution is an aligned load of a whole
 * vector: `in[y + dy][x + dx]`, whatever the image's size. Sparse weights then need no gathering of pixels: a weight
 * that is not zero is an offset and a value, and costs one multiply-add per vector of the tile held in registers.
 */
#include <stddef.h>
#include <stdint.h>
#ifdef __SSE__
#include <immintrin.h>
#endif

#ifndef LANES
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#endif

#if LANES == 16 && defined(__AVX512F__) || LANES == 8 && defined(__AVX2__)
#define WIDE 1 /* with the instructions that such vectors come with */
#else
#define WIDE 0
#endif

#define VECTOR ((int)sizeof(vec)) /* bytes */

/* One native register: compilers lower wider vectors badly. The cells of an arena may alias anything. */
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef vec cell __attribute__((may_alias));
typedef ivec icell __attribute__((may_alias));

#define INLINE static inline __attribute__((always_inline, unused))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Kernels that a WebAssembly template can leave out one by one stay functions of their own. */
#ifdef __wasm__
#define SEPARATE static __attribute__((noinline))
#else
#define SEPARATE static
#endif

#define EACH(i, n) UNROLL for (int i = 0; i < (n); i++)

/* Keeps a number in one register: compilers like to compute or load it again in the innermost loop. */
#define OPAQUE(p) __asm__("" : "+r"(p))

/* ------------------------------------------------------------------------------------------------ the plan */

enum { ABSENT = -1, INPUT = -2, OUTPUT = -3 }; /* an operand that is not in the arena */

/* Channels of an image: bytes to the first pixel, from one channel to the next, from one row to the next. */
struct planes {
    int64_t at;
    int32_t pitch, row;
};

enum activation { NONE, RELU, CLAMP, SIGMOID, SILU, HARDSIGMOID, HARDSWISH };

struct activate {
    int32_t kind;
    float low, high; /* of CLAMP */
};

/* A weight that is not zero: where the pixel it multiplies lies, relative to the tile's corner, and its value. The
 * offset is in bytes, or in vectors (for features: in floats) when weights are stored in 16 or 8 bits. */
#ifndef WEIGHT_BITS
#define WEIGHT_BITS 32
#endif
#if WEIGHT_BITS == 32
struct entry {
    uint32_t offset;
    float value;
};

/* Four of a channel's weights: read together they take fewer of the loads that the pixels need. As many of a group's
 * weights as possible come so, four of each member after the other. */
struct four {
    uint32_t offset[4];
    float value[4];
};
#elif WEIGHT_BITS == 16
struct entry {
    uint16_t offset, value;
};
#else
struct entry {
    uint16_t offset;
    int8_t value; /* in units of the channel's `step` */
} __attribute__((packed));
#endif

/* Whose channels threads divide: nobody's, those of the tiles that are too few for all of them, or all tiles'. */
enum sharing { NO_CHANNELS, OF_FEW_TILES, OF_ALL_TILES };

struct conv {
    struct planes in, out, residual, tail;
    int64_t entries;                /* struct entry, in the order in which they are walked, or struct four */
    int64_t starts;                 /* int32: where each (block, group) starts in entries, in steps of `together` */
    int64_t bases;                  /* int32: where each block's first channel lies, in bytes */
    int64_t order;                  /* int32: the output channel of each (block, group, member), if they are several */
    int64_t parts;                  /* int32: the first group of each thread, when threads share the channels */
    int64_t bias, step;             /* float per output channel; step: what 8-bit weights are counted in */
    int64_t scale, shift;           /* float per output channel, of the tail */
    int64_t mask;                   /* ivec per pixel vector, if the regions are larger than the image */
    int64_t scratch;                /* in the arena: partial sums between blocks of input channels */
    int64_t box, tail_box;          /* in the arena: struct borders' box of the output and of the tail, or ABSENT */
    int32_t rows, cols;             /* of the output's region */
    int32_t channels;               /* of the output */
    int32_t groups, blocks;         /* of output channels; of input channels */
    int32_t together, down, across; /* the tile: output channels, rows and columns held in registers */
    int32_t stride_rows, stride_cols;
    int32_t share_channels; /* enum sharing: whose output channels threads divide, instead of tiles */
    int32_t followers;      /* convolutions after this one that are computed with it, band by band */
    int32_t band;           /* rows at a time, if there are any */
    int32_t prefetch;       /* whether the output is too large to be in the cache */
    int32_t downwards;      /* whether a tile shares most of its input with the one below, not with the one beside */
    int32_t kernel;         /* the number of the one for layers of this form, or 0: one for any layer */
    int32_t fills_boxes;    /* whether that kernel fills the boxes, if there are any, and clears the padding */
    struct activate act, tail_act;
};

/* Copies, through a table of positions (or without one: as they are), `count` floats of each channel. `runs` are the
 * vectors from which LANES of them hold, in every lane, floats that follow each other. */
struct gather {
    int64_t from, to, table, runs; /* table: int32, -1 for `fill`; runs: int32, LANES or more apart */
    int32_t channels, count, from_pitch, to_pitch, run_count;
    int32_t tables; /* one after the other, if every thread's share of the image has its own (and no runs) */
    float fill;
};

/* The neighbours' lanes, if regions lie in two rows of four. */
enum shift { ANY_SHIFT, ABOVE, BELOW, LEFT, RIGHT };

/* A row or a column of the halo: what the neighbour there holds moves from cell to cell and, in the vector, from lane
 * to lane; lanes whose neighbour is outside the image get the padding's zero. */
struct side {
    int32_t to, from, step, cells; /* bytes from the first pixel; from cell to cell; how many */
    int32_t shift, unused[11]; /* to 64 bytes */
    ivec lanes, mask;
};

/* Fills the halo. Rows come first: the corners are then in the halo of the neighbours at the left and right. */
struct halo {
    struct planes image;
    int64_t sides;                      /* struct side: the rows above and below, the columns left and right */
    int32_t above, below, left, right;  /* how many */
    int32_t borrows_above, borrows_below; /* rows that are no sides: other threads' shares of the image, or padding */
    int32_t channels;
    int32_t kernel; /* the number of the one for these sides, or 0: one for any */
};

/* A halo of one cell at most, on the sides that have cells, and of what is borrowed. */
struct edges {
    struct side above, below, left, right;
    int32_t borrows_above, borrows_below;
};

struct pool {
    struct planes in, out;
    int64_t weights, mask; /* an average's weights: one vector per pixel vector, or ABSENT for `scale` */
    int32_t channels, rows, cols;
    int32_t kernel_rows, kernel_cols, stride_rows, stride_cols;
    int32_t maximum;
    float scale;
};

struct mean {
    struct planes in;
    int64_t out;
    int32_t channels, rows, cols;
    float scale;
};

/* Features to features. Dense weights are stored by blocks of LANES outputs, column by column. */
struct linear {
    int64_t in, out, weights, starts, bias, step;
    int32_t inputs, outputs, dense;
    struct activate act;
};

/* act(scale * a + shift), act(a + b) or act(a * b). Features are one channel whose scale is one value per lane. */
struct pointwise {
    struct planes a, b, out;
    int64_t scale, shift, mask;
    int32_t channels, rows, cols;
    int32_t multiply, broadcast, features;
    struct activate act;
};

enum kind { CONV, GATHER, HALO, POOL, MEAN, LINEAR, POINTWISE };

struct op {
    int32_t kind;
    int64_t exchange; /* of rows between threads (shares.c), or ABSENT */
    union {
        struct conv conv;
        struct gather gather;
        struct halo halo;
        struct pool pool;
        struct mean mean;
        struct linear linear;
        struct pointwise pointwise;
    } as;
};

/* What one run works on, and which share of it is ours when several threads run the same plan: a part of every
 * operation or, on an arena of our own, a share of the image's rows. */
struct frame {
    const char *constants;
    char *arena;
    const float *x;
    float *y;
    int part, parts;
    int rows_share, rows_shares;
};

INLINE char *locate(const struct frame *f, int64_t at)
{
    return at == INPUT ? (char *)f->x : at == OUTPUT ? (char *)f->y : f->arena + at;
}

/* Whether nobody has the rows above our share of the image, or those below. */
INLINE int topmost(const struct frame *f) { return f->rows_share == 0; }
INLINE int lowest(const struct frame *f) { return f->rows_share + 1 == f->rows_shares; }

/* Our share of n pieces of work: pieces first .. last - 1. */
struct share {
    int first, last;
};

INLINE struct share share_of(const struct frame *f, int n)
{
    if (f->parts == 1) return (struct share){0, n};
    struct share s = {(int)((int64_t)n * f->part / f->parts), (int)((int64_t)n * (f->part + 1) / f->parts)};
    return s;
}

/* The same of what is left over: whoever has fewer of the whole pieces gets more of these. */
INLINE struct share rest_of(const struct frame *f, int n)
{
    struct frame mirrored = *f;
    mirrored.part = f->parts - 1 - f->part;
    return share_of(&mirrored, n);
}

/* ------------------------------------------------------------------------------------------------ vectors */

INLINE vec load(const char *p) { return *(const cell *)p; }
INLINE void store(char *p, vec v) { *(cell *)p = v; }
INLINE vec splat(float x) { return x - (vec){0}; }

INLINE vec choose(ivec where, vec a, vec b) { return (vec)((where & (ivec)a) | (~where & (ivec)b)); }

/* The larger and the smaller; b where a or b is not a number. Compilers do not find the instruction by themselves. */
#if LANES == 16 && defined(__AVX512F__)
INLINE vec max(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vec min(vec a, vec b) { return (vec)_mm512_min_ps((__m512)a, (__m512)b); }
#elif LANES == 8 && defined(__AVX__)
INLINE vec max(vec a, vec b) { return (vec)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vec min(vec a, vec b) { return (vec)_mm256_min_ps((__m256)a, (__m256)b); }
#elif LANES == 4 && defined(__SSE__)
INLINE vec max(vec a, vec b) { return (vec)_mm_max_ps((__m128)a, (__m128)b); }
INLINE vec min(vec a, vec b) { return (vec)_mm_min_ps((__m128)a, (__m128)b); }
#elif defined(__wasm_simd128__)
INLINE vec max(vec a, vec b) { return __builtin_wasm_pmax_f32x4(b, a); }
INLINE vec min(vec a, vec b) { return __builtin_wasm_pmin_f32x4(b, a); }
#else
INLINE vec max(vec a, vec b) { return choose(a > b, a, b); }
INLINE vec min(vec a, vec b) { return choose(a < b, a, b); }
#endif

INLINE vec relu(vec v) { return max(splat(0), v); }
INLINE vec masked(vec v, const char *mask) { return (vec)((ivec)v & *(const icell *)mask); }

/* Moves lanes; what the mask excludes becomes zero. */
INLINE vec permute(vec v, ivec lanes, ivec mask)
{
#ifdef __wasm_simd128__
    typedef signed char bytes __attribute__((vector_size(16)));
    const ivec at = lanes * 0x04040404 + 0x03020100; /* the four bytes of each lane */
    return (vec)((ivec)__builtin_wasm_swizzle_i8x16((bytes)v, (bytes)at) & mask);
#elif defined(__clang__)
    vec moved = v;
    for (int l = 0; l < LANES; l++) moved[l] = v[lanes[l]];
    return (vec)((ivec)moved & mask);
#else
    return (vec)((ivec)__builtin_shuffle(v, lanes) & mask);
#endif
}

/* What lanes get from the neighbour at a side; with regions in rows of four, AVX2 has an instruction for it. */
INLINE vec from_side(vec v, const struct side *side, const int shift)
{
#if LANES == 8 && defined(__AVX2__)
    const __m256 x = (__m256)v;
    switch (shift) {
    case ABOVE: return (vec)_mm256_permute2f128_ps(x, x, 0x08);
    case BELOW: return (vec)_mm256_permute2f128_ps(x, x, 0x81);
    case LEFT: return (vec)_mm256_slli_si256((__m256i)x, 4);
    case RIGHT: return (vec)_mm256_srli_si256((__m256i)x, 4);
    default: break;
    }
#endif
    (void)shift;
    return permute(v, side->lanes, side->mask);
}

/* e^x to a few units in the last place: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]. */
INLINE vec exponential(vec x)
{
    x = min(splat(88.0f), max(splat(-87.0f), x));
    const vec magic = splat(12582912.0f); /* adding 1.5 * 2^23 rounds to an integer */
    const vec n = (x * 1.44269504f + magic) - magic;
    const vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const ivec power = ((ivec)(n + magic) - (ivec)magic + 127) << 23;
    return p * (vec)power;
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

static __attribute__((noinline)) void activate(vec *v, int n, const struct activate *act)
{
    const vec low = splat(act->low), high = splat(act->high);
    for (int i = 0; i < n; i++) {
        const vec x = v[i], sixth = min(splat(1), max(splat(0), x * (1 / 6.0f) + 0.5f));
        switch (act->kind) {
        case RELU: v[i] = relu(x); break;
        case CLAMP: v[i] = min(high, max(low, x)); break;
        case SIGMOID: v[i] = sigmoid(x); break;
        case SILU: v[i] = x * sigmoid(x); break;
        case HARDSIGMOID: v[i] = sixth; break;
        case HARDSWISH: v[i] = x * sixth; break;
        default: break;
        }
    }
}

/* ------------------------------------------------------------------------------------------------ convolution */

/* Sums that fit in the registers beside a weight and the odd temporary. */
#define MAX_SUMS (LANES == 16 ? 16 : 12)

#if WEIGHT_BITS == 16
/* Half to single precision: shift the bits into place, and let a product correct the exponent. */
INLINE float widen(uint16_t half)
{
    const uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
    float f;
    __builtin_memcpy(&f, &magnitude, sizeof f);
    return half & 0x8000 ? f * -0x1p112f : f * 0x1p112f;
}
#else
INLINE float widen(float value) { return value; }
#endif

/* Reads a weight, and finds the pixel that it multiplies. */
INLINE vec read_entry(const struct entry *e, const char *corner, const char **pixel)
{
#if WEIGHT_BITS != 32
    *pixel = corner + (uint32_t)e->offset * VECTOR;
    return splat(widen(e->value));
#elif WIDE
    /* One load instead of two: the second half of the 64 bits goes from a register straight to all lanes. */
    uint64_t bits;
    __builtin_memcpy(&bits, e, sizeof bits);
    *pixel = corner + (uint32_t)bits;
#if LANES == 16
    return (vec)((int32_t)(bits >> 32) - (ivec){0});
#else
    return (vec)_mm256_broadcastd_epi32(_mm_cvtsi32_si128((int32_t)(bits >> 32)));
#endif
#else
    *pixel = corner + e->offset;
    return splat(e->value);
#endif
}

#if WEIGHT_BITS == 32
/* Four weights that have been read. With few registers and cheap loads of one number that is better left to later. */
struct taken {
#if WIDE
    uint64_t first, second; /* two offsets each */
    vec values;             /* in every four lanes */
#else
    const struct four *four;
#endif
};

INLINE struct taken take(const struct four *four)
{
#if WIDE
    uint64_t first, second;
    __builtin_memcpy(&first, four->offset, sizeof first);
    __builtin_memcpy(&second, four->offset + 2, sizeof second);
    OPAQUE(first);
    OPAQUE(second);
#if LANES == 16
    return (struct taken){first, second, (vec)_mm512_broadcast_f32x4(_mm_loadu_ps(four->value))};
#else
    return (struct taken){first, second, (vec)_mm256_broadcast_ps((const __m128 *)four->value)};
#endif
#else
    return (struct taken){four};
#endif
}

/* The pixel that weight i multiplies. */
INLINE const char *pixel_of(const struct taken *taken, const char *corner, const int i)
{
#if WIDE
    const uint64_t offsets = i < 2 ? taken->first : taken->second;
    return corner + (uint32_t)(i % 2 ? offsets >> 32 : offsets);
#else
    return corner + taken->four->offset[i];
#endif
}

#if LANES == 16
#define SPREAD(values, lanes) ((vec)_mm512_permute_ps((__m512)(values), lanes))
#else
#define SPREAD(values, lanes) ((vec)_mm256_permute_ps((__m256)(values), lanes))
#endif

/* Weight i in all lanes. */
INLINE vec weight_of(const struct taken *taken, const int i)
{
#if WIDE
    switch (i) { /* the instruction wants a constant */
    case 0: return SPREAD(taken->values, 0x00);
    case 1: return SPREAD(taken->values, 0x55);
    case 2: return SPREAD(taken->values, 0xaa);
    default: return SPREAD(taken->values, 0xff);
    }
#else
    return splat(taken->four->value[i]);
#endif
}
#endif

/* Where the weights of a group that come in fours end; only those of 32 bits do. */
INLINE const struct entry *end_of_fours(const struct entry *e, const struct entry *end, const int together)
{
    return WEIGHT_BITS == 32 ? e + (end - e) / (4 * together) * (4 * together) : e;
}

/* A tile that is being computed: where it lies in each operand's channel 0. A channel is `channel * pitch` further. */
struct tile {
    const struct conv *op;
    const float *bias, *step, *scale, *shift;
    const char *in, *residual, *mask;
    char *out, *tail, *scratch, *box, *tail_box;
    vec *spare; /* for sums that have to leave the registers */
    const struct edges *edges; /* of the output and of the tail that are written along, or NULL */
    int row;
    int topmost, lowest; /* the share of rows that it belongs to */
};

#define CELL(p, i, row) ((p) + (i) / across * (int64_t)(row) + (i) % across * VECTOR)

INLINE void start_sums(vec *sums, const struct tile *t, const int32_t *channels, const int together, const int n)
{
    EACH(m, together) {
        const vec b = splat(WEIGHT_BITS == 8 ? 0 : t->bias[channels[m]]);
        EACH(i, n) sums[m * n + i] = b;
    }
}

INLINE void load_partial(vec *sums, const char *scratch, const int32_t *channels, const int together, const int n)
{
    EACH(m, together) {
        EACH(i, n) sums[m * n + i] = load(scratch + ((int64_t)channels[m] * n + i) * VECTOR);
    }
}

INLINE void store_partial(const vec *sums, char *scratch, const int32_t *channels, const int together, const int n)
{
    EACH(m, together) {
        EACH(i, n) store(scratch + ((int64_t)channels[m] * n + i) * VECTOR, sums[m * n + i]);
    }
}

/* Multiplies the pixels of the tile that lie under a weight. */
INLINE void multiply(vec *sums, vec weight, const char *pixel, intptr_t step, const int down, const int across,
                     const int stride)
{
    UNROLL for (int r = 0; r < down; r++, pixel += step) {
        EACH(c, across) sums[r * across + c] += weight * load(pixel + c * stride * VECTOR);
    }
}

/* The innermost loop: the weights of a group, one by one. */
INLINE void walk(vec *sums, const struct entry *e, const struct entry *end, const char *in, intptr_t step,
                 const int together, const int down, const int across, const int stride)
{
    for (; e != end; e += together) {
        EACH(m, together) {
            const char *pixel;
            const vec weight = read_entry(e + m, in, &pixel);
            multiply(sums + m * down * across, weight, pixel, step, down, across, stride);
        }
    }
}

/* The same, four at a time. */
INLINE void walk_fours(vec *sums, const struct entry *e, const struct entry *end, const char *in, intptr_t step,
                       const int together, const int down, const int across, const int stride)
{
#if WEIGHT_BITS == 32
    for (; e != end; e += 4 * together) {
        struct taken taken[MAX_SUMS]; /* of which as many are used as there are channels */
        EACH(m, together) taken[m] = take((const struct four *)e + m);
        EACH(i, 4) {
            EACH(m, together) {
                multiply(sums + m * down * across, weight_of(taken + m, i), pixel_of(taken + m, in, i), step, down,
                         across, stride);
            }
        }
    }
#else
    (void)sums, (void)e, (void)end, (void)in, (void)step, (void)together, (void)down, (void)across, (void)stride;
#endif
}

/* All residuals of a group are read before anything is written: one that is filled up with a channel it has already
 * gives the same result twice. */
INLINE void add_residual(vec *sums, const struct tile *t, const struct conv *op, const int32_t *channels,
                         const int together, const int down, const int across)
{
    const int64_t pitch = op->residual.pitch, row = op->residual.row;
    if (op->residual.at == ABSENT) return;
    EACH(m, together) {
        const char *residual = t->residual + channels[m] * pitch;
        EACH(i, down * across) sums[m * down * across + i] += load(CELL(residual, i, row));
    }
}

/* Where regions are larger than the image, what is outside has to be zero: it is the next layer's padding. */
INLINE void mask_sums(vec *sums, const struct tile *t, const struct conv *op, const int together, const int down,
                      const int across)
{
    const int64_t row = (int64_t)op->cols * VECTOR;
    if (op->mask == ABSENT) return;
    EACH(i, down * across) {
        EACH(m, together) sums[m * down * across + i] = masked(sums[m * down * across + i], CELL(t->mask, i, row));
    }
}

/* The cells at both ends of a row, in the halos of the neighbours at the right and left. */
INLINE void store_ends(const vec *sums, char *to, const struct edges *edges, const int across)
{
    if (edges->left.cells) store(to - VECTOR, from_side(sums[across - 1], &edges->left, edges->left.shift));
    if (edges->right.cells) store(to + across * VECTOR, from_side(sums[0], &edges->right, edges->right.shift));
}

/* A row of the halo, with its corners. */
INLINE void store_edge_row(const vec *sums, char *to, const struct side *side, const struct edges *edges,
                           const int across)
{
    vec moved[MAX_SUMS];
    EACH(c, across) {
        moved[c] = from_side(sums[c], side, side->shift);
        store(to + c * VECTOR, moved[c]);
    }
    store_ends(moved, to, edges, across);
}

/* What neighbouring regions need of a tile goes to their halos at once, while it is in registers. The tile is as wide
 * as the region and starts at `row` of its `rows`, which are `distance` bytes apart. */
INLINE void store_edges(const vec *sums, char *out, int64_t distance, const struct edges *edges, int row, int rows,
                        const int down, const int across)
{
    EACH(r, down) store_ends(sums + r * across, out + r * distance, edges, across);
    if (edges->below.cells && row == 0) store_edge_row(sums, out + rows * distance, &edges->below, edges, across);
    if (edges->above.cells && row + down == rows)
        store_edge_row(sums + (down - 1) * across, out - (row + 1) * distance, &edges->above, edges, across);
}

/* A row of the halo beyond the image, with its corners. */
INLINE void clear_edge_row(char *to, const struct edges *edges, const int across)
{
    EACH(c, across) store(to + c * VECTOR, splat(0));
    if (edges->left.cells) store(to - VECTOR, splat(0));
    if (edges->right.cells) store(to + across * VECTOR, splat(0));
}

/* The first and the last row of our share of an image: where a neighbouring share borrows it, it goes into the box (see
 * struct borders; of one row, and as wide as the tile); where there is no neighbour, what we would borrow is zero. */
INLINE void store_borders(const vec *sums, const struct tile *t, const struct conv *op, char *out, int64_t distance,
                          const struct edges *edges, char *box, const int down, const int across)
{
    const int for_above = edges->borrows_below, for_below = edges->borrows_above;
    if (t->row == 0) {
        if (t->topmost && edges->borrows_above) clear_edge_row(out - distance, edges, across);
        if (!t->topmost && for_above) {
            EACH(c, across) store(box + c * VECTOR, sums[c]);
        }
    }
    if (t->row + down == op->rows) {
        if (t->lowest && edges->borrows_below) clear_edge_row(out + down * distance, edges, across);
        if (!t->lowest && for_below) {
            box += for_above * op->channels * across * VECTOR;
            EACH(c, across) store(box + c * VECTOR, sums[(down - 1) * across + c]);
        }
    }
}

/* Stores the output, or the tail. */
INLINE void store_sums(const vec *sums, const struct tile *t, const struct conv *op, const int tail,
                       const int32_t *channels, const int together, const int down, const int across)
{
    const struct planes *planes = tail ? &op->tail : &op->out;
    const struct edges *edges = t->edges ? t->edges + tail : NULL;
    const int64_t pitch = planes->pitch, row = planes->row;
    EACH(m, together) {
        const vec *own = sums + m * down * across;
        char *out = (tail ? t->tail : t->out) + channels[m] * pitch;
        EACH(i, down * across) store(CELL(out, i, row), own[i]);
        if (edges) store_edges(own, out, row, edges, t->row, op->rows, down, across);
        if (edges && (edges->borrows_above || edges->borrows_below)) {
            char *box = (tail ? t->tail_box : t->box) + channels[m] * across * VECTOR;
            store_borders(own, t, op, out, row, edges, box, down, across);
        }
    }
}

/* The last step, with the sums still in registers, as most layers need it. */
INLINE void finish(vec *sums, const struct tile *t, const struct conv *op, const int32_t *channels, const int together,
                   const int down, const int across)
{
    const int n = down * across;
    add_residual(sums, t, op, channels, together, down, across);
    if (op->act.kind == RELU) {
        EACH(i, together * n) sums[i] = relu(sums[i]);
    }
    mask_sums(sums, t, op, together, down, across);
    if (op->out.at != ABSENT) store_sums(sums, t, op, 0, channels, together, down, across);
    if (op->tail.at != ABSENT) {
        EACH(m, together) {
            EACH(i, n) sums[m * n + i] = sums[m * n + i] * t->scale[channels[m]] + t->shift[channels[m]];
        }
        if (op->tail_act.kind == RELU) {
            EACH(i, together * n) sums[i] = relu(sums[i]);
        }
        mask_sums(sums, t, op, together, down, across);
        store_sums(sums, t, op, 1, channels, together, down, across);
    }
}

/* Masks sums in memory and stores them. */
static void store_any(const vec *sums, const struct tile *t, char *to, const struct planes *planes,
                      const int32_t *channels, int together, int across, int n)
{
    const int row = t->op->cols * VECTOR, unmasked = t->op->mask == ABSENT;
    for (int m = 0; m < together; m++) {
        char *out = to + channels[m] * (int64_t)planes->pitch;
        for (int i = 0; i < n; i++) {
            const vec v = sums[m * n + i];
            store(CELL(out, i, planes->row), unmasked ? v : masked(v, CELL(t->mask, i, row)));
        }
    }
}

/* The last step of any layer, on sums in memory. */
static __attribute__((noinline)) void finish_any(const struct tile *t, const int32_t *channels, int together, int across,
                                                 int n)
{
    const struct conv *op = t->op;
    vec *sums = t->spare;
    for (int m = 0; m < together; m++) {
        const char *residual = t->residual + channels[m] * (int64_t)op->residual.pitch;
        for (int i = 0; i < n; i++) {
#if WEIGHT_BITS == 8
            sums[m * n + i] = sums[m * n + i] * t->step[channels[m]] + t->bias[channels[m]];
#endif
            if (op->residual.at != ABSENT) sums[m * n + i] += load(CELL(residual, i, op->residual.row));
        }
    }
    activate(sums, together * n, &op->act);
    if (op->out.at != ABSENT) store_any(sums, t, t->out, &op->out, channels, together, across, n);
    if (op->tail.at == ABSENT) return;
    for (int m = 0; m < together; m++)
        for (int i = 0; i < n; i++) sums[m * n + i] = sums[m * n + i] * t->scale[channels[m]] + t->shift[channels[m]];
    activate(sums, together * n, &op->tail_act);
    store_any(sums, t, t->tail, &op->tail, channels, together, across, n);
}

/* Asks for the cells of an operand that the next group will use, while this one is computed. */
INLINE void prefetch_cells(const char *at, const struct planes *planes, const int32_t *channels, const int together,
                           const int down, const int across)
{
    const int64_t pitch = planes->pitch, row = planes->row;
    EACH(m, together) {
        const char *cells = at + channels[m] * pitch;
        EACH(i, down * across) __builtin_prefetch(CELL(cells, i, row), 1);
    }
}

/* A rectangle of tiles of the output, numbered row by row or downwards, of which `first` to `last` are to be
 * computed. */
struct area {
    int row, col, down, across, tiles_down, tiles_across, first, last;
    int first_group, last_group;
};

INLINE struct tile tile_at(const struct conv *op, const struct frame *f, int row, int col)
{
    const int64_t x = (int64_t)col * VECTOR;
    const int64_t scratch_size = (int64_t)op->channels * op->down * op->across * VECTOR;
    struct tile t = {.op = op, .row = row};
    t.bias = (const float *)(f->constants + op->bias);
    t.step = (const float *)(f->constants + op->step);
    t.scale = (const float *)(f->constants + op->scale);
    t.shift = (const float *)(f->constants + op->shift);
    t.in = f->arena + op->in.at + (int64_t)row * op->stride_rows * op->in.row + x * op->stride_cols;
    t.residual = f->arena + op->residual.at + (int64_t)row * op->residual.row + x;
    t.mask = f->constants + op->mask + (int64_t)row * op->cols * VECTOR + x;
    t.out = f->arena + op->out.at + (int64_t)row * op->out.row + x;
    t.tail = f->arena + op->tail.at + (int64_t)row * op->tail.row + x;
    t.scratch = f->arena + op->scratch + f->part * scratch_size;
    t.box = f->arena + op->box;
    t.tail_box = f->arena + op->tail_box;
    t.topmost = topmost(f);
    t.lowest = lowest(f);
    return t;
}

/* A block of input channels: its weights, and whether it is the first or the last. */
struct block {
    const struct entry *entries;
    const int32_t *starts, *order;
    int groups;
    int first, last;
    int usual; /* no activation but ReLU, no 8-bit weights */
};

/* The heart of the engine: a tile of `down` x `across` vectors of one output channel after the other, all sums in
 * registers. In a very sparse layer a channel takes a few dozen multiply-adds, and every instruction around them
 * counts: channels come in their own order, so that everything moves on by a fixed distance. `first` and `last` are
 * those of the block, as constants where the compiler is to know them.
 */
INLINE void conv_channels(const struct tile *given, const struct conv *op, const struct block *b, int channel,
                          const int first, const int last, const int down, const int across, const int stride)
{
    static const int32_t here[] = {0}, next[] = {1};
    const int n = down * across;
    const intptr_t row = (intptr_t)op->stride_rows * op->in.row;
    const struct entry *e = b->entries + b->starts[0];
    struct tile t = *given;
    t.bias += channel, t.scale += channel, t.shift += channel;
    t.out += channel * (int64_t)op->out.pitch;
    t.tail += channel * (int64_t)op->tail.pitch;
    t.residual += channel * (int64_t)op->residual.pitch;
    t.scratch += channel * (int64_t)n * VECTOR;
    t.box += channel * across * VECTOR;
    t.tail_box += channel * across * VECTOR;
    OPAQUE(t.in);
    for (const int32_t *start = b->starts, *end = start + b->groups; start != end;) {
        const struct entry *stop = b->entries + *++start, *fours = end_of_fours(e, stop, 1);
        vec sums[MAX_SUMS];
        if (first)
            start_sums(sums, &t, here, 1, n);
        else
            load_partial(sums, t.scratch, here, 1, n);
        if (last && op->prefetch) {
            prefetch_cells(t.out, &op->out, next, 1, down, across);
            if (op->residual.at != ABSENT) prefetch_cells(t.residual, &op->residual, next, 1, down, across);
        }
        walk_fours(sums, e, fours, t.in, row, 1, down, across, stride);
        walk(sums, fours, stop, t.in, row, 1, down, across, stride);
        if (!last) {
            store_partial(sums, t.scratch, here, 1, n);
        } else if (b->usual) {
            finish(sums, &t, op, here, 1, down, across);
        } else {
            const int32_t number = channel + (int32_t)(start - b->starts) - 1;
            EACH(i, n) t.spare[i] = sums[i];
            finish_any(given, &number, 1, across, n);
        }
        t.bias++, t.scale++, t.shift++;
        t.out += op->out.pitch;
        t.tail += op->tail.pitch;
        t.residual += op->residual.pitch;
        t.scratch += n * VECTOR;
        t.box += across * VECTOR;
        t.tail_box += across * VECTOR;
        e = stop;
    }
}

/* The same for several output channels together. They give a small tile enough independent sums to hide the latency of
 * a multiply-add; their weights are interleaved, and channels of like weight count are put together. */
INLINE void conv_groups(const struct tile *t, const struct conv *op, const struct block *b, const int together,
                        const int down, const int across, const int stride)
{
    const int n = down * across;
    const intptr_t row = (intptr_t)op->stride_rows * op->in.row;
    const int32_t *channels = b->order;
    const struct entry *e = b->entries + (int64_t)b->starts[0] * together;
    for (const int32_t *start = b->starts, *end = start + b->groups; start != end; channels += together) {
        const struct entry *stop = b->entries + (int64_t)*++start * together, *fours = end_of_fours(e, stop, together);
        vec sums[MAX_SUMS];
        if (b->first)
            start_sums(sums, t, channels, together, n);
        else
            load_partial(sums, t->scratch, channels, together, n);
        if (b->last && op->prefetch) {
            prefetch_cells(t->out, &op->out, channels + together, together, down, across);
            if (op->residual.at != ABSENT)
                prefetch_cells(t->residual, &op->residual, channels + together, together, down, across);
        }
        walk_fours(sums, e, fours, t->in, row, together, down, across, stride);
        walk(sums, fours, stop, t->in, row, together, down, across, stride);
        if (!b->last) {
            store_partial(sums, t->scratch, channels, together, n);
        } else if (b->usual) {
            finish(sums, t, op, channels, together, down, across);
        } else {
            EACH(i, together * n) t->spare[i] = sums[i];
            finish_any(t, channels, together, across, n);
        }
        e = stop;
    }
}

/* A block of input channels of one tile. */
INLINE void conv_block(const struct tile *t, const struct conv *op, const struct block *b, int first_group,
                       const int fitted, const int together, const int down, const int across, const int stride)
{
    if (together > 1)
        conv_groups(t, op, b, together, down, across, stride);
    else if (op->blocks == 1)
        conv_channels(t, op, b, first_group, 1, 1, down, across, stride);
    else if (!fitted) /* once for all blocks: kernels for any network take long enough to build */
        conv_channels(t, op, b, first_group, b->first, b->last, down, across, stride);
    else if (b->first)
        conv_channels(t, op, b, first_group, 1, 0, down, across, stride);
    else if (b->last)
        conv_channels(t, op, b, first_group, 0, 1, down, across, stride);
    else
        conv_channels(t, op, b, first_group, 0, 0, down, across, stride);
}

/* The tile is the outer loop, so that its pixels stay in the first-level cache while the weights stream by. If all
 * input channels of a tile are too much for that cache they are walked in blocks, with partial sums in between. */
INLINE void conv_tiles(const struct conv *given, const struct edges *edges, const struct frame *f,
                       const struct area *a, const int fitted, const int together, const int down, const int across,
                       const int stride)
{
    const struct conv op = *given; /* a copy, which no result that is stored can alias */
    const int32_t *starts = (const int32_t *)(f->constants + op.starts) + a->first_group;
    const int32_t *order = (const int32_t *)(f->constants + op.order) + a->first_group * together;
    const int32_t *bases = (const int32_t *)(f->constants + op.bases);
    struct block b = {.entries = (const struct entry *)(f->constants + op.entries)};
    const int length = op.downwards ? a->tiles_down : a->tiles_across;
    int line = a->first / length, place = a->first % length;
    vec spare[MAX_SUMS];

    b.groups = a->last_group - a->first_group;
    b.usual = WEIGHT_BITS != 8 && op.act.kind <= RELU && op.tail_act.kind <= RELU;
    for (int left = a->last - a->first; left > 0; left--) {
        const int row = op.downwards ? place : line, col = op.downwards ? line : place;
        struct tile t = tile_at(&op, f, a->row + row * down, a->col + col * across);
        const char *corner = t.in;
        t.spare = spare;
        t.edges = edges;
        for (int block = 0; block < op.blocks; block++) {
            b.starts = starts + block * op.groups;
            b.order = order + block * op.groups * together;
            b.first = block == 0;
            b.last = block + 1 == op.blocks;
            t.in = corner + bases[block];
            conv_block(&t, &op, &b, a->first_group, fitted, together, down, across, stride);
        }
        if (++place == length) place = 0, line++;
    }
}

/* TILES lists the tiles that exist, T(together, down, across, stride); whoever includes this file defines it. Several
 * compilers can share the work: each then builds those of its own list, and knows those ELSEWHERE by name. */
typedef void tiles_function(const struct conv *, const struct frame *, const struct area *);

#ifdef TILES_ELSEWHERE
#define SHARED __attribute__((visibility("hidden")))
#else
#define SHARED static
#define TILES_ELSEWHERE(T)
#define FITTED_ELSEWHERE(F)
#endif

#define DEFINE(together, down, across, stride) \
    SHARED void tiles_##together##_##down##_##across##_##stride(const struct conv *op, const struct frame *f, \
                                                                const struct area *a) \
    { \
        if (together * down * across <= MAX_SUMS) conv_tiles(op, NULL, f, a, 0, together, down, across, stride); \
    }
TILES(DEFINE)

#define DECLARE(together, down, across, stride) SHARED tiles_function tiles_##together##_##down##_##across##_##stride;
TILES_ELSEWHERE(DECLARE)

#define KEY(together, down, across, stride) ((((together) * 32 + (down)) * 32 + (across)) * 4 + (stride))
#define CASE(together, down, across, stride) \
    case KEY(together, down, across, stride): return tiles_##together##_##down##_##across##_##stride;

static tiles_function *find_kernel(int together, int down, int across, int stride)
{
    if (across == 1) stride = 1; /* a single column has no neighbour to be a stride away from */
    switch (KEY(together, down, across, stride)) { TILES(CASE) TILES_ELSEWHERE(CASE) }
    return NULL;
}

/* FITTED lists the forms of a network's layers, F(number, {struct form}), if it is to have kernels of its own: where
 * everything lies is still up to the plan, but the compiler knows all distances, counts and what is absent. */
struct form {
    struct conv op;
    int32_t writes_edges;
    struct edges edges[2]; /* of the output and of the tail */
};

INLINE void put_at(struct planes *planes, const struct planes *given)
{
    if (planes->at == ABSENT) return;
    if (given->at == ABSENT) __builtin_unreachable();
    planes->at = given->at;
}

INLINE void conv_fitted(const struct form *form, const struct conv *given, const struct frame *f,
                        const struct area *given_area)
{
    struct conv op = form->op;
    struct area a = *given_area;
    put_at(&op.in, &given->in);
    put_at(&op.out, &given->out);
    put_at(&op.residual, &given->residual);
    put_at(&op.tail, &given->tail);
    op.entries = given->entries, op.starts = given->starts, op.bases = given->bases, op.order = given->order;
    op.bias = given->bias, op.step = given->step, op.scale = given->scale, op.shift = given->shift;
    op.scratch = given->scratch, op.groups = given->groups;
    op.box = given->box, op.tail_box = given->tail_box;
    if (op.mask != ABSENT) op.mask = given->mask;
    a.tiles_across = form->op.cols / form->op.across; /* a constant; how many are below each other depends on the band */
    conv_tiles(&op, form->writes_edges ? form->edges : NULL, f, &a, 1, form->op.together, form->op.down,
               form->op.across, form->op.across == 1 ? 1 : form->op.stride_cols);
}

#define FIT(number, ...) \
    SHARED void fitted_##number(const struct conv *op, const struct frame *f, const struct area *a) \
    { \
        static const struct form form = __VA_ARGS__; \
        conv_fitted(&form, op, f, a); \
    }
FITTED(FIT)

#define DECLARE_FITTED(number, ...) SHARED tiles_function fitted_##number;
FITTED_ELSEWHERE(DECLARE_FITTED)

#define FITTED_NAME(number, ...) [number] = fitted_##number,
static tiles_function *const fitted[] = {NULL, FITTED(FITTED_NAME) FITTED_ELSEWHERE(FITTED_NAME)};

INLINE void conv_area(const struct conv *op, const struct frame *f, const struct area *a)
{
    if (op->kernel && a->down == op->down && a->across == op->across)
        fitted[op->kernel](op, f, a);
    else
        find_kernel(op->together, a->down, a->across, op->stride_cols)(op, f, a);
}

/* Our share of an area's tiles. Of the tiles in the middle that are too few for everybody to get one, all threads
 * compute some of the channels. */
static void conv_share(const struct conv *op, const struct frame *f, struct area a, int left_over)
{
    const int tiles = a.last, each = op->share_channels == OF_ALL_TILES ? 0 : tiles / f->parts;
    const int few = tiles - each * f->parts, middle = f->parts / 2 * each;
    if (f->parts > 1 && op->share_channels != NO_CHANNELS && few > 0) {
        const int32_t *parts = (const int32_t *)(f->constants + op->parts) + f->part;
        struct area rest = a;
        rest.first = middle, rest.last = middle + few;
        rest.first_group = parts[0], rest.last_group = parts[1];
        if (rest.first_group < rest.last_group) conv_area(op, f, &rest);
        a.first = f->part * each < middle ? f->part * each : f->part * each + few;
        a.last = a.first + each;
    } else {
        const struct share s = left_over ? rest_of(f, tiles) : share_of(f, tiles);
        a.first = s.first, a.last = s.last;
    }
    if (a.first < a.last) conv_area(op, f, &a);
}

/* Rows first .. last - 1 of the output. Whole tiles first; rows and columns that are left over go one by one. */
static void conv_rows(const struct conv *op, const struct frame *f, int first, int last)
{
    const int whole_rows = (last - first) / op->down * op->down, whole_cols = op->cols / op->across * op->across;
    for (int below = 0; below < 2; below++) {
        const int down = below ? 1 : op->down;
        const int row = below ? first + whole_rows : first, rows = below ? last - row : whole_rows;
        for (int beside = 0; beside < 2; beside++) {
            const int across = beside ? 1 : op->across;
            const int col = beside ? whole_cols : 0, cols = beside ? op->cols - col : whole_cols;
            if (rows == 0 || cols == 0) continue;
            const int tiles_down = rows / down, tiles_across = cols / across, tiles = tiles_down * tiles_across;
            const struct area a = {row, col, down, across, tiles_down, tiles_across, 0, tiles, 0, op->groups};
            conv_share(op, f, a, below || beside);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ moving pixels */

/* Channels that are copied together, for one look at the table. */
enum { AT_ONCE = 4 };

/* LANES floats of a few channels, from the positions in `table`; an output of the caller's need not be aligned. */
INLINE void gather(float *to, int64_t to_pitch, const float *from, int64_t from_pitch, const int32_t *table, float fill,
                   int channels)
{
#if LANES == 16 && defined(__AVX512F__)
    const __m512i at = _mm512_loadu_si512(table);
    const __mmask16 inside = _mm512_cmpge_epi32_mask(at, _mm512_setzero_si512());
    for (; channels > 0; channels--, to += to_pitch, from += from_pitch)
        _mm512_storeu_ps(to, _mm512_mask_i32gather_ps(_mm512_set1_ps(fill), inside, at, from, 4));
#else
    /* Single loads are faster than an instruction that gathers, and reading the first float in place of one that is
     * missing is faster than a branch. */
    ivec outside;
    int32_t at[LANES];
    __builtin_memcpy(&outside, table, sizeof outside);
    outside >>= 31;
    EACH(l, LANES) at[l] = table[l] & ~(table[l] >> 31);
    for (; channels > 0; channels--, to += to_pitch, from += from_pitch) {
        vec v = splat(0);
        EACH(l, LANES) v[l] = from[at[l]];
        v = (vec)((outside & (ivec)splat(fill)) | (~outside & (ivec)v));
        __builtin_memcpy(to, &v, sizeof v);
    }
#endif
}

#if LANES == 16
#define LOWER 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define UPPER 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif LANES == 8
#define LOWER 0, 8, 1, 9, 2, 10, 3, 11
#define UPPER 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOWER 0, 4, 1, 5
#define UPPER 2, 6, 3, 7
#endif
#ifdef __clang__
#define INTERLEAVE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define INTERLEAVE(a, b, ...) __builtin_shuffle(a, b, (ivec){__VA_ARGS__})
#endif

/* LANES vectors whose lanes hold floats that follow each other: read lane by lane, and transposed. Interleaving the
 * first half with the second, as often as it can be halved, puts everything in its place. */
static void copy_run(float *to, const float *from, const int32_t *table)
{
    vec v[LANES], w[LANES];
    EACH(l, LANES) __builtin_memcpy(v + l, from + table[l], sizeof *v);
    UNROLL for (int size = 1; size < LANES; size *= 2) {
        EACH(i, LANES / 2) {
            w[2 * i] = INTERLEAVE(v[i], v[i + LANES / 2], LOWER);
            w[2 * i + 1] = INTERLEAVE(v[i], v[i + LANES / 2], UPPER);
        }
        EACH(i, LANES) v[i] = w[i];
    }
    EACH(l, LANES) __builtin_memcpy(to + l * LANES, v + l, sizeof *v);
}

/* Floats first .. last - 1 of a few channels, one by one where they are no whole vector. */
static void copy_some(const struct gather *op, float *to, const float *from, const int32_t *table, int first, int last,
                      int channels)
{
    int i = first;
    for (; i + LANES <= last; i += LANES)
        gather(to + i, op->to_pitch, from, op->from_pitch, table + i, op->fill, channels);
    for (; i < last; i++) {
        for (int c = 0; c < channels; c++) {
            const float *source = from + c * (int64_t)op->from_pitch;
            to[c * (int64_t)op->to_pitch + i] = table[i] < 0 ? op->fill : source[table[i]];
        }
    }
}

SEPARATE void run_gather(const struct gather *op, const struct frame *f)
{
    const int by_channel = op->channels >= 2 * AT_ONCE * f->parts; /* which leaves all runs whole */
    const struct share s = by_channel ? (struct share){0, op->count} : share_of(f, op->count);
    const struct share own = by_channel ? share_of(f, op->channels) : (struct share){0, op->channels};
    const int first_of_share = op->tables > 1 ? f->rows_share * op->count : 0;
    const int32_t *table = (const int32_t *)(f->constants + op->table) + first_of_share;
    const int32_t *runs = (const int32_t *)(f->constants + op->runs);
    for (int channel = own.first; channel < own.last; channel += AT_ONCE) {
        const float *from = (const float *)locate(f, op->from) + (int64_t)channel * op->from_pitch;
        float *to = (float *)locate(f, op->to) + (int64_t)channel * op->to_pitch;
        const int channels = own.last - channel < AT_ONCE ? own.last - channel : AT_ONCE;
        int done = s.first;
        if (op->table == ABSENT) { /* all channels are one then */
            __builtin_memcpy(to + s.first, from + s.first, (size_t)(s.last - s.first) * sizeof *to);
            continue;
        }
        for (int run = 0; run < op->run_count; run++) {
            const int first = runs[run] * LANES, last = first + LANES * LANES;
            if (first < s.first || last > s.last) continue; /* not all ours */
            copy_some(op, to, from, table, done, first, channels);
            for (int c = 0; c < channels; c++)
                copy_run(to + c * (int64_t)op->to_pitch + first, from + c * (int64_t)op->from_pitch, table + first);
            done = last;
        }
        copy_some(op, to, from, table, done, s.last, channels);
    }
}

INLINE void fill_side(char *plane, int64_t pitch, int channels, const struct side *given, const int shift)
{
    const struct side side = *given; /* a copy, which the cells cannot alias */
    const int64_t step = side.step;
    for (; channels > 0; channels--, plane += pitch) {
        const char *from = plane + side.from;
        char *to = plane + side.to;
        int left = side.cells;
        for (; left >= 4; left -= 4, from += 4 * step, to += 4 * step) {
            EACH(i, 4) store(to + i * step, from_side(load(from + i * step), &side, shift));
        }
        for (; left > 0; left--, from += step, to += step) store(to, from_side(load(from), &side, shift));
    }
}

/* HALOS lists the halos of a network that has kernels of its own: H(number, bytes from channel to channel, count of
 * sides, struct side ...). */
#define FIT_HALO(number, pitch, count, ...) \
    static void halo_##number(char *plane, int channels) \
    { \
        static const struct side sides[] = {__VA_ARGS__}; \
        for (; channels > 0; channels--, plane += pitch) { \
            EACH(i, count) fill_side(plane, 0, 1, sides + i, sides[i].shift); \
        } \
    }
HALOS(FIT_HALO)

typedef void halo_function(char *, int);
#define HALO_NAME(number, ...) halo_##number,
static halo_function *const halos[] = {NULL, HALOS(HALO_NAME)};

/* So many channels at a time that they stay in the first-level cache from one side to the next. */
SEPARATE void run_halo(const struct halo *op, const struct frame *f)
{
    enum { NEAR = 16384 };
    const struct side *sides = (const struct side *)(f->constants + op->sides);
    const struct share s = share_of(f, op->channels);
    const int64_t pitch = op->image.pitch;
    const int count = op->above + op->below + op->left + op->right;
    if (op->kernel) {
        halos[op->kernel](f->arena + op->image.at + s.first * pitch, s.last - s.first);
        return;
    }
    const int together = pitch < NEAR ? (int)(NEAR / pitch) : 1;
    for (int channel = s.first; channel < s.last; channel += together) {
        const int some = s.last - channel < together ? s.last - channel : together;
        char *plane = f->arena + op->image.at + channel * pitch;
        for (const struct side *side = sides; side != sides + count; side++) {
            switch (side->shift) {
            case ABOVE: fill_side(plane, pitch, some, side, ABOVE); break;
            case BELOW: fill_side(plane, pitch, some, side, BELOW); break;
            case LEFT: fill_side(plane, pitch, some, side, LEFT); break;
            case RIGHT: fill_side(plane, pitch, some, side, RIGHT); break;
            default: fill_side(plane, pitch, some, side, ANY_SHIFT); break;
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------ the small ones */

INLINE vec pool_window(const char *corner, int64_t row, const int rows, const int cols, const int maximum)
{
    vec v = maximum ? load(corner) : splat(0);
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < cols; j++) {
            const vec x = load(corner + i * row + j * VECTOR);
            v = maximum ? choose(x != x, x, max(x, v)) : v + x; /* as in torch, a NaN is the largest */
        }
    }
    return v;
}

SEPARATE void run_pool(const struct pool *op, const struct frame *f)
{
    const struct share s = share_of(f, op->channels);
    const int kernel_rows = op->kernel_rows, kernel_cols = op->kernel_cols, step = op->stride_cols * VECTOR;
    const int usual = op->maximum && kernel_rows == 3 && kernel_cols == 3; /* whose loops the compiler unrolls */
    const int thins = op->maximum && kernel_rows == 1 && kernel_cols == 1; /* what is outside stays zero */
    for (int channel = s.first; channel < s.last; channel++) {
        const char *in = f->arena + op->in.at + (int64_t)channel * op->in.pitch;
        char *out = f->arena + op->out.at + (int64_t)channel * op->out.pitch;
        for (int row = 0; row < op->rows; row++, in += op->stride_rows * (int64_t)op->in.row, out += op->out.row) {
            if (thins) {
                for (int col = 0; col < op->cols; col++) store(out + col * VECTOR, load(in + col * step));
                continue;
            }
            for (int col = 0; col < op->cols; col++) {
                const int64_t pixel = (int64_t)(row * op->cols + col) * VECTOR;
                vec v = usual ? pool_window(in + col * step, op->in.row, 3, 3, 1)
                              : pool_window(in + col * step, op->in.row, kernel_rows, kernel_cols, op->maximum);
                if (!op->maximum) v *= op->weights == ABSENT ? splat(op->scale) : load(f->constants + op->weights + pixel);
                if (op->mask != ABSENT) v = masked(v, f->constants + op->mask + pixel);
                store(out + col * VECTOR, v);
            }
        }
    }
}

SEPARATE void run_mean(const struct mean *op, const struct frame *f)
{
    const struct share s = share_of(f, op->channels);
    float *out = (float *)locate(f, op->out);
    for (int channel = s.first; channel < s.last; channel++) {
        const char *in = f->arena + op->in.at + (int64_t)channel * op->in.pitch;
        vec v = splat(0);
        for (int row = 0; row < op->rows; row++)
            for (int col = 0; col < op->cols; col++) v += load(in + row * op->in.row + col * VECTOR);
        float sum = 0;
        for (int l = 0; l < LANES; l++) sum += v[l];
        out[channel] = sum * op->scale;
    }
}

INLINE float feature(const char *in, const struct entry *e)
{
    return *(const float *)(in + (WEIGHT_BITS == 32 ? 1 : sizeof(float)) * e->offset);
}

/* One output of a sparse layer: four sums, because each multiply-add waits for the one before. */
static float sparse_dot(const struct entry *e, const struct entry *end, const char *in)
{
    float sum[4] = {0};
    for (; end - e >= 4; e += 4)
        for (int i = 0; i < 4; i++) sum[i] += widen(e[i].value) * feature(in, e + i);
    for (; e < end; e++) sum[0] += widen(e->value) * feature(in, e);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

#if WEIGHT_BITS == 32
typedef float weight;
#elif WEIGHT_BITS == 16
typedef uint16_t weight;
#else
typedef int8_t weight;
#endif

/* LANES outputs of a dense layer; two sums for the same reason. */
static vec dense_dot(const weight *w, const float *x, int inputs)
{
    vec sum[2] = {splat(0), splat(0)};
    for (int i = 0; i < inputs; i++, w += LANES) {
#if WEIGHT_BITS == 32
        sum[i % 2] += load((const char *)w) * x[i];
#else
        vec v = splat(0);
        for (int l = 0; l < LANES; l++) v[l] = widen(w[l]);
        sum[i % 2] += v * x[i];
#endif
    }
    return sum[0] + sum[1];
}

SEPARATE void run_linear(const struct linear *op, const struct frame *f)
{
    const char *in = locate(f, op->in), *weights = f->constants + op->weights;
    const int32_t *starts = (const int32_t *)(f->constants + op->starts);
    const struct share s = share_of(f, (op->outputs + LANES - 1) / LANES);
    float *out = (float *)locate(f, op->out);
    for (int block = s.first; block < s.last; block++) {
        const int first = block * LANES, count = op->outputs - first < LANES ? op->outputs - first : LANES;
        const int64_t at = (int64_t)first * (int)sizeof(float);
        vec v = splat(0);
        if (op->dense) {
            v = dense_dot((const weight *)weights + (int64_t)first * op->inputs, (const float *)in, op->inputs);
        } else {
            const struct entry *e = (const struct entry *)weights;
            for (int l = 0; l < count; l++) v[l] = sparse_dot(e + starts[first + l], e + starts[first + l + 1], in);
        }
        if (WEIGHT_BITS == 8) v *= load(f->constants + op->step + at);
        v += load(f->constants + op->bias + at);
        activate(&v, 1, &op->act);
        __builtin_memcpy(out + first, &v, (size_t)count * sizeof *out);
    }
}

SEPARATE void run_pointwise(const struct pointwise *op, const struct frame *f)
{
    const struct share s = share_of(f, op->channels);
    const float *scales = (const float *)(f->constants + op->scale), *shifts = (const float *)(f->constants + op->shift);
    for (int channel = s.first; channel < s.last; channel++) {
        const char *a = f->arena + op->a.at + (int64_t)channel * op->a.pitch;
        const char *b = f->arena + op->b.at + (int64_t)channel * op->b.pitch;
        char *out = f->arena + op->out.at + (int64_t)channel * op->out.pitch;
        for (int row = 0; row < op->rows; row++) {
            for (int col = 0; col < op->cols; col++) {
                const int64_t pixel = (int64_t)(row * op->cols + col) * VECTOR;
                const int first = op->features ? col * LANES : channel;
                vec v = load(a + row * op->a.row + col * VECTOR);
                if (op->b.at != ABSENT) {
                    const vec w = op->broadcast ? splat(*(const float *)b) : load(b + row * op->b.row + col * VECTOR);
                    v = op->multiply ? v * w : v + w;
                }
                if (op->scale != ABSENT) v *= op->features ? load((const char *)(scales + first)) : splat(scales[first]);
                if (op->shift != ABSENT) v += op->features ? load((const char *)(shifts + first)) : splat(shifts[first]);
                activate(&v, 1, &op->act);
                if (op->mask != ABSENT) v = masked(v, f->constants + op->mask + pixel);
                store(out + row * op->out.row + col * VECTOR, v);
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------ running a plan */

static void run_op(const struct op *op, const struct frame *f)
{
    switch (op->kind) {
    case CONV: conv_rows(&op->as.conv, f, 0, op->as.conv.rows); break;
    case GATHER: run_gather(&op->as.gather, f); break;
    case HALO: run_halo(&op->as.halo, f); break;
    case POOL: run_pool(&op->as.pool, f); break;
    case MEAN: run_mean(&op->as.mean, f); break;
    case LINEAR: run_linear(&op->as.linear, f); break;
    case POINTWISE: run_pointwise(&op->as.pointwise, f); break;
    default: break;
    }
}

/* Operations that run together, band of rows by band of rows: what one writes is in the cache when the next reads it.
 * Most chains are one operation in one band. Threads that share an image don't chain: they meet after every layer. */
struct chain {
    int length, rows, band;
};

INLINE struct chain chain_at(const struct op *op, const struct frame *f)
{
    const struct conv *conv = &op->as.conv;
    if (op->kind != CONV || conv->followers == 0 || f->parts > 1) return (struct chain){1, 1, 1};
    return (struct chain){1 + conv->followers, conv->rows, conv->band};
}

/* The part of a chain's operation that belongs to the band from `row` on. */
static void run_band(const struct op *op, const struct frame *f, const struct chain *c, int row)
{
    if (c->length == 1) {
        run_op(op, f);
    } else {
        conv_rows(&op->as.conv, f, row, row + c->band < c->rows ? row + c->band : c->rows);
    }
}

/* Runs the next operation, with those that are chained to it, and says how many that were. */
static inline int run_next(const struct op *op, const struct frame *f)
{
    const struct chain c = chain_at(op, f);
    for (int row = 0; row < c.rows; row += c.band)
        for (int i = 0; i < c.length; i++) run_band(op + i, f, &c, row);
    return c.length;
}
