// Vectors for sums of bytes: LANES sums of 32 bits, to which `dot` adds GROUP products each.
#pragma once

#include <cstring>

#include "kernels.h"
#include "quantized.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define INLINE inline
#else
#define INLINE inline __attribute__((always_inline))
#endif
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif

namespace dgconv::DGCONV_ISA {

#if defined(__AVX512VNNI__) || defined(DGCONV_TILES)
constexpr int LANES = 16, SUMS = 28, REGISTERS = 32;  // SUMS: vectors of them that fit, beside what they are made of
#elif defined(__AVX2__)
constexpr int LANES = 8, SUMS = 12, REGISTERS = 16;
#else
constexpr int LANES = 4, SUMS = 8, REGISTERS = 16;
#endif

typedef int32_t IntVec __attribute__((vector_size(4 * LANES), may_alias));
typedef float Vec __attribute__((vector_size(4 * LANES), may_alias));
typedef uint8_t ByteVec __attribute__((vector_size(LANES), may_alias));

#if defined(__AVX512VNNI__)
typedef int8_t Weight;
constexpr int GROUP = 4;
typedef __m512i Four;
INLINE Four spread(const uint8_t* from) {
    int32_t four;
    memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
}
INLINE __m512i load_weights(const Weight* from) { return _mm512_loadu_si512(from); }
INLINE IntVec dot(IntVec sum, Four x, __m512i w) { return (IntVec)_mm512_dpbusd_epi32((__m512i)sum, x, w); }
#elif defined(__AVXVNNI__)
typedef int8_t Weight;
constexpr int GROUP = 4;
typedef __m256i Four;
INLINE Four spread(const uint8_t* from) {
    int32_t four;
    memcpy(&four, from, sizeof four);
    return _mm256_set1_epi32(four);
}
INLINE __m256i load_weights(const Weight* from) { return _mm256_loadu_si256((const __m256i*)from); }
INLINE IntVec dot(IntVec sum, Four x, __m256i w) { return (IntVec)_mm256_dpbusd_avx_epi32((__m256i)sum, x, w); }
#elif defined(__AVX2__)
// Products of 16 bits, two at a time: the instruction for bytes saturates.
typedef int16_t Weight;
constexpr int GROUP = 2;
typedef __m256i Four;
INLINE Four spread(const uint8_t* from) {
    int16_t two;
    memcpy(&two, from, sizeof two);
    return _mm256_cvtepu8_epi16(_mm_set1_epi16(two));
}
INLINE __m256i load_weights(const Weight* from) { return _mm256_loadu_si256((const __m256i*)from); }
INLINE IntVec dot(IntVec sum, Four x, __m256i w) { return sum + (IntVec)_mm256_madd_epi16(x, w); }
#elif defined(DGCONV_TILES)
// For tests, what tiles share with vectors of AVX-512.
typedef int8_t Weight;
constexpr int GROUP = 4;
struct Four {
    uint8_t bytes[GROUP];
};
typedef const Weight* WeightsInPlace;
INLINE Four spread(const uint8_t* from) { return {{from[0], from[1], from[2], from[3]}}; }
INLINE WeightsInPlace load_weights(const Weight* from) { return from; }
INLINE IntVec dot(IntVec sum, Four x, WeightsInPlace w) {
    for (int i = 0; i < LANES * GROUP; ++i) sum[i / GROUP] += x.bytes[i % GROUP] * w[i];
    return sum;
}
#else
typedef int32_t Weight;
constexpr int GROUP = 1;
typedef int32_t Four;
INLINE Four spread(const uint8_t* from) { return *from; }
INLINE IntVec load_weights(const Weight* from) {
    IntVec w;
    memcpy(&w, from, sizeof w);
    return w;
}
INLINE IntVec dot(IntVec sum, Four x, IntVec w) { return sum + x * w; }
#endif

// With weights out of memory: a compiler would keep them, and put away a sum for them.
INLINE IntVec dot_in_place(IntVec sum, Four x, const Weight* w) {
#if defined(__AVX512VNNI__)
    __m512i result = (__m512i)sum;
    asm("vpdpbusd %2, %1, %0" : "+v"(result) : "v"(x), "m"(*(const __m512i_u*)w));
    return (IntVec)result;
#else
    return dot(sum, x, load_weights(w));
#endif
}

INLINE Vec load(const float* from) {
    Vec v;
    memcpy(&v, from, sizeof v);
    return v;
}
INLINE IntVec load(const int32_t* from) {
    IntVec v;
    memcpy(&v, from, sizeof v);
    return v;
}
INLINE Vec to_float(IntVec v) { return __builtin_convertvector(v, Vec); }

// The first `count` bytes; others are 0.
INLINE IntVec load_bytes(const uint8_t* from, int count) {
#if defined(__AVX512VNNI__)
    return (IntVec)_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8((__mmask16)((1u << count) - 1), from));
#else
    ByteVec bytes{};
    if (count == LANES)
        memcpy(&bytes, from, LANES);
    else
        for (int i = 0; i < count; ++i) bytes[i] = from[i];
    return __builtin_convertvector(bytes, IntVec);
#endif
}

INLINE void store_bytes(uint8_t* to, IntVec v, int count) {
#if defined(__AVX512VNNI__)
    _mm_mask_storeu_epi8(to, (__mmask16)((1u << count) - 1), _mm512_cvtepi32_epi8((__m512i)v));
#else
    const ByteVec bytes = __builtin_convertvector(v, ByteVec);
    if (count == LANES)
        memcpy(to, &bytes, LANES);
    else
        for (int i = 0; i < count; ++i) to[i] = bytes[i];
#endif
}

#if defined(__AVX512VNNI__)
// Of four vectors that were packed, quarter by quarter.
INLINE __m512i in_order(__m512i packed) {
    return _mm512_permutexvar_epi32(_mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), packed);
}
#endif

// Bytes as they are, as many as fit in a vector.
constexpr int WIDE = 4 * LANES;
typedef uint8_t WideVec __attribute__((vector_size(WIDE), may_alias));
INLINE WideVec load_wide(const uint8_t* from, int count) {
#if defined(__AVX512VNNI__)
    return (WideVec)_mm512_maskz_loadu_epi8(count >= 64 ? ~uint64_t(0) : (uint64_t(1) << count) - 1, from);
#else
    WideVec v{};
    memcpy(&v, from, count < WIDE ? count : WIDE);
    return v;
#endif
}
INLINE void store_wide(uint8_t* to, WideVec v, int count) {
#if defined(__AVX512VNNI__)
    _mm512_mask_storeu_epi8(to, count >= 64 ? ~uint64_t(0) : (uint64_t(1) << count) - 1, (__m512i)v);
#else
    memcpy(to, &v, count < WIDE ? count : WIDE);
#endif
}

// Adding this number to a small one leaves its nearest integer, ties to even, in the last bits.
constexpr float ROUNDING = 12582912.0f;  // 1.5 * 2^23
constexpr int32_t ROUNDING_BITS = 0x4b400000;

INLINE IntVec to_byte(Vec v, const ToByte& to) {
    const Vec low = Vec{} + to.low, high = Vec{} + to.high;
#if defined(__AVX512VNNI__)
    v = (Vec)_mm512_min_ps(_mm512_max_ps((__m512)v, (__m512)low), (__m512)high);  // of NaN and low, low
#elif defined(__AVX2__)
    v = (Vec)_mm256_min_ps(_mm256_max_ps((__m256)v, (__m256)low), (__m256)high);
#else
    v = v > low ? v : low;  // NaN, too
    v = v < high ? v : high;
#endif
    return (IntVec)(v + ROUNDING) - (ROUNDING_BITS - to.zero);
}

INLINE int32_t to_byte(float v, const ToByte& to) {
    v = v > to.low ? v : to.low;
    v = v < to.high ? v : to.high;
    v += ROUNDING;
    int32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits - (ROUNDING_BITS - to.zero);
}

#if defined(__AVX512VNNI__)
// Four vectors as `to_byte` does it, with fewer instructions, quarter by quarter of all of them: what is below 0 becomes
// 0 by saturation, if that is the least result.
template <bool IS_LEAST_0>
INLINE __m512i to_quarters(const Vec (&v)[4], const ToByte& to) {
    const __m512 low = _mm512_set1_ps(to.low), high = _mm512_set1_ps(to.high);
    const __m512i zero = _mm512_set1_epi16(int16_t(to.zero));
    __m512i n[4];
    UNROLL for (int i = 0; i < 4; ++i) {
        // Of NaN and another number, an instruction takes the second.
        n[i] = _mm512_cvtps_epi32(IS_LEAST_0 ? _mm512_min_ps(high, (__m512)v[i])
                                             : _mm512_min_ps(_mm512_max_ps((__m512)v[i], low), high));
    }
    const __m512i words = _mm512_adds_epi16(_mm512_packs_epi32(n[0], n[1]), zero);
    const __m512i more = _mm512_adds_epi16(_mm512_packs_epi32(n[2], n[3]), zero);
    return _mm512_packus_epi16(words, more);
}
INLINE bool is_least_0(const ToByte& to) { return to.low == -float(to.zero); }
INLINE __m512i to_quarters(const Vec (&v)[4], const ToByte& to) {
    return is_least_0(to) ? to_quarters<true>(v, to) : to_quarters<false>(v, to);
}
#endif

// Of vectors that follow each other, all of them whole.
template <int VECTORS>
INLINE void store_as_bytes(uint8_t* to, const Vec (&v)[VECTORS], const ToByte& as) {
#if defined(__AVX512VNNI__)
    if constexpr (VECTORS == 4) return _mm512_storeu_si512(to, in_order(to_quarters(v, as)));
#endif
    UNROLL for (int i = 0; i < VECTORS; ++i) store_bytes(to + i * LANES, to_byte(v[i], as), LANES);
}

INLINE int smaller(int a, int b) { return a < b ? a : b; }
INLINE int larger(int a, int b) { return a > b ? a : b; }
INLINE int divide_up(int a, int b) { return (a + b - 1) / b; }
INLINE int round_up(int a, int b) { return divide_up(a, b) * b; }
INLINE int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }  // of the cache

// Fetches so many cache lines of what later steps will read.
INLINE void fetch(Ahead* ahead, int64_t lines) {
    constexpr int LINE = 16;  // floats
    for (; lines > 0; --lines) {
        if (ahead->lines <= 0) {
            if (ahead->next >= ahead->end) return;
            const Region& region = ahead->regions[ahead->next++];
            ahead->lines = region.floats / LINE / ahead->threads;
            ahead->from = region.data + ahead->lines * LINE * ahead->rank;
            continue;
        }
        __builtin_prefetch(ahead->from, 0, 2);
        ahead->from += LINE, --ahead->lines;
    }
}

struct Share {
    int64_t begin, end;
};
INLINE Share share_of(int64_t items, int rank, int threads) {
    return {items * rank / threads, items * (rank + 1) / threads};
}

INLINE uint8_t* pixel_of(const Pixels& x, int64_t row, int64_t column) {
    return x.data + (row * x.width + column) * x.pixel_stride;
}

}  // namespace dgconv::DGCONV_ISA
