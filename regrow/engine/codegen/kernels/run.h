/* Running the operations of a plan: run.c. */
#ifndef RUN_H
#define RUN_H
#include "frame.h"

/* Convolutions that are computed together, `band` rows at a time, so that the output of one is in the cache when the
 * next reads it. Most chains are one operation in one band. Threads that split layers do not use bands. */
struct chain {
    int length, rows, band;
};

/* Runs one operation. */
LOCAL void run_op(const struct op *op, const struct frame *f);

/* The chain that starts with an operation. */
LOCAL struct chain chain_at(const struct op *op, const struct frame *f);

/* Runs one operation of a chain for the band that starts at `row`. */
LOCAL void run_band(const struct op *op, const struct frame *f, const struct chain *c, int row);

/* Runs the next operation and those of its chain; returns how many there were. */
LOCAL int run_next(const struct op *op, const struct frame *f);

/* Rows first to last - 1 of a convolution's output: conv.c. */
LOCAL void conv_rows(const struct conv *op, const struct frame *f, int first, int last);
#endif
