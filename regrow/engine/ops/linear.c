/* Fully connected layers, on feature vectors. */
#include "activate.h"
#include "frame.h"
#include "weights.h"

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

LOCAL void run_linear(const struct linear *op, const struct frame *f)
{
    const char *in = locate(f, op->x), *weights = f->constants + op->weights;
    const int32_t *starts = (const int32_t *)(f->constants + op->starts);
    const struct range s = part_of(f, (op->outputs + LANES - 1) / LANES);
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
        if (WEIGHT_BITS == 8) v *= load(f->constants + op->weight_scale + at);
        v += load(f->constants + op->bias + at);
        activate(&v, 1, &op->act);
        __builtin_memcpy(out + first, &v, (size_t)count * sizeof *out);
    }
}
