/* Runs the operations of a plan. */
#include "run.h"

#define CASE_RUN(KIND, name) \
    case KIND: run_##name(&op->as.name, f); break;

LOCAL void run_op(const struct op *op, const struct frame *f)
{
    switch (op->kind) {
        OPERATIONS(CASE_RUN)
    }
}

LOCAL struct chain chain_at(const struct op *op, const struct frame *f)
{
    const struct conv *conv = &op->as.conv;
    if (op->kind != CONV || conv->followers == 0 || f->parts > 1) return (struct chain){1, 1, 1};
    return (struct chain){1 + conv->followers, conv->rows, conv->band};
}

LOCAL void run_band(const struct op *op, const struct frame *f, const struct chain *c, int row)
{
    if (c->length == 1)
        run_op(op, f);
    else
        conv_rows(&op->as.conv, f, row, row + c->band < c->rows ? row + c->band : c->rows);
}

LOCAL int run_next(const struct op *op, const struct frame *f)
{
    const struct chain c = chain_at(op, f);
    for (int row = 0; row < c.rows; row += c.band)
        for (int i = 0; i < c.length; i++) run_band(op + i, f, &c, row);
    return c.length;
}
