/* Mathematical functions of vectors, without the C library. */
#ifndef VECTOR_MATH_H
#define VECTOR_MATH_H
#include "vector.h"

INLINE vec relu(vec v) { return max(splat(0), v); }

/* e^x to a few units in the last place: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]. */
INLINE vec exponential(vec x)
{
    x = min(splat(88.0f), max(splat(-87.0f), x));
    const vec magic = splat(12582912.0f); /* adding 1.5 * 2^23 rounds to an integer */
    const vec n = (x * 1.44269504f + magic) - magic;
    const vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const ivec power = ((ivec)(n + magic) - (ivec)magic + 127) << 23;
    return p * (vec)power;
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }
INLINE vec hard_sigmoid(vec x) { return min(splat(1), max(splat(0), x * (1 / 6.0f) + 0.5f)); }

/* Cumulative distribution function of the normal distribution, to a few units in the last place:
 * 1 - q(x) for x >= 0 and q(-x) for x < 0, with q(x) = t P(t) exp(-x^2 / 2) and t = 1 / (1 + |x| / sqrt(8)). The
 * polynomial P was fitted by least squares of the relative error. */
INLINE vec normal_cdf(vec x)
{
    const vec size = max(-x, x), t = 1.0f / (1.0f + size * 0.353553391f);
    vec p = splat(-0.0280373812f);
    p = p * t + 0.134783383f;
    p = p * t - 0.227571178f;
    p = p * t + 0.120022694f;
    p = p * t + 0.000346244865f;
    p = p * t + 0.0952715965f;
    p = p * t + 0.123178466f;
    p = p * t + 0.140948133f;
    p = p * t + 0.141058024f;
    const vec q = t * p * exponential(x * x * -0.5f);
    return choose(x < 0, q, 1.0f - q);
}
#endif
