/* Vectors of LANES floats, in the vector extensions of gcc and clang.
 *
 * Kernels include no header of the C library and call at most memcpy, so that they also build for WebAssembly and for
 * devices without an operating system.
 */
#ifndef VECTOR_H
#define VECTOR_H
#include <stddef.h>
#include <stdint.h>
#ifdef __SSE__
#include <immintrin.h>
#endif

#ifndef LOCAL /* visibility of functions that other files call; static if all files are joined into one */
#define LOCAL __attribute__((visibility("hidden")))
#endif

#ifndef WEIGHT_BITS
#define WEIGHT_BITS 32
#endif

#ifndef LANES
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#endif

#if LANES == 16 && defined(__AVX512F__) || LANES == 8 && defined(__AVX2__)
#define WIDE 1 /* native vectors of this width, with their instructions */
#else
#define WIDE 0
#endif

#define VECTOR ((int)sizeof(vec)) /* bytes */

/* One native register: compilers generate slow code for wider vectors. The cells of an arena may alias anything. */
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef vec cell __attribute__((may_alias));
typedef ivec icell __attribute__((may_alias));

#define INLINE static inline __attribute__((always_inline, unused))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define EACH(i, n) \
    UNROLL \
    for (int i = 0; i < (n); i++)

/* Keeps a number in one register: otherwise compilers compute or load it again in the innermost loop. */
#define OPAQUE(p) __asm__("" : "+r"(p))

INLINE vec load(const char *p) { return *(const cell *)p; }
INLINE void store(char *p, vec v) { *(cell *)p = v; }
INLINE vec splat(float x) { return x - (vec){0}; }

INLINE vec choose(ivec where, vec a, vec b) { return (vec)((where & (ivec)a) | (~where & (ivec)b)); }

/* Maximum and minimum; b if a or b is NaN. Compilers do not select these instructions themselves. */
#if LANES == 16 && defined(__AVX512F__)
INLINE vec max(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vec min(vec a, vec b) { return (vec)_mm512_min_ps((__m512)a, (__m512)b); }
#elif LANES == 8 && defined(__AVX__)
INLINE vec max(vec a, vec b) { return (vec)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vec min(vec a, vec b) { return (vec)_mm256_min_ps((__m256)a, (__m256)b); }
#elif LANES == 4 && defined(__SSE__)
INLINE vec max(vec a, vec b) { return (vec)_mm_max_ps((__m128)a, (__m128)b); }
INLINE vec min(vec a, vec b) { return (vec)_mm_min_ps((__m128)a, (__m128)b); }
#elif defined(__wasm_simd128__)
INLINE vec max(vec a, vec b) { return __builtin_wasm_pmax_f32x4(b, a); }
INLINE vec min(vec a, vec b) { return __builtin_wasm_pmin_f32x4(b, a); }
#else
INLINE vec max(vec a, vec b) { return choose(a > b, a, b); }
INLINE vec min(vec a, vec b) { return choose(a < b, a, b); }
#endif

INLINE vec masked(vec v, const char *mask) { return (vec)((ivec)v & *(const icell *)mask); }

/* Moves lanes, and sets lanes to zero that the mask excludes. */
INLINE vec permute(vec v, ivec lanes, ivec mask)
{
#ifdef __wasm_simd128__
    typedef signed char bytes __attribute__((vector_size(16)));
    const ivec at = lanes * 0x04040404 + 0x03020100; /* the four bytes of each lane */
    return (vec)((ivec)__builtin_wasm_swizzle_i8x16((bytes)v, (bytes)at) & mask);
#elif defined(__clang__)
    vec moved = v;
    for (int l = 0; l < LANES; l++) moved[l] = v[lanes[l]];
    return (vec)((ivec)moved & mask);
#else
    return (vec)((ivec)__builtin_shuffle(v, lanes) & mask);
#endif
}
#endif
