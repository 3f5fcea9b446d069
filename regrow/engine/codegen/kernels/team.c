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
    /* Of the library that knows the job's kernels, since a team may serve several: one image, or a part of all. */
    void (*run_one)(struct team *, int part, int image);
    void (*run_part)(struct team *, int part);
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

/* Our share of the rows of an image: shares.c. */
static void run_share(struct team *team, const struct job *job, int share, int image);

/* ------------------------------------------------------------------------------------------------ the team */

#define ONE_ROUND (1ull << 32)
#define EVERYBODY (1ull << 31)
#define IMAGES (EVERYBODY - 1)

static void run_one(struct team *team, int part, int image)
{
    const struct job *job = team->job;
    struct frame own = {job->constants, job->arenas + part * job->arena_bytes, NULL, NULL, 0, 1, 0, 1};
    run_image(team, job, &own, image);
}

/* Our part of all images of the round. */
static void run_part(struct team *team, int part)
{
    const struct job *job = team->job;
    struct frame shared = {job->constants, job->arenas, NULL, NULL, part, team->size, 0, 1};
    for (int image = job->first; image < job->last; image++) {
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
        team->job->run_one(team, part, team->job->last - (int)(round & IMAGES));
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
        team->job->run_part(team, member.part);
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
    run_part(team, 0);
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
    job->x = x, job->y = y, job->run_one = run_one, job->run_part = run_part;
    if (team->size == 1 || whole == 1) { /* nobody else has anything to do */
        team->job = job;
        for (int image = 0; image < whole; image++) run_one(team, 0, image);
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
int regrow_sizeof_job(void) { return (int)sizeof(struct job); }
int regrow_sizeof_side(void) { return (int)sizeof(struct side); }
