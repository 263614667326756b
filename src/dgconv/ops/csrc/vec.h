// Vectors of floats, as wide as the instruction set has them, by the compilers' vector extensions.
//
// Arithmetic is written with plain operators; here is what operators do not say: unaligned and partial access,
// shuffles, transposing a square block, activations.
#pragma once

#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels.h"

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

constexpr int WIDTH = DGCONV_VECTOR_FLOATS;
constexpr int REGISTERS = DGCONV_REGISTERS;

typedef float Vec __attribute__((vector_size(4 * WIDTH), may_alias));
typedef float LooseVec __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t IntVec __attribute__((vector_size(4 * WIDTH), may_alias));

INLINE Vec load(const float* from) { return *reinterpret_cast<const LooseVec*>(from); }
INLINE Vec load_signed(const int8_t* from) {
#if DGCONV_VECTOR_FLOATS == 16
    return (Vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif DGCONV_VECTOR_FLOATS == 8
    return (Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
    Vec v;
    for (int i = 0; i < WIDTH; ++i) v[i] = from[i];
    return v;
#endif
}
INLINE void store(float* to, Vec v) { *reinterpret_cast<LooseVec*>(to) = v; }
INLINE Vec splat(float x) { return x - Vec{}; }  // x - 0 is x, also for -0

// The first `count` floats only, 0 <= count <= WIDTH; the other lanes are 0.
INLINE Vec load_first(const float* from, int count) {
#if DGCONV_VECTOR_FLOATS == 16
    return (Vec)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#elif DGCONV_VECTOR_FLOATS == 8
    return (Vec)_mm256_maskload_ps(from, (__m256i)(IntVec{0, 1, 2, 3, 4, 5, 6, 7} < count));
#else
    Vec v{};
    for (int i = 0; i < count; ++i) v[i] = from[i];
    return v;
#endif
}

INLINE void store_first(float* to, Vec v, int count) {
#if DGCONV_VECTOR_FLOATS == 16
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), (__m512)v);
#elif DGCONV_VECTOR_FLOATS == 8
    _mm256_maskstore_ps(to, (__m256i)(IntVec{0, 1, 2, 3, 4, 5, 6, 7} < count), (__m256)v);
#else
    for (int i = 0; i < count; ++i) to[i] = v[i];
#endif
}

// Lanes from `count` on set to 0.
template <size_t... lane>
INLINE Vec first_lanes(Vec v, int count, std::index_sequence<lane...>) {
    return (Vec)((IntVec)v & (IntVec{static_cast<int32_t>(lane)...} < count));
}
INLINE Vec first_lanes(Vec v, int count) { return first_lanes(v, count, std::make_index_sequence<WIDTH>()); }

// Loads v here and now, instead of again for each use.
INLINE void hold(Vec& v) {
#if defined(__x86_64__)
    asm("" : "+v"(v));
#elif defined(__aarch64__)
    asm("" : "+w"(v));
#endif
}

// NaN stays NaN, as in torch.
INLINE Vec activate(Vec v, int32_t activation) {
    if (activation == IDENTITY) return v;
    v = v < 0 ? Vec{} : v;
    return activation == RELU6 ? (v > 6 ? splat(6) : v) : v;
}

// Lane i of the result is lane index(i) of a and b side by side.
template <class Index, size_t... lane>
INLINE Vec shuffle(Vec a, Vec b, std::index_sequence<lane...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, Index::of(lane)...);
#else
    return __builtin_shuffle(a, b, IntVec{Index::of(lane)...});
#endif
}
template <class Index>
INLINE Vec shuffle(Vec a, Vec b) {
    return shuffle<Index>(a, b, std::make_index_sequence<WIDTH>());
}

template <int DISTANCE>
struct LanesFrom {
    static constexpr int of(int lane) { return lane + DISTANCE; }
};

// Lane i of the first COUNT is the sum of the lanes i, i + COUNT, i + 2 COUNT, ... Of floats or integers.
template <int COUNT, int DISTANCE = WIDTH / 2, class V>
INLINE V sum_lanes(V v) {
    if constexpr (DISTANCE < COUNT) {
        return v;
    } else {
        return sum_lanes<COUNT, DISTANCE / 2>(v + (V)shuffle<LanesFrom<DISTANCE>>((Vec)v, (Vec)v));
    }
}
template <class V>
INLINE auto sum_lanes(V v) {
    return sum_lanes<1>(v)[0];
}

// Every second lane of a and b.
struct Even {
    static constexpr int of(int lane) { return 2 * lane; }
};
struct Odd {
    static constexpr int of(int lane) { return 2 * lane + 1; }
};

// Transposing swaps, at each distance, the far lanes of one row with the near lanes of another.
template <int DISTANCE>
struct NearLanes {
    static constexpr int of(int lane) { return lane & DISTANCE ? WIDTH + lane - DISTANCE : lane; }
};
template <int DISTANCE>
struct FarLanes {
    static constexpr int of(int lane) { return lane & DISTANCE ? WIDTH + lane : lane + DISTANCE; }
};

template <int DISTANCE = WIDTH / 2>
INLINE void transpose(Vec* rows) {
    if constexpr (DISTANCE > 0) {
        UNROLL for (int i = 0; i < WIDTH; ++i) {
            if (i & DISTANCE) continue;
            const Vec a = rows[i], b = rows[i + DISTANCE];
            rows[i] = shuffle<NearLanes<DISTANCE>>(a, b);
            rows[i + DISTANCE] = shuffle<FarLanes<DISTANCE>>(a, b);
        }
        transpose<DISTANCE / 2>(rows);
    }
}

// Of each four lanes two, from FIRST on: SIZE of a, as many of b, and so on.
template <int FIRST, int SIZE>
struct QuadZip {
    static constexpr int of(int lane) {
        return lane / 4 * 4 + FIRST + lane % 4 / (2 * SIZE) * SIZE + lane % SIZE + lane / SIZE % 2 * WIDTH;
    }
};

// In every quarter of four vectors, that is four lanes: a row becomes a column.
INLINE void transpose_quads(Vec (&v)[4]) {
    Vec low[2], high[2];
    UNROLL for (int i = 0; i < 2; ++i) {
        low[i] = shuffle<QuadZip<0, 1>>(v[2 * i], v[2 * i + 1]);
        high[i] = shuffle<QuadZip<2, 1>>(v[2 * i], v[2 * i + 1]);
    }
    v[0] = shuffle<QuadZip<0, 2>>(low[0], low[1]);
    v[1] = shuffle<QuadZip<2, 2>>(low[0], low[1]);
    v[2] = shuffle<QuadZip<0, 2>>(high[0], high[1]);
    v[3] = shuffle<QuadZip<2, 2>>(high[0], high[1]);
}

}  // namespace dgconv::DGCONV_ISA
