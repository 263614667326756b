// The generator of a gate, of which the weights are bytes: they take a quarter of the memory, and of the time to read it.
#pragma once

#include "byte_plan.h"

namespace dgconv::DGCONV_ISA {

INLINE Vec load_signed(const int8_t* from) {
#if defined(__AVX512VNNI__)
    return to_float((IntVec)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif defined(__AVX2__)
    return to_float((IntVec)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
    IntVec v;
    for (int i = 0; i < LANES; ++i) v[i] = from[i];
    return to_float(v);
#endif
}

INLINE Vec multiply_add(Vec a, Vec b, Vec sum) {
#if defined(__AVX512VNNI__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__AVX2__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
    return a * b + sum;
#endif
}

INLINE float dot_floats(const int8_t* weights, const float* x, int64_t count) {
    Vec sums[4] = {};
    int64_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        UNROLL for (int k = 0; k < 4; ++k)
            sums[k] = multiply_add(load_signed(weights + i + k * LANES), load(x + i + k * LANES), sums[k]);
    for (; i + LANES <= count; i += LANES) sums[0] = multiply_add(load_signed(weights + i), load(x + i), sums[0]);
    const Vec all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float sum = 0;
    for (int lane = 0; lane < LANES; ++lane) sum += all[lane];
    for (; i < count; ++i) sum += weights[i] * x[i];
    return sum;
}

// sums += the weighted sum of ROWS rows.
template <int ROWS>
INLINE void add_byte_rows(const int8_t* const* rows, const float* factors, int64_t count, float* sums) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        Vec sum = load(sums + i);
        UNROLL for (int r = 0; r < ROWS; ++r) sum = multiply_add(load_signed(rows[r] + i), Vec{} + factors[r], sum);
        memcpy(sums + i, &sum, sizeof sum);
    }
    for (; i < count; ++i)
        for (int r = 0; r < ROWS; ++r) sums[i] += rows[r][i] * factors[r];
}

// saliency [H, C] from the means of an image; `hidden` has room for the units of a head.
inline void generate(const Gate& gate, const ByteGenerator& weights, const float* means, float* saliency, float* hidden,
                     int rank, int threads) {
    constexpr int AT_ONCE = 8;
    const int64_t channels = gate.channels;
    const Share heads = share_of(gate.heads, rank, threads);
    for (int64_t head = heads.begin; head < heads.end; ++head) {
        const int64_t first = head * gate.hidden;
        for (int64_t unit = 0; unit < gate.hidden; ++unit) {
            const int64_t row = (first + unit) * channels;
            const float sum = dot_floats(weights.weight1 + row, means, channels);
            hidden[unit] = sum <= 0 ? 0 : sum * weights.scale[first + unit];  // NaN goes on
            for (int64_t c = 0; hidden[unit] != 0 && c < channels; c += 64) __builtin_prefetch(weights.weight2 + row + c);
        }
        float* const scores = saliency + head * channels;
        memcpy(scores, gate.beta + head * channels, channels * sizeof(float));
        const int8_t* rows[AT_ONCE];
        float factors[AT_ONCE];
        int waiting = 0;
        for (int64_t unit = 0; unit < gate.hidden; ++unit) {
            if (hidden[unit] == 0) continue;
            rows[waiting] = weights.weight2 + (first + unit) * channels;
            factors[waiting++] = hidden[unit];
            if (waiting == AT_ONCE) add_byte_rows<AT_ONCE>(rows, factors, channels, scores), waiting = 0;
        }
        for (int i = 0; i < waiting; ++i) add_byte_rows<1>(rows + i, factors + i, channels, scores);
        for (int64_t c = 0; !gate.is_global && c < channels; ++c) scores[c] = scores[c] < 0 ? 0 : scores[c];
    }
}

}  // namespace dgconv::DGCONV_ISA
