/* The second argument of every kernel: its memory and its part of the work. */
#ifndef FRAME_H
#define FRAME_H
#include "plan.h"

/* The memory of one run, and this thread's part of the work: a part of every operation or, in its own arena, a slice
 * of the image's rows. */
struct frame {
    const char *constants;
    char *arena;
    const float *x;
    float *y;
    int part, parts;
    int slice, slices;
};

INLINE char *locate(const struct frame *f, int64_t at)
{
    return at == INPUT ? (char *)f->x : at == OUTPUT ? (char *)f->y : f->arena + at;
}

/* Whether the slice is the first of the image, or the last. */
INLINE int topmost(const struct frame *f) { return f->slice == 0; }
INLINE int lowest(const struct frame *f) { return f->slice + 1 == f->slices; }

/* Pieces of work, from first to last - 1. */
struct range {
    int first, last;
};

/* This thread's part of n pieces of work. */
INLINE struct range part_of(const struct frame *f, int n)
{
    if (f->parts == 1) return (struct range){0, n};
    const struct range s = {(int)((int64_t)n * f->part / f->parts), (int)((int64_t)n * (f->part + 1) / f->parts)};
    return s;
}

/* The same with threads in reverse order, for the remaining work: threads with fewer pieces from part_of get more. */
INLINE struct range rest_of(const struct frame *f, int n)
{
    struct frame mirrored = *f;
    mirrored.part = f->parts - 1 - f->part;
    return part_of(&mirrored, n);
}

/* Every operation defines run_NAME. */
#define DECLARE_RUN(KIND, name) LOCAL void run_##name(const struct name *, const struct frame *);
OPERATIONS(DECLARE_RUN)
#endif
