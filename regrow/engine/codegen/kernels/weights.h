/* Weights as they are stored: struct entry of plan.h. */
#ifndef WEIGHTS_H
#define WEIGHTS_H
#include "plan.h"

#if WEIGHT_BITS == 16
/* Half to single precision: shift the bits into place, and correct the exponent by a product. */
INLINE float widen(uint16_t half)
{
    const uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
    float f;
    __builtin_memcpy(&f, &magnitude, sizeof f);
    return half & 0x8000 ? f * -0x1p112f : f * 0x1p112f;
}
#else
INLINE float widen(float value) { return value; }
#endif
#endif
