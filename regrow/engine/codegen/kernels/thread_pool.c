/* Runs plans on a pool of threads.
 *
 * Threads take the images of a batch one by one, each in its own arena, so that none waits for a thread without a core.
 * Single images, and the images of a batch that are left over, are split inside every operation, with a barrier after
 * it, unless the network is so small that this takes longer. With a plan for slices, all images are split by rows:
 * every thread computes its slice in its own arena and receives a few rows from the neighboring slices
 * (halo_exchange.c). Threads spin for about as long as a layer takes, then sleep: a layer of a small network takes less
 * time than waking up a thread.
 */
#include "thread_pool.h"

#include <sched.h>
#include <stdlib.h>

#include "halo_exchange.h"

#ifdef _WIN32 /* its C library lacks aligned_alloc */
#include <malloc.h>
#define ALIGNED_ALLOC(alignment, size) _aligned_malloc(size, alignment)
#define ALIGNED_FREE(memory) _aligned_free(memory)
#else
#define ALIGNED_ALLOC(alignment, size) aligned_alloc(alignment, size)
#define ALIGNED_FREE(memory) free(memory)
#endif

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__) || defined(__arm__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

struct member {
    struct thread_pool *pool;
    int part;
};

LOCAL double now(int clock)
{
    struct timespec t;
    clock_gettime((clockid_t)clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

LOCAL void signal_done(struct thread_pool *pool, int part)
{
    atomic_uint *ours = &pool->progress[part].done; /* no other thread writes it */
    atomic_store_explicit(ours, atomic_load_explicit(ours, memory_order_relaxed) + 1, memory_order_release);
}

LOCAL void wait_for_all(struct thread_pool *pool, int part)
{
    const unsigned ours = atomic_load_explicit(&pool->progress[part].done, memory_order_relaxed);
    for (int other = 0; other < pool->size; other++) {
        const atomic_uint *theirs = &pool->progress[other].done;
        for (int spins = 0; (int)(atomic_load_explicit(theirs, memory_order_acquire) - ours) < 0; spins++) {
            RELAX();
            if (spins > pool->patience) sched_yield(); /* the other thread has no core */
        }
    }
}

static void barrier(struct thread_pool *pool, int part)
{
    signal_done(pool, part);
    wait_for_all(pool, part);
}

/* Like run_next, and measures the time of each operation. */
static int time_next(struct thread_pool *pool, const struct op *op, const struct frame *f, double *seconds, int clock)
{
    const struct chain c = chain_at(op, f);
    for (int row = 0; row < c.rows; row += c.band) {
        for (int i = 0; i < c.length; i++) {
            const double start = now(clock);
            run_band(op + i, f, &c, row);
            if (f->parts > 1) barrier(pool, f->part);
            if (f->part == 0) seconds[i] += now(clock) - start;
        }
    }
    return c.length;
}

static void run_image(struct thread_pool *pool, const struct run_args *args, struct frame *f, int image)
{
    f->x = args->x + image * args->x_floats;
    f->y = args->y + image * args->y_floats;
    for (int i = 0; i < args->count;) {
        if (args->seconds) {
            i += time_next(pool, args->ops + i, f, args->seconds + i, args->clock);
        } else {
            i += run_next(args->ops + i, f);
            if (f->parts > 1) barrier(pool, f->part);
        }
    }
}

/* Bits of a round: its number, whether all threads take part and, if not, how many images no thread has taken. */
#define ONE_ROUND (1ull << 32)
#define ALL_THREADS (1ull << 31)
#define IMAGES (ALL_THREADS - 1)

static void run_one(struct thread_pool *pool, int part, int image)
{
    const struct run_args *args = pool->args;
    struct frame own = {
        .constants = args->constants, .arena = args->arenas + part * args->arena_bytes, .parts = 1, .slices = 1};
    run_image(pool, args, &own, image);
}

/* Runs this thread's part of all images of the round. */
static void run_part(struct thread_pool *pool, int part)
{
    const struct run_args *args = pool->args;
    struct frame shared = {
        .constants = args->constants, .arena = args->arenas, .part = part, .parts = pool->size, .slices = 1};
    for (int image = args->first; image < args->last; image++) {
        if (args->mode == PER_LAYER) {
            run_image(pool, args, &shared, image);
        } else {
            if (image > args->first) barrier(pool, part); /* the first thread has read the means of the others */
            run_slice(pool, args, part, image);
        }
    }
}

/* Runs images until none is left. The round may be over already: only a thread that took an image may read the args. */
static void help(struct thread_pool *pool, int part, unsigned long long round)
{
    while (round & IMAGES) {
        if (!atomic_compare_exchange_weak(&pool->round, &round, round - 1)) continue; /* `round` was updated */
        pool->args->run_one(pool, part, pool->args->last - (int)(round & IMAGES));
        atomic_fetch_sub(&pool->unfinished, 1);
        round--;
    }
}

static unsigned long long next_round(struct thread_pool *pool, unsigned long long last)
{
    for (int spins = 0; atomic_load(&pool->round) / ONE_ROUND == last / ONE_ROUND; spins++) {
        RELAX();
        if (spins < pool->patience) continue;
        pthread_mutex_lock(&pool->mutex);
        atomic_fetch_add(&pool->sleepers, 1);
        while (atomic_load(&pool->round) / ONE_ROUND == last / ONE_ROUND) pthread_cond_wait(&pool->wake, &pool->mutex);
        atomic_fetch_sub(&pool->sleepers, 1);
        pthread_mutex_unlock(&pool->mutex);
    }
    return atomic_load(&pool->round);
}

static void *serve(void *argument)
{
    const struct member member = *(struct member *)argument;
    struct thread_pool *pool = member.pool;
    free(argument);
    for (unsigned long long round = 0;;) {
        round = next_round(pool, round);
        if (!(round & ALL_THREADS)) {
            help(pool, member.part, round);
            continue;
        }
        if (pool->args == NULL) return NULL;
        pool->args->run_part(pool, member.part);
        barrier(pool, member.part);
    }
}

static unsigned long long start(struct thread_pool *pool, const struct run_args *args, unsigned long long what)
{
    const unsigned long long round = (atomic_load(&pool->round) / ONE_ROUND + 1) * ONE_ROUND + what;
    pool->args = args;
    atomic_store(&pool->round, round);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
    return round;
}

/* Runs images, each on any free thread; waits only for threads that took one. */
static void run_batch(struct thread_pool *pool, struct run_args *args, int first, int last)
{
    args->first = first, args->last = last;
    atomic_store(&pool->unfinished, last - first);
    help(pool, 0, start(pool, args, (unsigned long long)(last - first)));
    for (int spins = 0; atomic_load(&pool->unfinished) > 0; spins++) {
        RELAX();
        if (spins > pool->patience) sched_yield();
    }
}

/* Runs images, each on all threads. */
static void run_per_layer(struct thread_pool *pool, struct run_args *args, int first, int last)
{
    args->first = first, args->last = last;
    start(pool, args, ALL_THREADS);
    run_part(pool, 0);
    barrier(pool, 0);
}

void regrow_pool_free(struct thread_pool *pool)
{
    start(pool, NULL, ALL_THREADS);
    for (int i = 1; i < pool->size; i++) pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->threads);
    ALIGNED_FREE(pool->progress);
    free(pool);
}

/* Makes a pool of `size` threads, of which the caller is one; smaller if the system cannot start as many. With fewer
 * `cores` than threads, waiting threads soon yield their core. */
struct thread_pool *regrow_pool_new(int size, int cores)
{
    struct thread_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    pool->threads = calloc((size_t)size, sizeof *pool->threads);
    pool->progress = ALIGNED_ALLOC(_Alignof(struct progress), (size_t)size * sizeof *pool->progress);
    if (pool->threads == NULL || pool->progress == NULL) {
        free(pool->threads);
        ALIGNED_FREE(pool->progress);
        free(pool);
        return NULL;
    }
    pool->patience = size > cores ? 100 : 20000;
    for (int i = 0; i < size; i++) atomic_init(&pool->progress[i].done, 0);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    for (pool->size = 1; pool->size < size; pool->size++) {
        struct member *member = malloc(sizeof *member);
        if (member == NULL) break;
        *member = (struct member){pool, pool->size};
        if (pthread_create(&pool->threads[pool->size], NULL, serve, member) != 0) {
            free(member);
            break;
        }
    }
    return pool;
}

int regrow_pool_size(const struct thread_pool *pool) { return pool->size; }

/* Runs `images` images from x to y. The args belong to one pool and to one caller at a time. */
void regrow_run(struct run_args *args, const float *x, float *y, int images)
{
    struct thread_pool *pool = args->pool;
    const int remainder = args->mode == PER_LAYER ? images % pool->size : args->mode == PER_ROWS ? images : 0;
    const int shared = pool->size > 1 ? remainder : 0, whole = images - shared;
    args->x = x, args->y = y, args->run_one = run_one, args->run_part = run_part;
    if (pool->size == 1 || whole == 1) { /* nothing for other threads */
        pool->args = args;
        for (int image = 0; image < whole; image++) run_one(pool, 0, image);
    } else if (whole > 0) {
        run_batch(pool, args, 0, whole);
    }
    if (shared > 0) run_per_layer(pool, args, whole, images);
}

/* Multiply-adds per second of one thread with all operands in registers: an upper bound for kernels. */
double regrow_peak(void)
{
    enum { SUMS = 12, STEPS = 10000, TRIES = 100 };
    volatile float given = 0.5f, taken;
    double least = 1;
    for (int try = 0; try < TRIES; try++) {
        const vec factor = splat(given);
        vec sums[SUMS];
        EACH(i, SUMS) sums[i] = factor * (float)i; /* the compiler would merge equal sums */
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

int regrow_lanes(void) { return LANES; }
