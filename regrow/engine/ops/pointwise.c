/* Element-wise operations: act(scale * a + shift), act(a + b) or act(a * b). */
#include "activate.h"
#include "frame.h"

LOCAL void run_pointwise(const struct pointwise *op, const struct frame *f)
{
    const struct range s = part_of(f, op->channels);
    const float *scales = (const float *)(f->constants + op->scale),
                *shifts = (const float *)(f->constants + op->shift);
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
                if (op->scale != ABSENT)
                    v *= op->features ? load((const char *)(scales + first)) : splat(scales[first]);
                if (op->shift != ABSENT)
                    v += op->features ? load((const char *)(shifts + first)) : splat(shifts[first]);
                activate(&v, 1, &op->act);
                if (op->mask != ABSENT) v = masked(v, f->constants + op->mask + pixel);
                store(out + row * op->out.row + col * VECTOR, v);
            }
        }
    }
}
