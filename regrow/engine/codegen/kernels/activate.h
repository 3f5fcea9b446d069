/* Activation functions: the entries of regrow.engine.ops.activations, as plan.h lists them. */
#ifndef ACTIVATE_H
#define ACTIVATE_H
#include "plan.h"
#include "vector_math.h"

#define CASE_ACTIVATION(KIND, expression) \
    case KIND: \
        for (int i = 0; i < n; i++) { \
            const vec x = v[i]; \
            v[i] = expression; \
        } \
        break;

static __attribute__((noinline, unused)) void activate(vec *v, int n, const struct activate *act)
{
    const vec low = splat(act->low), high = splat(act->high);
    (void)low, (void)high;
    switch (act->kind) {
        ACTIVATIONS(CASE_ACTIVATION)
    default: break;
    }
}
#endif
