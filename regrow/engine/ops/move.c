/* Copies between memory layouts, and halos. */
#include "frame.h"
#include "side.h"

#ifndef HALOS /* the build defines it: see `Kernels` of regrow.engine.codegen.build */
#define HALOS(H)
#endif

/* Channels that are copied together, so that the table is read once. */
enum { AT_ONCE = 4 };

/* Copies LANES floats of a few channels from the positions in `table`. The caller's output may be unaligned. */
INLINE void gather(float *to, int64_t to_pitch, const float *from, int64_t from_pitch, const int32_t *table, float fill,
                   int channels)
{
#if LANES == 16 && defined(__AVX512F__)
    const __m512i at = _mm512_loadu_si512(table);
    const __mmask16 inside = _mm512_cmpge_epi32_mask(at, _mm512_setzero_si512());
    for (; channels > 0; channels--, to += to_pitch, from += from_pitch)
        _mm512_storeu_ps(to, _mm512_mask_i32gather_ps(_mm512_set1_ps(fill), inside, at, from, 4));
#else
    /* Single loads are faster than a gather instruction, and reading the first float instead of a missing one is
     * faster than a branch. */
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

/* Copies LANES vectors whose lanes hold successive floats: reads them lane by lane and transposes them, by interleaving
 * the first half with the second log2(LANES) times. */
static void copy_run(float *to, const float *from, const int32_t *table)
{
    vec v[LANES], w[LANES];
    EACH(l, LANES) __builtin_memcpy(v + l, from + table[l], sizeof *v);
    UNROLL
    for (int size = 1; size < LANES; size *= 2) {
        EACH(i, LANES / 2) {
            w[2 * i] = INTERLEAVE(v[i], v[i + LANES / 2], LOWER);
            w[2 * i + 1] = INTERLEAVE(v[i], v[i + LANES / 2], UPPER);
        }
        EACH(i, LANES) v[i] = w[i];
    }
    EACH(l, LANES) __builtin_memcpy(to + l * LANES, v + l, sizeof *v);
}

/* Copies floats first to last - 1 of a few channels; the last ones one by one, if they do not fill a vector. */
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

LOCAL void run_gather(const struct gather *op, const struct frame *f)
{
    const int by_channel = op->channels >= 2 * AT_ONCE * f->parts; /* so that no run is cut */
    const struct range s = by_channel ? (struct range){0, op->count} : part_of(f, op->count);
    const struct range own = by_channel ? part_of(f, op->channels) : (struct range){0, op->channels};
    const int first_of_slice = op->tables > 1 ? f->slice * op->count : 0;
    const int32_t *table = (const int32_t *)(f->constants + op->table) + first_of_slice;
    const int32_t *runs = (const int32_t *)(f->constants + op->runs);
    for (int channel = own.first; channel < own.last; channel += AT_ONCE) {
        const float *from = (const float *)locate(f, op->from) + (int64_t)channel * op->from_pitch;
        float *to = (float *)locate(f, op->to) + (int64_t)channel * op->to_pitch;
        const int channels = own.last - channel < AT_ONCE ? own.last - channel : AT_ONCE;
        int done = s.first;
        if (op->table == ABSENT) { /* a plain copy, of one channel */
            __builtin_memcpy(to + s.first, from + s.first, (size_t)(s.last - s.first) * sizeof *to);
            continue;
        }
        for (int run = 0; run < op->run_count; run++) {
            const int first = runs[run] * LANES, last = first + LANES * LANES;
            if (first < s.first || last > s.last) continue; /* not all in this thread's part */
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
    const struct side side = *given; /* a copy: the cells cannot alias it */
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

/* HALOS lists the halos that are specialized for one network: H(number, bytes from channel to channel, count of sides,
 * struct side ...). */
#define DEFINE_HALO(number, pitch, count, ...) \
    static void halo_##number(char *plane, int channels) \
    { \
        static const struct side sides[] = {__VA_ARGS__}; \
        for (; channels > 0; channels--, plane += pitch) { \
            EACH(i, count) fill_side(plane, 0, 1, sides + i, sides[i].shift); \
        } \
    }
HALOS(DEFINE_HALO)

typedef void halo_function(char *, int);
#define HALO_NAME(number, ...) halo_##number,
static halo_function *const halos[] = {NULL, HALOS(HALO_NAME)};

/* Fills all sides for as many channels as fit in the first-level cache, then for the next channels. */
LOCAL void run_halo(const struct halo *op, const struct frame *f)
{
    enum { NEAR = 16384 };
    const struct side *sides = (const struct side *)(f->constants + op->sides);
    const struct range s = part_of(f, op->channels);
    const int64_t pitch = op->image.pitch;
    const int count = op->above + op->below + op->left + op->right;
    if (op->variant) {
        halos[op->variant](f->arena + op->image.at + s.first * pitch, s.last - s.first);
        return;
    }
    const int chunk = pitch < NEAR ? (int)(NEAR / pitch) : 1;
    for (int channel = s.first; channel < s.last; channel += chunk) {
        const int some = s.last - channel < chunk ? s.last - channel : chunk;
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
