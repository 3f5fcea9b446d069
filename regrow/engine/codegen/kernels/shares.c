/* Runs one thread's share of an image's rows; appended to team.c, as which it is left out of exported files.
 *
 * A share is computed on an arena of its own. After every layer, its first and last rows go into boxes, from which the
 * neighbouring shares fetch what their windows reach.
 */

/* An image of which shares need rows of each other. Rows that are needed are put into a box, where they lie close
 * together: reading them from the image would take its other lines away from the core that works on it. */
struct borders {
    struct planes image;
    int64_t box;          /* in the arena: rows for the share above, then for the one below, by channel, row, col */
    int64_t sides;        /* struct side: the columns of the halo left and right */
    int32_t above, below; /* rows of the halo that come from the neighbours, or are padding */
    int32_t left, right;
    int32_t channels, rows, cols;
};

/* What an operation needs from the neighbours, and what they need from it: struct borders, or ABSENT. */
struct exchange {
    int64_t borrows, lends, lends_tail;
    int32_t lent_above, lent_below; /* rows at the share's borders that the neighbours need */
};

/* One thread's view of an image that is shared. */
struct party {
    struct team *team;
    struct frame frame;
    int64_t arena_bytes;
};

/* Channel after channel for each cell of a row: there are many channels and few cells. */
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
    const ivec lanes = side->lanes, mask = side->mask; /* copies, which the cells cannot alias */
    for (; channels > 0; channels--, to += to_pitch, from += from_pitch) store(to, permute(load(from), lanes, mask));
}

INLINE char *row_of(const struct borders *b, const struct frame *f, int row)
{
    return f->arena + b->image.at + row * (int64_t)b->image.row;
}

static void lend_rows(const struct borders *b, const struct frame *f, char *box, int row, int rows)
{
    const int64_t box_pitch = (int64_t)rows * b->cols * VECTOR;
    for (int last = row + rows; row < last; row++)
        for (int col = 0; col < b->cols; col++, box += VECTOR)
            copy_cells(box, box_pitch, row_of(b, f, row) + col * VECTOR, b->image.pitch, b->channels);
}

/* A row with one cell at either end, as most are: the cells of a channel are read once. */
INLINE void borrow_row(const struct borders *b, const struct side *sides, char *cells, const char *box, const int cols)
{
    const int64_t pitch = b->image.pitch;
    const ivec left_lanes = sides[0].lanes, left_mask = sides[0].mask;
    const ivec right_lanes = sides[1].lanes, right_mask = sides[1].mask;
    for (int channels = b->channels; channels > 0; channels--, cells += pitch, box += cols * VECTOR) {
        EACH(c, cols) store(cells + c * VECTOR, load(box + c * VECTOR));
        store(cells - VECTOR, permute(load(box + (cols - 1) * VECTOR), left_lanes, left_mask));
        store(cells + cols * VECTOR, permute(load(box), right_lanes, right_mask));
    }
}

/* Fills rows of the halo, with their ends in the halos of the neighbouring lanes. */
static void borrow_rows(const struct borders *b, const struct frame *f, const char *box, int row, int rows)
{
    const struct side *sides = (const struct side *)(f->constants + b->sides);
    const int64_t box_pitch = (int64_t)rows * b->cols * VECTOR;
    if (rows == 1 && b->left == 1 && b->right == 1) {
        switch (b->cols) { /* images of 8, 16 and 32 columns in eight lanes */
        case 1: borrow_row(b, sides, row_of(b, f, row), box, 1); return;
        case 2: borrow_row(b, sides, row_of(b, f, row), box, 2); return;
        case 4: borrow_row(b, sides, row_of(b, f, row), box, 4); return;
        default: break;
        }
    }
    for (int last = row + rows; row < last; row++, box += b->cols * VECTOR) {
        char *cells = row_of(b, f, row);
        for (int col = 0; col < b->cols; col++)
            copy_cells(cells + col * VECTOR, b->image.pitch, box + col * VECTOR, box_pitch, b->channels);
        for (int j = 0; j < b->left + b->right; j++) {
            const int to = (j < b->left ? j - b->left : b->cols + j - b->left) * VECTOR;
            const char *from = box + to + sides[j].from - sides[j].to;
            move_cells(cells + to, b->image.pitch, from, box_pitch, b->channels, sides + j);
        }
    }
}

static void clear_rows(const struct borders *b, const struct frame *f, int row, int rows)
{
    for (int last = row + rows; row < last; row++)
        for (int col = -b->left; col < b->cols + b->right; col++)
            clear_cells(row_of(b, f, row) + col * VECTOR, b->image.pitch, b->channels);
}

INLINE const struct borders *borders_at(const struct party *p, int64_t at)
{
    return at == ABSENT ? NULL : (const struct borders *)(p->frame.constants + at);
}

INLINE int64_t box_for_below(const struct borders *b)
{
    return b->box + (int64_t)b->channels * b->below * b->cols * VECTOR;
}

/* Puts what the neighbours need into the boxes; beyond the image's edge, where there are none, is padding. */
static void lend(const struct party *p, const struct borders *b)
{
    const struct frame *f = &p->frame;
    if (b == NULL) return;
    if (topmost(f))
        clear_rows(b, f, -b->above, b->above);
    else
        lend_rows(b, f, f->arena + b->box, 0, b->below);
    if (lowest(f))
        clear_rows(b, f, b->rows, b->below);
    else
        lend_rows(b, f, f->arena + box_for_below(b), b->rows - b->above, b->above);
}

static void borrow(const struct party *p, const struct borders *b)
{
    const struct frame *f = &p->frame;
    if (b == NULL) return;
    if (!topmost(f)) borrow_rows(b, f, f->arena - p->arena_bytes + box_for_below(b), -b->above, b->above);
    if (!lowest(f)) borrow_rows(b, f, f->arena + p->arena_bytes + b->box, b->rows, b->below);
}

INLINE int whole_tiles(const struct conv *op, int rows) { return (rows + op->down - 1) / op->down * op->down; }

struct rows {
    int first, last;
};

/* Rows first .. last - 1 of a convolution's output, for which nobody else waits; none of what runs as a whole. */
static struct rows inner_rows(const struct frame *f, const struct op *op, const struct exchange *e)
{
    const struct conv *conv = &op->as.conv;
    if (op->kind != CONV) return (struct rows){0, 0};
    const int above = topmost(f) ? 0 : whole_tiles(conv, e->lent_above);
    const int below = lowest(f) ? 0 : whole_tiles(conv, e->lent_below);
    return (struct rows){above, conv->rows - below};
}

/* An operation on our share, when all others have done what we need of the one before. What they need of this one comes
 * first, so that they have it long before they ask. As everybody borrows before passing, whoever starts an operation
 * knows that all have what they need of the boxes that the operation before it was the last to read. */
static void run_shared(const struct party *p, const struct op *op)
{
    static const struct exchange nothing = {ABSENT, ABSENT, ABSENT, 0, 0};
    const struct exchange *e = &nothing;
    if (op->exchange != ABSENT) e = (const struct exchange *)(p->frame.constants + op->exchange);
    const struct conv *conv = &op->as.conv;
    const struct rows inner = inner_rows(&p->frame, op, e);
    const int borders_first = inner.first < inner.last;
    await(p->team, p->frame.rows_share);
    borrow(p, borders_at(p, e->borrows));
    if (borders_first) {
        if (inner.first > 0) conv_rows(conv, &p->frame, 0, inner.first);
        if (inner.last < conv->rows) conv_rows(conv, &p->frame, inner.last, conv->rows);
    } else {
        run_op(op, &p->frame);
    }
    if (op->kind != CONV || !conv->fills_boxes) {
        lend(p, borders_at(p, e->lends));
        lend(p, borders_at(p, e->lends_tail));
    }
    pass(p->team, p->frame.rows_share);
    if (borders_first) conv_rows(conv, &p->frame, inner.first, inner.last);
}

/* Adds what the others have found in their shares. */
static void add_means(const struct party *p, const struct mean *op)
{
    float *sums = (float *)locate(&p->frame, op->out);
    await(p->team, p->frame.rows_share);
    for (int other = 1; other < p->team->size; other++) {
        const float *theirs = (const float *)((const char *)sums + other * p->arena_bytes);
        for (int i = 0; i < op->channels; i++) sums[i] += theirs[i];
    }
}

/* Our share of an image; from the mean on, where there are no rows any more, the first thread goes on alone. */
static void run_share(struct team *team, const struct job *job, int share, int image)
{
    const struct frame f = {job->constants, job->arenas + share * job->arena_bytes, job->x + image * job->x_floats,
                            job->y + image * job->y_floats, 0, 1, share, team->size};
    const struct party p = {team, f, job->arena_bytes};
    double before = job->seconds ? now(job->clock) : 0;
    for (int i = 0, alone = 0; i < job->count; i++) {
        const struct op *op = job->ops + i;
        if (alone)
            run_op(op, &f);
        else
            run_shared(&p, op);
        if (op->kind == MEAN) {
            if (share > 0) return;
            add_means(&p, &op->as.mean);
            alone = 1;
        }
        if (job->seconds && share == 0) {
            const double after = now(job->clock);
            job->seconds[i] += after - before;
            before = after;
        }
    }
}

/* For the caller to check that it means the same structures. */
int regrow_sizeof_borders(void) { return (int)sizeof(struct borders); }
int regrow_sizeof_exchange(void) { return (int)sizeof(struct exchange); }
