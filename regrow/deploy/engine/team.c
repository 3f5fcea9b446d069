/* Runs plans on a team of threads; appended to kernels.c for the engine, and left out of exported files.
 *
 * A batch is divided by images, each on its own arena. The images that are left over, and single images, are divided
 * inside every operation, with a barrier after it, unless the network is so small that this takes longer. Waiting is
 * spinning for about as long as a layer takes, then sleeping: a layer of a small network is done sooner than a sleeping
 * thread wakes up.
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

struct job {
    struct team *team;
    const struct op *ops;
    const char *constants;
    char *arenas;
    int64_t arena_bytes, x_floats, y_floats; /* of one thread; of one image */
    const float *x;
    float *y;
    double *seconds; /* where each operation's time is added, or NULL */
    int32_t count, images;
    int32_t divide; /* whether threads work on one image together, if there are too few for all */
    int32_t clock;  /* what `seconds` are measured by */
};

struct team {
    int size;
    pthread_t *threads;
    const struct job *job;
    atomic_int started, arrived, passed; /* jobs given out; threads at the barrier; barriers passed */
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

static void barrier(struct team *team)
{
    if (team->size == 1) return;
    const int turn = atomic_load(&team->passed);
    if (atomic_fetch_add(&team->arrived, 1) + 1 == team->size) {
        atomic_store(&team->arrived, 0);
        atomic_store(&team->passed, turn + 1);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&team->passed, memory_order_acquire) == turn; spins++) {
        RELAX();
        if (spins > 20000) sched_yield(); /* somebody else has our partner's core */
    }
}

/* Like run_next, with a look at the clock after each operation. */
static int time_next(struct team *team, const struct op *op, const struct frame *f, double *seconds, int clock)
{
    const struct chain c = chain_at(op, f);
    for (int row = 0; row < c.rows; row += c.band) {
        for (int i = 0; i < c.length; i++) {
            const double start = now(clock);
            run_band(op + i, f, &c, row);
            if (f->parts > 1) barrier(team);
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
            if (f->parts > 1) barrier(team);
        }
    }
}

static void work(struct team *team, int part)
{
    const struct job *job = team->job;
    const int whole = job->divide ? job->images / team->size * team->size : job->images;
    struct frame own = {job->constants, job->arenas + part * job->arena_bytes, NULL, NULL, 0, 1};
    for (int image = part; image < whole; image += team->size) run_image(team, job, &own, image);
    if (whole == job->images) return;
    barrier(team); /* the first arena is shared from here on */
    struct frame shared = {job->constants, job->arenas, NULL, NULL, part, team->size};
    for (int image = whole; image < job->images; image++) run_image(team, job, &shared, image);
}

static void *serve(void *argument)
{
    const struct member member = *(struct member *)argument;
    struct team *team = member.team;
    free(argument);
    for (int done = 0;; done++) {
        for (int spins = 0; atomic_load(&team->started) == done; spins++) {
            RELAX();
            if (spins < 20000) continue;
            pthread_mutex_lock(&team->mutex);
            atomic_fetch_add(&team->sleepers, 1);
            while (atomic_load(&team->started) == done) pthread_cond_wait(&team->wake, &team->mutex);
            atomic_fetch_sub(&team->sleepers, 1);
            pthread_mutex_unlock(&team->mutex);
        }
        if (team->job == NULL) return NULL;
        work(team, member.part);
        barrier(team);
    }
}

static void start(struct team *team, const struct job *job)
{
    team->job = job;
    atomic_fetch_add(&team->started, 1);
    if (atomic_load(&team->sleepers) > 0) {
        pthread_mutex_lock(&team->mutex);
        pthread_cond_broadcast(&team->wake);
        pthread_mutex_unlock(&team->mutex);
    }
}

void regrow_team_free(struct team *team)
{
    start(team, NULL);
    for (int i = 1; i < team->size; i++) pthread_join(team->threads[i], NULL);
    pthread_cond_destroy(&team->wake);
    pthread_mutex_destroy(&team->mutex);
    free(team->threads);
    free(team);
}

/* A team of `size` threads, of which the caller is one; smaller if the system does not give as many. */
struct team *regrow_team_new(int size)
{
    struct team *team = calloc(1, sizeof *team);
    if (team == NULL) return NULL;
    team->threads = calloc((size_t)size, sizeof *team->threads);
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
    job->x = x, job->y = y, job->images = images;
    if (team->size == 1 || (images == 1 && !job->divide)) { /* nobody else has anything to do */
        team->job = job;
        work(team, 0);
        return;
    }
    start(team, job);
    work(team, 0);
    barrier(team);
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
