/* Halo exchange between threads that each compute a slice of the image's rows.
 *
 * A slice is computed in its own arena. After every layer, its first and last rows go into a halo buffer, where they
 * lie close together: reading them from the image would take other cache lines away from the core that works on it. The
 * neighboring slices receive them from there.
 */
#include "halo_exchange.h"

/* One thread's slice of an image. */
struct slice_run {
    struct thread_pool *pool;
    struct frame frame;
    int64_t arena_bytes;
};

/* These loop over channels for each cell of a row: there are many channels and few cells. */
INLINE void clear_cells(char *to, int64_t pitch, int channels)
{
    for (; channels > 0; channels--, to += pitch) store(to, splat(0));
}

INLINE void copy_cells(char *to, int64_t to_pitch, const char *from, int64_t from_pitch, int channels)
{
    for (; channels > 0; channels--, to += to_pitch, from += from_pitch) store(to, load(from));
}

INLINE void move_cells(char *to, int64_t to_pitch, const char *from, int64_t from_pitch, int channels,
                       const struct side *side)
{
    const ivec lanes = side->lanes, mask = side->mask; /* copies: the cells cannot alias them */
    for (; channels > 0; channels--, to += to_pitch, from += from_pitch) store(to, permute(load(from), lanes, mask));
}

INLINE char *row_of(const struct halo_rows *b, const struct frame *f, int row)
{
    return f->arena + b->image.at + row * (int64_t)b->image.row;
}

static void send_rows(const struct halo_rows *b, const struct frame *f, char *buffer, int row, int rows)
{
    const int64_t buffer_pitch = (int64_t)rows * b->cols * VECTOR;
    for (int last = row + rows; row < last; row++)
        for (int col = 0; col < b->cols; col++, buffer += VECTOR)
            copy_cells(buffer, buffer_pitch, row_of(b, f, row) + col * VECTOR, b->image.pitch, b->channels);
}

/* Receives a row with one halo cell at each end, the usual case: the cells of a channel are read once. */
INLINE void recv_row(const struct halo_rows *b, const struct side *sides, char *cells, const char *buffer,
                     const int cols)
{
    const int64_t pitch = b->image.pitch;
    const ivec left_lanes = sides[0].lanes, left_mask = sides[0].mask;
    const ivec right_lanes = sides[1].lanes, right_mask = sides[1].mask;
    for (int channels = b->channels; channels > 0; channels--, cells += pitch, buffer += cols * VECTOR) {
        EACH(c, cols) store(cells + c * VECTOR, load(buffer + c * VECTOR));
        store(cells - VECTOR, permute(load(buffer + (cols - 1) * VECTOR), left_lanes, left_mask));
        store(cells + cols * VECTOR, permute(load(buffer), right_lanes, right_mask));
    }
}

/* Fills rows of the halo, with their ends in the halos of the neighboring lanes. */
static void recv_rows(const struct halo_rows *b, const struct frame *f, const char *buffer, int row, int rows)
{
    const struct side *sides = (const struct side *)(f->constants + b->sides);
    const int64_t buffer_pitch = (int64_t)rows * b->cols * VECTOR;
    if (rows == 1 && b->left == 1 && b->right == 1) {
        switch (b->cols) { /* images of 8, 16 and 32 columns in eight lanes */
        case 1: recv_row(b, sides, row_of(b, f, row), buffer, 1); return;
        case 2: recv_row(b, sides, row_of(b, f, row), buffer, 2); return;
        case 4: recv_row(b, sides, row_of(b, f, row), buffer, 4); return;
        default: break;
        }
    }
    for (int last = row + rows; row < last; row++, buffer += b->cols * VECTOR) {
        char *cells = row_of(b, f, row);
        for (int col = 0; col < b->cols; col++)
            copy_cells(cells + col * VECTOR, b->image.pitch, buffer + col * VECTOR, buffer_pitch, b->channels);
        for (int j = 0; j < b->left + b->right; j++) {
            const int to = (j < b->left ? j - b->left : b->cols + j - b->left) * VECTOR;
            const char *from = buffer + to + sides[j].from - sides[j].to;
            move_cells(cells + to, b->image.pitch, from, buffer_pitch, b->channels, sides + j);
        }
    }
}

static void clear_rows(const struct halo_rows *b, const struct frame *f, int row, int rows)
{
    for (int last = row + rows; row < last; row++)
        for (int col = -b->left; col < b->cols + b->right; col++)
            clear_cells(row_of(b, f, row) + col * VECTOR, b->image.pitch, b->channels);
}

INLINE const struct halo_rows *halo_rows_at(const struct slice_run *p, int64_t at)
{
    return at == ABSENT ? NULL : (const struct halo_rows *)(p->frame.constants + at);
}

INLINE int64_t buffer_for_below(const struct halo_rows *b)
{
    return b->buffer + (int64_t)b->channels * b->below * b->cols * VECTOR;
}

/* Writes the rows that the neighbors need to the halo buffers; rows outside of the image are padding. */
static void send_halo(const struct slice_run *p, const struct halo_rows *b)
{
    const struct frame *f = &p->frame;
    if (b == NULL) return;
    if (topmost(f))
        clear_rows(b, f, -b->above, b->above);
    else
        send_rows(b, f, f->arena + b->buffer, 0, b->below);
    if (lowest(f))
        clear_rows(b, f, b->rows, b->below);
    else
        send_rows(b, f, f->arena + buffer_for_below(b), b->rows - b->above, b->above);
}

static void recv_halo(const struct slice_run *p, const struct halo_rows *b)
{
    const struct frame *f = &p->frame;
    if (b == NULL) return;
    if (!topmost(f)) recv_rows(b, f, f->arena - p->arena_bytes + buffer_for_below(b), -b->above, b->above);
    if (!lowest(f)) recv_rows(b, f, f->arena + p->arena_bytes + b->buffer, b->rows, b->below);
}

INLINE int whole_tiles(const struct conv *op, int rows)
{
    return (rows + op->tile_rows - 1) / op->tile_rows * op->tile_rows;
}

/* Rows first to last - 1 of a convolution's output that no other slice needs; none for other operations. */
static struct range inner_rows(const struct frame *f, const struct op *op, const struct exchange *e)
{
    const struct conv *conv = &op->as.conv;
    if (op->kind != CONV) return (struct range){0, 0};
    const int above = topmost(f) ? 0 : whole_tiles(conv, e->sent_above);
    const int below = lowest(f) ? 0 : whole_tiles(conv, e->sent_below);
    return (struct range){above, conv->rows - below};
}

/* Runs an operation on a slice, after all threads have signaled the previous one. Rows that the neighbors need are
 * computed first, so that they are ready early. All threads receive before they signal: when a thread starts an
 * operation, the halo buffers that the previous operation read are free. */
static void run_exchanged(const struct slice_run *p, const struct op *op)
{
    static const struct exchange nothing = {ABSENT, ABSENT, ABSENT, 0, 0};
    const struct exchange *e = &nothing;
    if (op->exchange != ABSENT) e = (const struct exchange *)(p->frame.constants + op->exchange);
    const struct conv *conv = &op->as.conv;
    const struct range inner = inner_rows(&p->frame, op, e);
    const int edges_first = inner.first < inner.last;
    wait_for_all(p->pool, p->frame.slice);
    recv_halo(p, halo_rows_at(p, e->recv));
    if (edges_first) {
        if (inner.first > 0) conv_rows(conv, &p->frame, 0, inner.first);
        if (inner.last < conv->rows) conv_rows(conv, &p->frame, inner.last, conv->rows);
    } else {
        run_op(op, &p->frame);
    }
    if (op->kind != CONV || !conv->fills_halo_buffers) {
        send_halo(p, halo_rows_at(p, e->send));
        send_halo(p, halo_rows_at(p, e->send_second));
    }
    signal_done(p->pool, p->frame.slice);
    if (edges_first) conv_rows(conv, &p->frame, inner.first, inner.last);
}

/* Adds the means of the other slices. */
static void add_means(const struct slice_run *p, const struct mean *op)
{
    float *sums = (float *)locate(&p->frame, op->out);
    wait_for_all(p->pool, p->frame.slice);
    for (int other = 1; other < p->pool->size; other++) {
        const float *theirs = (const float *)((const char *)sums + other * p->arena_bytes);
        for (int i = 0; i < op->channels; i++) sums[i] += theirs[i];
    }
}

/* After the mean there are no rows: the first thread computes the rest alone. */
LOCAL void run_slice(struct thread_pool *pool, const struct run_args *args, int slice, int image)
{
    const struct frame f = {.constants = args->constants,
                            .arena = args->arenas + slice * args->arena_bytes,
                            .x = args->x + image * args->x_floats,
                            .y = args->y + image * args->y_floats,
                            .parts = 1,
                            .slice = slice,
                            .slices = pool->size};
    const struct slice_run p = {pool, f, args->arena_bytes};
    double before = args->seconds ? now(args->clock) : 0;
    for (int i = 0, alone = 0; i < args->count; i++) {
        const struct op *op = args->ops + i;
        if (alone)
            run_op(op, &f);
        else
            run_exchanged(&p, op);
        if (op->kind == MEAN) {
            if (slice > 0) return;
            add_means(&p, &op->as.mean);
            alone = 1;
        }
        if (args->seconds && slice == 0) {
            const double after = now(args->clock);
            args->seconds[i] += after - before;
            before = after;
        }
    }
}
