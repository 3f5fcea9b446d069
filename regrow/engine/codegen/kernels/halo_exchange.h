/* Slices of an image's rows, one per thread: halo_exchange.c. */
#ifndef HALO_EXCHANGE_H
#define HALO_EXCHANGE_H
#include "thread_pool.h"

/* Runs a plan on one slice of an image. */
LOCAL void run_slice(struct thread_pool *pool, const struct run_args *args, int slice, int image);
#endif
