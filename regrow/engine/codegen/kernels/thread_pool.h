/* A pool of threads, and how they wait for each other: thread_pool.c. */
#ifndef THREAD_POOL_H
#define THREAD_POOL_H
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "run.h"

/* How many steps a thread has done that others may wait for, in its own cache line. */
struct progress {
    _Alignas(64) atomic_uint done;
};

struct thread_pool {
    int size;
    int patience; /* how often to check before yielding the core */
    pthread_t *threads;
    struct progress *progress;
    const struct run_args *args; /* of the current round; only threads that take part may read them */
    atomic_ullong round;
    atomic_int unfinished; /* images of a round that threads take one by one */
    atomic_int sleepers;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
};

/* Seconds. */
LOCAL double now(int clock);

/* Tells the other threads that this one has done a step. */
LOCAL void signal_done(struct thread_pool *pool, int part);

/* Waits until all threads have done as many steps as this one. */
LOCAL void wait_for_all(struct thread_pool *pool, int part);

struct thread_pool *regrow_pool_new(int size, int cores);
void regrow_pool_free(struct thread_pool *pool);
int regrow_pool_size(const struct thread_pool *pool);
void regrow_run(struct run_args *args, const float *x, float *y, int images);
double regrow_peak(void);
int regrow_lanes(void);
#endif
