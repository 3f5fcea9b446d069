/* Runs plans on a team of threads; appended to kernels.c for the engine, and left out of exported files.
 *
 * The images of a batch go to whoever is free, each on its own arena: nobody waits for a thread that has no core. The
 * images that are left over, and single images, are divided inside every operation, with a barrier after it, unless the
 * network is so small that this takes longer. With a plan that is made for it, all images are divided by rows: every
 * thread computes its own share on its own arena, and has to get no more than a few rows from the neighbouring shares.
 * Waiting is spinning for about as long as a layer takes, then sleeping: a layer of a small network is done sooner than
 * a sleeping thread wakes up.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__) || defined(__arm__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

/* What threads divide: batches only, what is left of a batch too, or the rows of every image. */
enum division { ALONE, TOGETHER, BY_ROWS };

struct job {
    struct team *team;
    void (*work)(struct team *, int, int); /* of the library that knows the job's kernels; a team may serve several */
    const struct op *ops;
    const char *constants;
    char *arenas;
    int64_t arena_bytes, x_floats, y_floats; /* of one thread; of one image */
    const float *x;
    float *y;
    double *seconds; /* where each operation's time is added, or NULL */
    int32_t count;
    int32_t first, last; /* the images of this round */
    int32_t divide;      /* enum division */
    int32_t clock;       /* what `seconds` are measured by */
};

/* How much of what others may wait for a thread has done, in a cache line of its own. */
struct place {
    _Alignas(64) atomic_uint passed;
};

struct team {
    int size;
    int patience; /* how often to look before somebody else may have the core */
    pthread_t *threads;
    struct place *places;
    const struct job *job; /* for those who take part in the round: others may be too late for it */
    atomic_ullong round;   /* its number, whether all threads take part and, if not, how many images nobody has taken */
    atomic_int unfinished; /* images of such a round */
    atomic_int sleepers;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
};

struct member {
    struct team *team;
    int part;
};

static double now(int clock)
{
    struct timespec t;
    clock_gettime((clockid_t)clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pass(struct team *team, int part)
{
    atomic_uint *ours = &team->places[part].passed; /* which nobody else writes */
    atomic_store_explicit(ours, atomic_load_explicit(ours, memory_order_relaxed) + 1, memory_order_release);
}

/* Waits until all others have passed as often as we have. */
static void await(struct team *team, int part)
{
    const unsigned ours = atomic_load_explicit(&team->places[part].passed, memory_order_relaxed);
    for (int other = 0; other < team->size; other++) {
        const atomic_uint *theirs = &team->places[other].passed;
        for (int spins = 0; (int)(atomic_load_explicit(theirs, memory_order_acquire) - ours) < 0; spins++) {
            RELAX();
            if (spins > team->patience) sched_yield(); /* somebody else has our partner's core */
        }
    }
}

static void barrier(struct team *team, int part)
{
    pass(team, part);
    await(team, part);
}

/* Like run_next, with a look at the clock after each operation. */
static int time_next(struct team *team, const struct op *op, const struct frame *f, double *seconds, int clock)
{
    const struct chain c = chain_at(op, f);
    for (int row = 0; row < c.rows; row += c.band) {
        for (int i = 0; i < c.length; i++) {
            const double start = now(clock);
            run_band(op + i, f, &c, row);
            if (f->parts > 1) barrier(team, f->part);
            if (f->part == 0) seconds[i] += now(clock) - start;
        }
    }
    return c.length;
}

static void run_image(struct team *team, const struct job *job, struct frame *f, int image)
{
    f->x = job->x + image * job->x_floats;
    f->y = job->y + image * job->y_floats;
    for (int i = 0; i < job->count;) {
        if (job->seconds) {
            i += time_next(team, job->ops + i, f, job->seconds + i, job->clock);
        } else {
            i += run_next(job->ops + i, f);
            if (f->parts > 1) barrier(team, f->part);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ shares of rows */

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

/* ------------------------------------------------------------------------------------------------ the team */

#define ONE_ROUND (1ull << 32)
#define EVERYBODY (1ull << 31)
#define IMAGES (EVERYBODY - 1)

/* An image, or our part of all images of the round. */
static void work(struct team *team, int part, int image)
{
    const struct job *job = team->job;
    if (image >= 0) {
        struct frame own = {job->constants, job->arenas + part * job->arena_bytes, NULL, NULL, 0, 1, 0, 1};
        run_image(team, job, &own, image);
        return;
    }
    struct frame shared = {job->constants, job->arenas, NULL, NULL, part, team->size, 0, 1};
    for (image = job->first; image < job->last; image++) {
        if (job->divide == TOGETHER) {
            run_image(team, job, &shared, image);
        } else {
            if (image > job->first) barrier(team, part); /* the first thread has read what the others found */
            run_share(team, job, part, image);
        }
    }
}

/* Works on images as long as there are any. The round may be over: who looks at the job must have taken an image. */
static void help(struct team *team, int part, unsigned long long round)
{
    while (round & IMAGES) {
        if (!atomic_compare_exchange_weak(&team->round, &round, round - 1)) continue; /* `round` is as it is now */
        team->job->work(team, part, team->job->last - (int)(round & IMAGES));
        atomic_fetch_sub(&team->unfinished, 1);
        round--;
    }
}

static unsigned long long next_round(struct team *team, unsigned long long last)
{
    for (int spins = 0; atomic_load(&team->round) / ONE_ROUND == last / ONE_ROUND; spins++) {
        RELAX();
        if (spins < team->patience) continue;
        pthread_mutex_lock(&team->mutex);
        atomic_fetch_add(&team->sleepers, 1);
        while (atomic_load(&team->round) / ONE_ROUND == last / ONE_ROUND) pthread_cond_wait(&team->wake, &team->mutex);
        atomic_fetch_sub(&team->sleepers, 1);
        pthread_mutex_unlock(&team->mutex);
    }
    return atomic_load(&team->round);
}

static void *serve(void *argument)
{
    const struct member member = *(struct member *)argument;
    struct team *team = member.team;
    free(argument);
    for (unsigned long long round = 0;;) {
        round = next_round(team, round);
        if (!(round & EVERYBODY)) {
            help(team, member.part, round);
            continue;
        }
        if (team->job == NULL) return NULL;
        team->job->work(team, member.part, ABSENT);
        barrier(team, member.part);
    }
}

static unsigned long long start(struct team *team, const struct job *job, unsigned long long what)
{
    const unsigned long long round = (atomic_load(&team->round) / ONE_ROUND + 1) * ONE_ROUND + what;
    team->job = job;
    atomic_store(&team->round, round);
    if (atomic_load(&team->sleepers) > 0) {
        pthread_mutex_lock(&team->mutex);
        pthread_cond_broadcast(&team->wake);
        pthread_mutex_unlock(&team->mutex);
    }
    return round;
}

/* Images, each by whoever is free; waits for those only who have taken one. */
static void run_batch(struct team *team, struct job *job, int first, int last)
{
    job->first = first, job->last = last;
    atomic_store(&team->unfinished, last - first);
    help(team, 0, start(team, job, (unsigned long long)(last - first)));
    for (int spins = 0; atomic_load(&team->unfinished) > 0; spins++) {
        RELAX();
        if (spins > team->patience) sched_yield();
    }
}

/* Images, each by all threads. */
static void run_together(struct team *team, struct job *job, int first, int last)
{
    job->first = first, job->last = last;
    start(team, job, EVERYBODY);
    work(team, 0, ABSENT);
    barrier(team, 0);
}

void regrow_team_free(struct team *team)
{
    start(team, NULL, EVERYBODY);
    for (int i = 1; i < team->size; i++) pthread_join(team->threads[i], NULL);
    pthread_cond_destroy(&team->wake);
    pthread_mutex_destroy(&team->mutex);
    free(team->threads);
    free(team->places);
    free(team);
}

/* A team of `size` threads, of which the caller is one; smaller if the system does not give as many. With fewer `cores`
 * than threads somebody else surely waits for one. */
struct team *regrow_team_new(int size, int cores)
{
    struct team *team = calloc(1, sizeof *team);
    if (team == NULL) return NULL;
    team->threads = calloc((size_t)size, sizeof *team->threads);
    team->places = aligned_alloc(_Alignof(struct place), (size_t)size * sizeof *team->places);
    if (team->threads == NULL || team->places == NULL) {
        free(team->threads);
        free(team->places);
        free(team);
        return NULL;
    }
    team->patience = size > cores ? 100 : 20000;
    for (int i = 0; i < size; i++) atomic_init(&team->places[i].passed, 0);
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->wake, NULL);
    for (team->size = 1; team->size < size; team->size++) {
        struct member *member = malloc(sizeof *member);
        if (member == NULL) break;
        *member = (struct member){team, team->size};
        if (pthread_create(&team->threads[team->size], NULL, serve, member) != 0) {
            free(member);
            break;
        }
    }
    return team;
}

int regrow_team_size(const struct team *team) { return team->size; }

/* Runs `images` images from x to y; a job belongs to one team and is run by one caller at a time. */
void regrow_run(struct job *job, const float *x, float *y, int images)
{
    struct team *team = job->team;
    const int remainder = job->divide == TOGETHER ? images % team->size : job->divide == BY_ROWS ? images : 0;
    const int shared = team->size > 1 ? remainder : 0, whole = images - shared;
    job->x = x, job->y = y, job->work = work;
    if (team->size == 1 || whole == 1) { /* nobody else has anything to do */
        team->job = job;
        for (int image = 0; image < whole; image++) work(team, 0, image);
    } else if (whole > 0) {
        run_batch(team, job, 0, whole);
    }
    if (shared > 0) run_together(team, job, whole, images);
}

/* Multiply-adds per second of one thread on numbers that are in registers already: what no kernel exceeds. */
double regrow_peak(void)
{
    enum { SUMS = 12, STEPS = 10000, TRIES = 100 };
    volatile float given = 0.5f, taken;
    double least = 1;
    for (int try = 0; try < TRIES; try++) {
        const vec factor = splat(given);
        vec sums[SUMS];
        EACH(i, SUMS) sums[i] = factor * (float)i; /* equal sums would be computed once */
        const double start = now(CLOCK_MONOTONIC);
        for (int step = 0; step < STEPS; step++) {
            EACH(i, SUMS) sums[i] = sums[i] * factor + factor;
        }
        EACH(i, SUMS - 1) sums[0] += sums[i + 1];
        taken = sums[0][0];
        const double seconds = now(CLOCK_MONOTONIC) - start;
        if (seconds < least) least = seconds;
    }
    (void)taken;
    return (double)SUMS * STEPS * LANES / least;
}

/* For the caller to check that it means the same structures. */
int regrow_lanes(void) { return LANES; }
int regrow_sizeof_op(void) { return (int)sizeof(struct op); }
int regrow_sizeof_side(void) { return (int)sizeof(struct side); }
int regrow_sizeof_borders(void) { return (int)sizeof(struct borders); }
int regrow_sizeof_exchange(void) { return (int)sizeof(struct exchange); }
