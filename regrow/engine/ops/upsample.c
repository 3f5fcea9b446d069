/* Nearest and bilinear upsampling: every output pixel is one pixel of the input, or a weighted sum of four. */
#include "frame.h"

LOCAL void run_upsample(const struct upsample *op, const struct frame *f)
{
    const struct range s = part_of(f, op->channels);
    const int32_t *table = (const int32_t *)(f->constants + op->table);
    const float *weights = (const float *)(f->constants + op->weights);
    for (int channel = s.first; channel < s.last; channel++) {
        const float *x = (const float *)locate(f, op->x) + (int64_t)channel * op->x_pitch;
        float *out = (float *)locate(f, op->out) + (int64_t)channel * op->out_pitch;
        for (int i = 0; i < op->count; i++) {
            float sum = 0;
            for (int tap = 0; tap < op->taps && table[i] >= 0; tap++) {
                const int64_t at = (int64_t)tap * op->count + i;
                sum += op->taps == 1 ? x[table[at]] : weights[at] * x[table[at]];
            }
            out[i] = sum;
        }
    }
}
