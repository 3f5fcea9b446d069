/* Maximum and average over windows, and the mean of each channel. */
#include "frame.h"

INLINE vec pool_window(const char *corner, int64_t row, const int rows, const int cols, const int maximum)
{
    vec v = maximum ? load(corner) : splat(0);
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < cols; j++) {
            const vec x = load(corner + i * row + j * VECTOR);
            v = maximum ? choose(x != x, x, max(x, v)) : v + x; /* NaN is the largest, as in torch */
        }
    }
    return v;
}

LOCAL void run_pool(const struct pool *op, const struct frame *f)
{
    const struct range s = part_of(f, op->channels);
    const int kernel_rows = op->kernel_rows, kernel_cols = op->kernel_cols, step = op->stride_cols * VECTOR;
    const int usual = op->maximum && kernel_rows == 3 && kernel_cols == 3; /* the compiler unrolls its loops */
    const int single = op->maximum && kernel_rows == 1 && kernel_cols == 1; /* cells outside of the image stay zero */
    for (int channel = s.first; channel < s.last; channel++) {
        const char *in = f->arena + op->x.at + (int64_t)channel * op->x.pitch;
        char *out = f->arena + op->out.at + (int64_t)channel * op->out.pitch;
        for (int row = 0; row < op->rows; row++, in += op->stride_rows * (int64_t)op->x.row, out += op->out.row) {
            if (single) {
                for (int col = 0; col < op->cols; col++) store(out + col * VECTOR, load(in + col * step));
                continue;
            }
            for (int col = 0; col < op->cols; col++) {
                const int64_t pixel = (int64_t)(row * op->cols + col) * VECTOR;
                vec v = usual ? pool_window(in + col * step, op->x.row, 3, 3, 1)
                              : pool_window(in + col * step, op->x.row, kernel_rows, kernel_cols, op->maximum);
                if (!op->maximum)
                    v *= op->weights == ABSENT ? splat(op->scale) : load(f->constants + op->weights + pixel);
                if (op->mask != ABSENT) v = masked(v, f->constants + op->mask + pixel);
                store(out + col * VECTOR, v);
            }
        }
    }
}

LOCAL void run_mean(const struct mean *op, const struct frame *f)
{
    const struct range s = part_of(f, op->channels);
    float *out = (float *)locate(f, op->out);
    for (int channel = s.first; channel < s.last; channel++) {
        const char *in = f->arena + op->x.at + (int64_t)channel * op->x.pitch;
        vec v = splat(0);
        for (int row = 0; row < op->rows; row++)
            for (int col = 0; col < op->cols; col++) v += load(in + row * op->x.row + col * VECTOR);
        float sum = 0;
        for (int l = 0; l < LANES; l++) sum += v[l];
        out[channel] = sum * op->scale;
    }
}
