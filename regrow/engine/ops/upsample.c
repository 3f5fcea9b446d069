/* Nearest and bilinear upsampling: every output pixel is one pixel of the input, or a weighted sum of four. */
#include "frame.h"

static void copy_pixels(float *out, const float *x, const int32_t *table, int count)
{
    for (int i = 0; i < count; i++) out[i] = table[i] < 0 ? 0 : x[table[i]];
}

static void sum_pixels(float *out, const float *x, const int32_t *table, const float *weights, int count)
{
    for (int i = 0; i < count; i++) {
        const int32_t *at = table + i;
        const float *w = weights + i;
        out[i] = 0;
        if (*at < 0) continue; /* outside of the image; a weight of zero would turn infinity into NaN */
        for (int tap = 0; tap < 4; tap++, at += count, w += count) out[i] += *w * x[*at];
    }
}

LOCAL void run_upsample(const struct upsample *op, const struct frame *f)
{
    const struct range s = part_of(f, op->channels);
    const int32_t *table = (const int32_t *)(f->constants + op->table);
    for (int channel = s.first; channel < s.last; channel++) {
        const float *x = (const float *)locate(f, op->x) + (int64_t)channel * op->x_pitch;
        float *out = (float *)locate(f, op->out) + (int64_t)channel * op->out_pitch;
        if (op->weights == ABSENT)
            copy_pixels(out, x, table, op->count);
        else
            sum_pixels(out, x, table, (const float *)(f->constants + op->weights), op->count);
    }
}
