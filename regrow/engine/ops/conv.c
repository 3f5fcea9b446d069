/* Sparse convolutions: the heart of the engine.
 *
 * Every tap of a convolution is an aligned load of a whole vector, `x[y + dy][x + dx]`, whatever the size of the image
 * (see docs/engine.md). A non-zero weight is an offset and a value, and costs one multiply-add for every vector of the
 * tile that is held in registers.
 */
#include "activate.h"
#include "frame.h"
#include "run.h"
#include "side.h"
#include "weights.h"

/* Lists of kernels, which the build defines: see `Kernels` of regrow.engine.codegen.build. */
#ifndef TILES
#define TILES(T) T(1, 1, 1, 1)
#define VARIANTS(V)
#endif

/* The sides of the halo of an output, at most one cell wide, and the rows received from the slices above and below. */
struct edges {
    struct side above, below, left, right;
    int32_t recv_above, recv_below;
};

/* Number of sums that fit in the registers together with a weight and a few temporaries. */
#define MAX_SUMS (LANES == 16 ? 16 : 12)

/* Reads a weight, and computes the address of the pixel that it multiplies. */
INLINE vec read_entry(const struct entry *e, const char *corner, const char **pixel)
{
#if WEIGHT_BITS != 32
    *pixel = corner + (uint32_t)e->offset * VECTOR;
    return splat(widen(e->value));
#elif WIDE
    /* One load of 64 bits instead of two loads: the second half is copied from the register to all lanes. */
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
/* Four weights in registers. With narrow vectors, a pointer to them: loading them one by one is faster. */
struct taken {
#if WIDE
    uint64_t first, second; /* two offsets each */
    vec values; /* repeated in every four lanes */
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
    switch (i) { /* the instruction needs a constant */
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

/* The end of a group's weights that are stored in fours; only 32-bit weights are. */
INLINE const struct entry *end_of_fours(const struct entry *e, const struct entry *end, const int group)
{
    return WEIGHT_BITS == 32 ? e + (end - e) / (4 * group) * (4 * group) : e;
}

/* The tile that is being computed: its address in channel 0 of each operand. */
struct tile {
    const struct conv *op;
    const float *bias, *weight_scale, *scale, *shift;
    const char *in, *residual, *mask;
    char *out, *second, *scratch, *halo_buffer, *second_halo_buffer;
    vec *spare; /* memory for sums that do not fit in registers */
    const struct edges *edges; /* of the two outputs, if the kernel writes their halos, or NULL */
    int row;
    int topmost, lowest; /* whether its slice is the first or the last */
};

#define CELL(p, i, row) ((p) + (i) / tile_cols * (int64_t)(row) + (i) % tile_cols * VECTOR)

INLINE void start_sums(vec *sums, const struct tile *t, const int32_t *channels, const int group, const int n)
{
    EACH(m, group) {
        const vec b = splat(WEIGHT_BITS == 8 ? 0 : t->bias[channels[m]]);
        EACH(i, n) sums[m * n + i] = b;
    }
}

INLINE void load_partial(vec *sums, const char *scratch, const int32_t *channels, const int group, const int n)
{
    EACH(m, group) {
        EACH(i, n) sums[m * n + i] = load(scratch + ((int64_t)channels[m] * n + i) * VECTOR);
    }
}

INLINE void store_partial(const vec *sums, char *scratch, const int32_t *channels, const int group, const int n)
{
    EACH(m, group) {
        EACH(i, n) store(scratch + ((int64_t)channels[m] * n + i) * VECTOR, sums[m * n + i]);
    }
}

/* Multiplies the pixels of the tile under one weight. */
INLINE void multiply(vec *sums, vec weight, const char *pixel, intptr_t step, const int tile_rows, const int tile_cols,
                     const int stride)
{
    UNROLL
    for (int r = 0; r < tile_rows; r++, pixel += step) {
        EACH(c, tile_cols) sums[r * tile_cols + c] += weight * load(pixel + c * stride * VECTOR);
    }
}

/* The innermost loop: the weights of a group, one by one. */
INLINE void multiply_entries(vec *sums, const struct entry *e, const struct entry *end, const char *in, intptr_t step,
                             const int group, const int tile_rows, const int tile_cols, const int stride)
{
    for (; e != end; e += group) {
        EACH(m, group) {
            const char *pixel;
            const vec weight = read_entry(e + m, in, &pixel);
            multiply(sums + m * tile_rows * tile_cols, weight, pixel, step, tile_rows, tile_cols, stride);
        }
    }
}

/* The same, four at a time. */
INLINE void multiply_fours(vec *sums, const struct entry *e, const struct entry *end, const char *in, intptr_t step,
                           const int group, const int tile_rows, const int tile_cols, const int stride)
{
#if WEIGHT_BITS == 32
    for (; e != end; e += 4 * group) {
        struct taken taken[MAX_SUMS]; /* the first `group` are used */
        EACH(m, group) taken[m] = take((const struct four *)e + m);
        EACH(i, 4) {
            EACH(m, group) {
                multiply(sums + m * tile_rows * tile_cols, weight_of(taken + m, i), pixel_of(taken + m, in, i), step,
                         tile_rows, tile_cols, stride);
            }
        }
    }
#else
    (void)sums, (void)e, (void)end, (void)in, (void)step, (void)group, (void)tile_rows, (void)tile_cols, (void)stride;
#endif
}

/* All residuals of a group are read before anything is written: a group may contain its last channel twice. */
INLINE void add_residual(vec *sums, const struct tile *t, const struct conv *op, const int32_t *channels,
                         const int group, const int tile_rows, const int tile_cols)
{
    const int64_t pitch = op->residual.pitch, row = op->residual.row;
    if (op->residual.at == ABSENT) return;
    EACH(m, group) {
        const char *residual = t->residual + channels[m] * pitch;
        EACH(i, tile_rows * tile_cols) sums[m * tile_rows * tile_cols + i] += load(CELL(residual, i, row));
    }
}

/* Where regions are larger than the image, cells outside of it must be zero: they are the padding of the next layer. */
INLINE void mask_sums(vec *sums, const struct tile *t, const struct conv *op, const int group, const int tile_rows,
                      const int tile_cols)
{
    const int64_t row = (int64_t)op->cols * VECTOR;
    if (op->mask == ABSENT) return;
    EACH(i, tile_rows * tile_cols) {
        EACH(m, group)
            sums[m * tile_rows * tile_cols + i] = masked(sums[m * tile_rows * tile_cols + i], CELL(t->mask, i, row));
    }
}

/* Writes the cells at both ends of a row to the halos of the regions at the right and left. */
INLINE void store_ends(const vec *sums, char *to, const struct edges *edges, const int tile_cols)
{
    if (edges->left.cells) store(to - VECTOR, from_side(sums[tile_cols - 1], &edges->left, edges->left.shift));
    if (edges->right.cells) store(to + tile_cols * VECTOR, from_side(sums[0], &edges->right, edges->right.shift));
}

/* Writes a row of the halo, with its corners. */
INLINE void store_edge_row(const vec *sums, char *to, const struct side *side, const struct edges *edges,
                           const int tile_cols)
{
    vec moved[MAX_SUMS];
    EACH(c, tile_cols) {
        moved[c] = from_side(sums[c], side, side->shift);
        store(to + c * VECTOR, moved[c]);
    }
    store_ends(moved, to, edges, tile_cols);
}

/* Writes the cells of a tile that are in the halos of neighboring regions, from registers. The tile is as wide as the
 * region and starts at `row` of its `rows`, which are `distance` bytes apart. */
INLINE void store_edges(const vec *sums, char *out, int64_t distance, const struct edges *edges, int row, int rows,
                        const int tile_rows, const int tile_cols)
{
    EACH(r, tile_rows) store_ends(sums + r * tile_cols, out + r * distance, edges, tile_cols);
    if (edges->below.cells && row == 0) store_edge_row(sums, out + rows * distance, &edges->below, edges, tile_cols);
    if (edges->above.cells && row + tile_rows == rows)
        store_edge_row(sums + (tile_rows - 1) * tile_cols, out - (row + 1) * distance, &edges->above, edges, tile_cols);
}

/* Clears a row of the halo outside of the image, with its corners. */
INLINE void clear_edge_row(char *to, const struct edges *edges, const int tile_cols)
{
    EACH(c, tile_cols) store(to + c * VECTOR, splat(0));
    if (edges->left.cells) store(to - VECTOR, splat(0));
    if (edges->right.cells) store(to + tile_cols * VECTOR, splat(0));
}

/* Writes the first and last rows of a slice to its halo buffer (one row, as wide as the tile) if a neighboring slice
 * receives them. At the top and bottom of the image, clears the halo instead. */
INLINE void store_sent_rows(const vec *sums, const struct tile *t, const struct conv *op, char *out, int64_t distance,
                            const struct edges *edges, char *buffer, const int tile_rows, const int tile_cols)
{
    const int for_above = edges->recv_below, for_below = edges->recv_above;
    if (t->row == 0) {
        if (t->topmost && edges->recv_above) clear_edge_row(out - distance, edges, tile_cols);
        if (!t->topmost && for_above) {
            EACH(c, tile_cols) store(buffer + c * VECTOR, sums[c]);
        }
    }
    if (t->row + tile_rows == op->rows) {
        if (t->lowest && edges->recv_below) clear_edge_row(out + tile_rows * distance, edges, tile_cols);
        if (!t->lowest && for_below) {
            buffer += for_above * op->channels * tile_cols * VECTOR;
            EACH(c, tile_cols) store(buffer + c * VECTOR, sums[(tile_rows - 1) * tile_cols + c]);
        }
    }
}

/* Stores the output, or the second output. */
INLINE void store_sums(const vec *sums, const struct tile *t, const struct conv *op, const int second,
                       const int32_t *channels, const int group, const int tile_rows, const int tile_cols)
{
    const struct planes *planes = second ? &op->second : &op->out;
    const struct edges *edges = t->edges ? t->edges + second : NULL;
    const int64_t pitch = planes->pitch, row = planes->row;
    EACH(m, group) {
        const vec *own = sums + m * tile_rows * tile_cols;
        char *out = (second ? t->second : t->out) + channels[m] * pitch;
        EACH(i, tile_rows * tile_cols) store(CELL(out, i, row), own[i]);
        if (edges) store_edges(own, out, row, edges, t->row, op->rows, tile_rows, tile_cols);
        if (edges && (edges->recv_above || edges->recv_below)) {
            char *buffer = (second ? t->second_halo_buffer : t->halo_buffer) + channels[m] * tile_cols * VECTOR;
            store_sent_rows(own, t, op, out, row, edges, buffer, tile_rows, tile_cols);
        }
    }
}

/* The last step of most layers, with the sums in registers. */
INLINE void finish(vec *sums, const struct tile *t, const struct conv *op, const int32_t *channels, const int group,
                   const int tile_rows, const int tile_cols)
{
    const int n = tile_rows * tile_cols;
    add_residual(sums, t, op, channels, group, tile_rows, tile_cols);
    if (op->act.kind == RELU) {
        EACH(i, group * n) sums[i] = relu(sums[i]);
    }
    mask_sums(sums, t, op, group, tile_rows, tile_cols);
    if (op->out.at != ABSENT) store_sums(sums, t, op, 0, channels, group, tile_rows, tile_cols);
    if (op->second.at != ABSENT) {
        EACH(m, group) {
            EACH(i, n) sums[m * n + i] = sums[m * n + i] * t->scale[channels[m]] + t->shift[channels[m]];
        }
        if (op->second_act.kind == RELU) {
            EACH(i, group * n) sums[i] = relu(sums[i]);
        }
        mask_sums(sums, t, op, group, tile_rows, tile_cols);
        store_sums(sums, t, op, 1, channels, group, tile_rows, tile_cols);
    }
}

/* Masks sums in memory and stores them. */
static void store_any(const vec *sums, const struct tile *t, char *to, const struct planes *planes,
                      const int32_t *channels, int group, int tile_cols, int n)
{
    const int row = t->op->cols * VECTOR, unmasked = t->op->mask == ABSENT;
    for (int m = 0; m < group; m++) {
        char *out = to + channels[m] * (int64_t)planes->pitch;
        for (int i = 0; i < n; i++) {
            const vec v = sums[m * n + i];
            store(CELL(out, i, planes->row), unmasked ? v : masked(v, CELL(t->mask, i, row)));
        }
    }
}

/* The last step of any layer, on sums in memory. */
static __attribute__((noinline)) void finish_any(const struct tile *t, const int32_t *channels, int group,
                                                 int tile_cols, int n)
{
    const struct conv *op = t->op;
    vec *sums = t->spare;
    for (int m = 0; m < group; m++) {
        const char *residual = t->residual + channels[m] * (int64_t)op->residual.pitch;
        for (int i = 0; i < n; i++) {
#if WEIGHT_BITS == 8
            sums[m * n + i] = sums[m * n + i] * t->weight_scale[channels[m]] + t->bias[channels[m]];
#endif
            if (op->residual.at != ABSENT) sums[m * n + i] += load(CELL(residual, i, op->residual.row));
        }
    }
    activate(sums, group * n, &op->act);
    if (op->out.at != ABSENT) store_any(sums, t, t->out, &op->out, channels, group, tile_cols, n);
    if (op->second.at == ABSENT) return;
    for (int m = 0; m < group; m++)
        for (int i = 0; i < n; i++) sums[m * n + i] = sums[m * n + i] * t->scale[channels[m]] + t->shift[channels[m]];
    activate(sums, group * n, &op->second_act);
    store_any(sums, t, t->second, &op->second, channels, group, tile_cols, n);
}

/* Prefetches the cells of an operand that the next group will use. */
INLINE void prefetch_cells(const char *at, const struct planes *planes, const int32_t *channels, const int group,
                           const int tile_rows, const int tile_cols)
{
    const int64_t pitch = planes->pitch, row = planes->row;
    EACH(m, group) {
        const char *cells = at + channels[m] * pitch;
        EACH(i, tile_rows * tile_cols) __builtin_prefetch(CELL(cells, i, row), 1);
    }
}

/* A rectangle of tiles of the output, numbered by rows or by columns, of which `first` to `last - 1` are computed. */
struct area {
    int row, col, tile_rows, tile_cols, tiles_down, tiles_across, first, last;
    int first_group, last_group;
};

INLINE struct tile tile_at(const struct conv *op, const struct frame *f, int row, int col)
{
    const int64_t x = (int64_t)col * VECTOR;
    const int64_t scratch_size = (int64_t)op->channels * op->tile_rows * op->tile_cols * VECTOR;
    struct tile t = {.op = op, .row = row};
    t.bias = (const float *)(f->constants + op->bias);
    t.weight_scale = (const float *)(f->constants + op->weight_scale);
    t.scale = (const float *)(f->constants + op->scale);
    t.shift = (const float *)(f->constants + op->shift);
    t.in = f->arena + op->x.at + (int64_t)row * op->stride_rows * op->x.row + x * op->stride_cols;
    t.residual = f->arena + op->residual.at + (int64_t)row * op->residual.row + x;
    t.mask = f->constants + op->mask + (int64_t)row * op->cols * VECTOR + x;
    t.out = f->arena + op->out.at + (int64_t)row * op->out.row + x;
    t.second = f->arena + op->second.at + (int64_t)row * op->second.row + x;
    t.scratch = f->arena + op->scratch + f->part * scratch_size;
    t.halo_buffer = f->arena + op->halo_buffer;
    t.second_halo_buffer = f->arena + op->second_halo_buffer;
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
    int usual; /* no activation other than ReLU, no 8-bit weights */
};

/* Computes a tile of one output channel after the other, all sums in registers. In very sparse layers a channel takes
 * only a few dozen multiply-adds, so other instructions matter: channels are not reordered, and all addresses advance
 * by a fixed distance. `first` and `last` are those of the block; specialized kernels pass them as constants.
 */
INLINE void conv_channels(const struct tile *given, const struct conv *op, const struct block *b, int channel,
                          const int first, const int last, const int tile_rows, const int tile_cols, const int stride)
{
    static const int32_t here[] = {0}, next[] = {1};
    const int n = tile_rows * tile_cols;
    const intptr_t row = (intptr_t)op->stride_rows * op->x.row;
    const struct entry *e = b->entries + b->starts[0];
    struct tile t = *given;
    t.bias += channel, t.scale += channel, t.shift += channel;
    t.out += channel * (int64_t)op->out.pitch;
    t.second += channel * (int64_t)op->second.pitch;
    t.residual += channel * (int64_t)op->residual.pitch;
    t.scratch += channel * (int64_t)n * VECTOR;
    t.halo_buffer += channel * tile_cols * VECTOR;
    t.second_halo_buffer += channel * tile_cols * VECTOR;
    OPAQUE(t.in);
    for (const int32_t *start = b->starts, *end = start + b->groups; start != end;) {
        const struct entry *stop = b->entries + *++start, *fours = end_of_fours(e, stop, 1);
        vec sums[MAX_SUMS];
        if (first)
            start_sums(sums, &t, here, 1, n);
        else
            load_partial(sums, t.scratch, here, 1, n);
        if (last && op->prefetch) {
            prefetch_cells(t.out, &op->out, next, 1, tile_rows, tile_cols);
            if (op->residual.at != ABSENT) prefetch_cells(t.residual, &op->residual, next, 1, tile_rows, tile_cols);
        }
        multiply_fours(sums, e, fours, t.in, row, 1, tile_rows, tile_cols, stride);
        multiply_entries(sums, fours, stop, t.in, row, 1, tile_rows, tile_cols, stride);
        if (!last) {
            store_partial(sums, t.scratch, here, 1, n);
        } else if (b->usual) {
            finish(sums, &t, op, here, 1, tile_rows, tile_cols);
        } else {
            const int32_t number = channel + (int32_t)(start - b->starts) - 1;
            EACH(i, n) t.spare[i] = sums[i];
            finish_any(given, &number, 1, tile_cols, n);
        }
        t.bias++, t.scale++, t.shift++;
        t.out += op->out.pitch;
        t.second += op->second.pitch;
        t.residual += op->residual.pitch;
        t.scratch += n * VECTOR;
        t.halo_buffer += tile_cols * VECTOR;
        t.second_halo_buffer += tile_cols * VECTOR;
        e = stop;
    }
}

/* The same for groups of output channels. They give a small tile enough independent sums to hide the latency of a
 * multiply-add. Their weights are interleaved; channels with similar numbers of weights are in one group. */
INLINE void conv_groups(const struct tile *t, const struct conv *op, const struct block *b, const int group,
                        const int tile_rows, const int tile_cols, const int stride)
{
    const int n = tile_rows * tile_cols;
    const intptr_t row = (intptr_t)op->stride_rows * op->x.row;
    const int32_t *channels = b->order;
    const struct entry *e = b->entries + (int64_t)b->starts[0] * group;
    for (const int32_t *start = b->starts, *end = start + b->groups; start != end; channels += group) {
        const struct entry *stop = b->entries + (int64_t)(*++start) * group, *fours = end_of_fours(e, stop, group);
        vec sums[MAX_SUMS];
        if (b->first)
            start_sums(sums, t, channels, group, n);
        else
            load_partial(sums, t->scratch, channels, group, n);
        if (b->last && op->prefetch) {
            prefetch_cells(t->out, &op->out, channels + group, group, tile_rows, tile_cols);
            if (op->residual.at != ABSENT)
                prefetch_cells(t->residual, &op->residual, channels + group, group, tile_rows, tile_cols);
        }
        multiply_fours(sums, e, fours, t->in, row, group, tile_rows, tile_cols, stride);
        multiply_entries(sums, fours, stop, t->in, row, group, tile_rows, tile_cols, stride);
        if (!b->last) {
            store_partial(sums, t->scratch, channels, group, n);
        } else if (b->usual) {
            finish(sums, t, op, channels, group, tile_rows, tile_cols);
        } else {
            EACH(i, group * n) t->spare[i] = sums[i];
            finish_any(t, channels, group, tile_cols, n);
        }
        e = stop;
    }
}

/* A block of input channels of one tile. */
INLINE void conv_block(const struct tile *t, const struct conv *op, const struct block *b, int first_group,
                       const int specialized, const int group, const int tile_rows, const int tile_cols,
                       const int stride)
{
    if (group > 1)
        conv_groups(t, op, b, group, tile_rows, tile_cols, stride);
    else if (op->blocks == 1)
        conv_channels(t, op, b, first_group, 1, 1, tile_rows, tile_cols, stride);
    else if (!specialized) /* one copy for all blocks, so that general kernels build faster */
        conv_channels(t, op, b, first_group, b->first, b->last, tile_rows, tile_cols, stride);
    else if (b->first)
        conv_channels(t, op, b, first_group, 1, 0, tile_rows, tile_cols, stride);
    else if (b->last)
        conv_channels(t, op, b, first_group, 0, 1, tile_rows, tile_cols, stride);
    else
        conv_channels(t, op, b, first_group, 0, 0, tile_rows, tile_cols, stride);
}

/* Tiles are the outer loop, so that their pixels stay in the first-level cache while weights are read. If all
 * input channels of a tile are too large for that cache, they are read in blocks, with partial sums in between. */
INLINE void conv_tiles(const struct conv *given, const struct edges *edges, const struct frame *f, const struct area *a,
                       const int specialized, const int group, const int tile_rows, const int tile_cols,
                       const int stride)
{
    const struct conv op = *given; /* a copy: stored results cannot alias it */
    const int32_t *starts = (const int32_t *)(f->constants + op.starts) + a->first_group;
    const int32_t *order = (const int32_t *)(f->constants + op.order) + a->first_group * group;
    const int32_t *bases = (const int32_t *)(f->constants + op.bases);
    struct block b = {.entries = (const struct entry *)(f->constants + op.entries)};
    const int length = op.column_order ? a->tiles_down : a->tiles_across;
    int line = a->first / length, place = a->first % length;
    vec spare[MAX_SUMS];

    b.groups = a->last_group - a->first_group;
    b.usual = WEIGHT_BITS != 8 && op.act.kind <= RELU && op.second_act.kind <= RELU;
    for (int left = a->last - a->first; left > 0; left--) {
        const int row = op.column_order ? place : line, col = op.column_order ? line : place;
        struct tile t = tile_at(&op, f, a->row + row * tile_rows, a->col + col * tile_cols);
        const char *corner = t.in;
        t.spare = spare;
        t.edges = edges;
        for (int block = 0; block < op.blocks; block++) {
            b.starts = starts + block * op.groups;
            b.order = order + block * op.groups * group;
            b.first = block == 0;
            b.last = block + 1 == op.blocks;
            t.in = corner + bases[block];
            conv_block(&t, &op, &b, a->first_group, specialized, group, tile_rows, tile_cols, stride);
        }
        if (++place == length) place = 0, line++;
    }
}

/* TILES lists the general kernels, T(channels, rows, cols, stride). If several compilers run in parallel, each
 * defines the kernels in TILES, and declares those in TILES_ELSEWHERE. */
typedef void tiles_function(const struct conv *, const struct frame *, const struct area *);

#ifdef TILES_ELSEWHERE
#define SHARED_TILES __attribute__((visibility("hidden")))
#else
#define SHARED_TILES static
#define TILES_ELSEWHERE(T)
#define VARIANTS_ELSEWHERE(F)
#endif

#define DEFINE_TILE(channels, rows, cols, stride) \
    SHARED_TILES void tiles_##channels##_##rows##_##cols##_##stride(const struct conv *op, const struct frame *f, \
                                                                    const struct area *a) \
    { \
        if (channels * rows * cols <= MAX_SUMS) conv_tiles(op, NULL, f, a, 0, channels, rows, cols, stride); \
    }
TILES(DEFINE_TILE)

#define DECLARE_TILE(channels, rows, cols, stride) \
    SHARED_TILES tiles_function tiles_##channels##_##rows##_##cols##_##stride;
TILES_ELSEWHERE(DECLARE_TILE)

#define KEY(channels, rows, cols, stride) (4 * (32 * (32 * (channels) + (rows)) + (cols)) + (stride))
#define CASE_TILE(channels, rows, cols, stride) \
    case KEY(channels, rows, cols, stride): return tiles_##channels##_##rows##_##cols##_##stride;

static tiles_function *find_kernel(int channels, int rows, int cols, int stride)
{
    if (cols == 1) stride = 1; /* a single column has no stride */
    switch (KEY(channels, rows, cols, stride)) {
        TILES(CASE_TILE) TILES_ELSEWHERE(CASE_TILE)
    }
    return NULL;
}

/* VARIANTS lists the kernels that are specialized for the layers of one network, V(number, {struct variant}): the
 * compiler knows all distances and counts and which operands are absent; addresses come from the plan. */
struct variant {
    struct conv op;
    int32_t writes_edges;
    struct edges edges[2]; /* of the two outputs */
};

INLINE void put_at(struct planes *planes, const struct planes *given)
{
    if (planes->at == ABSENT) return;
    if (given->at == ABSENT) __builtin_unreachable();
    planes->at = given->at;
}

INLINE void conv_specialized(const struct variant *variant, const struct conv *given, const struct frame *f,
                             const struct area *given_area)
{
    struct conv op = variant->op;
    struct area a = *given_area;
    put_at(&op.x, &given->x);
    put_at(&op.out, &given->out);
    put_at(&op.residual, &given->residual);
    put_at(&op.second, &given->second);
    op.entries = given->entries, op.starts = given->starts, op.bases = given->bases, op.order = given->order;
    op.bias = given->bias, op.weight_scale = given->weight_scale, op.scale = given->scale, op.shift = given->shift;
    op.scratch = given->scratch, op.groups = given->groups;
    op.halo_buffer = given->halo_buffer, op.second_halo_buffer = given->second_halo_buffer;
    if (op.mask != ABSENT) op.mask = given->mask;
    a.tiles_across =
        variant->op.cols / variant->op.tile_cols; /* a constant, unlike tiles_down, which depends on bands */
    conv_tiles(&op, variant->writes_edges ? variant->edges : NULL, f, &a, 1, variant->op.tile_channels,
               variant->op.tile_rows, variant->op.tile_cols, variant->op.tile_cols == 1 ? 1 : variant->op.stride_cols);
}

#define DEFINE_VARIANT(number, ...) \
    SHARED_TILES void variant_##number(const struct conv *op, const struct frame *f, const struct area *a) \
    { \
        static const struct variant variant = __VA_ARGS__; \
        conv_specialized(&variant, op, f, a); \
    }
VARIANTS(DEFINE_VARIANT)

#define DECLARE_VARIANT(number, ...) SHARED_TILES tiles_function variant_##number;
VARIANTS_ELSEWHERE(DECLARE_VARIANT)

#define VARIANT_NAME(number, ...) [number] = variant_##number,
static tiles_function *const variants[] = {NULL, VARIANTS(VARIANT_NAME) VARIANTS_ELSEWHERE(VARIANT_NAME)};

INLINE void conv_area(const struct conv *op, const struct frame *f, const struct area *a)
{
    if (op->variant && a->tile_rows == op->tile_rows && a->tile_cols == op->tile_cols)
        variants[op->variant](op, f, a);
    else
        find_kernel(op->tile_channels, a->tile_rows, a->tile_cols, op->stride_cols)(op, f, a);
}

/* Computes this thread's tiles of an area. The remainder of an even division is in the middle; the channels of these
 * tiles can be split. */
static void conv_part(const struct conv *op, const struct frame *f, struct area a, int left_over)
{
    const int tiles = a.last, each = op->channel_split == ALL_TILES ? 0 : tiles / f->parts;
    const int few = tiles - each * f->parts, middle = f->parts / 2 * each;
    if (f->parts > 1 && op->channel_split != NO_TILES && few > 0) {
        const int32_t *parts = (const int32_t *)(f->constants + op->parts) + f->part;
        struct area rest = a;
        rest.first = middle, rest.last = middle + few;
        rest.first_group = parts[0], rest.last_group = parts[1];
        if (rest.first_group < rest.last_group) conv_area(op, f, &rest);
        a.first = f->part * each < middle ? f->part * each : f->part * each + few;
        a.last = a.first + each;
    } else {
        const struct range s = left_over ? rest_of(f, tiles) : part_of(f, tiles);
        a.first = s.first, a.last = s.last;
    }
    if (a.first < a.last) conv_area(op, f, &a);
}

/* Whole tiles first; rows and columns that are left over are computed one by one. */
LOCAL void conv_rows(const struct conv *op, const struct frame *f, int first, int last)
{
    const int whole_rows = (last - first) / op->tile_rows * op->tile_rows;
    const int whole_cols = op->cols / op->tile_cols * op->tile_cols;
    for (int below = 0; below < 2; below++) {
        const int tile_rows = below ? 1 : op->tile_rows;
        const int row = below ? first + whole_rows : first, rows = below ? last - row : whole_rows;
        for (int beside = 0; beside < 2; beside++) {
            const int tile_cols = beside ? 1 : op->tile_cols;
            const int col = beside ? whole_cols : 0, cols = beside ? op->cols - col : whole_cols;
            if (rows == 0 || cols == 0) continue;
            const int tiles_down = rows / tile_rows, tiles_across = cols / tile_cols, tiles = tiles_down * tiles_across;
            const struct area a = {row, col, tile_rows, tile_cols, tiles_down, tiles_across, 0, tiles, 0, op->groups};
            conv_part(op, f, a, below || beside);
        }
    }
}

LOCAL void run_conv(const struct conv *op, const struct frame *f) { conv_rows(op, f, 0, op->rows); }
