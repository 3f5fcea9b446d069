/* Moves pixels from a region to the halo of its neighbors. */
#ifndef SIDE_H
#define SIDE_H
#include "plan.h"

/* Moves lanes to the neighbors at a side; for two rows of four regions, AVX2 has an instruction for this. */
INLINE vec from_side(vec v, const struct side *side, const int shift)
{
#if LANES == 8 && defined(__AVX2__)
    const __m256 x = (__m256)v;
    switch (shift) {
    case ABOVE: return (vec)_mm256_permute2f128_ps(x, x, 0x08);
    case BELOW: return (vec)_mm256_permute2f128_ps(x, x, 0x81);
    case LEFT: return (vec)_mm256_slli_si256((__m256i)x, 4);
    case RIGHT: return (vec)_mm256_srli_si256((__m256i)x, 4);
    default: break;
    }
#endif
    (void)shift;
    return permute(v, side->lanes, side->mask);
}
#endif
