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

INLINE float total(Vec v) {
#if defined(__AVX512VNNI__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    float sum = 0;
    for (int lane = 0; lane < LANES; ++lane) sum += v[lane];
    return sum;
#endif
}

constexpr int UNITS_AHEAD = 12;  // whose rows memory is asked for

// The products of ROWS rows of weights and x.
template <int ROWS>
INLINE void dot_rows(const int8_t* weights, const float* x, int64_t count, float* products) {
    Vec sums[ROWS][2] = {};
    int64_t i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        if (i % 64 == 0) {
            UNROLL for (int r = 0; r < ROWS; ++r) __builtin_prefetch(weights + (r + UNITS_AHEAD) * count + i);
        }
        const Vec even = load(x + i), odd = load(x + i + LANES);
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const int8_t* const row = weights + r * count + i;
            sums[r][0] = multiply_add(load_signed(row), even, sums[r][0]);
            sums[r][1] = multiply_add(load_signed(row + LANES), odd, sums[r][1]);
        }
    }
    UNROLL for (int r = 0; r < ROWS; ++r) {
        const int8_t* const row = weights + r * count;
        int64_t rest = i;
        if (rest + LANES <= count) {
            sums[r][0] = multiply_add(load_signed(row + rest), load(x + rest), sums[r][0]);
            rest += LANES;
        }
        products[r] = total(sums[r][0] + sums[r][1]);
        for (; rest < count; ++rest) products[r] += row[rest] * x[rest];
    }
}

// sums += the weighted sum of ROWS rows.
template <int ROWS>
INLINE void add_byte_rows(const int8_t* const* rows, const float* factors, int64_t count, float* sums) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        Vec parts[2] = {load(sums + i)};
        UNROLL for (int r = 0; r < ROWS; ++r)
            parts[r % 2] = multiply_add(load_signed(rows[r] + i), Vec{} + factors[r], parts[r % 2]);
        const Vec sum = parts[0] + parts[1];
        memcpy(sums + i, &sum, sizeof sum);
    }
    for (; i < count; ++i)
        for (int r = 0; r < ROWS; ++r) sums[i] += rows[r][i] * factors[r];
}

// saliency [H, scored channels] from the means of an image; `hidden` has room for the units of a head.
inline void generate(const Gate& gate, const ByteGenerator& weights, const float* means, float* saliency, float* hidden,
                     int rank, int threads) {
    constexpr int AT_ONCE = 8, UNITS = 4;
    const int64_t channels = gate.channels, scored = scored_channels(gate);
    const Share heads = share_of(gate.heads, rank, threads);
    for (int64_t head = heads.begin; head < heads.end; ++head) {
        const int64_t first = head * gate.hidden;
        const int8_t *const weight1 = weights.weight1 + first * channels, *const weight2 = weights.weight2 + first * scored;
        for (int64_t unit = 0; unit < gate.hidden; unit += UNITS) {
            const int64_t count = gate.hidden - unit < UNITS ? gate.hidden - unit : UNITS;
            if (count == UNITS) {
                dot_rows<UNITS>(weight1 + unit * channels, means, channels, hidden + unit);
            } else {
                for (int64_t i = unit; i < unit + count; ++i)
                    dot_rows<1>(weight1 + i * channels, means, channels, hidden + i);
            }
            for (int64_t i = unit; i < unit + count; ++i)
                for (int64_t c = 0; hidden[i] > 0 && c < scored; c += 64) __builtin_prefetch(weight2 + i * scored + c);
        }
        float* const scores = saliency + head * scored;
        memcpy(scores, gate.beta + head * scored, scored * sizeof(float));
        const int8_t* rows[AT_ONCE];
        float factors[AT_ONCE];
        int waiting = 0;
        for (int64_t unit = 0; unit < gate.hidden; ++unit) {  // units that the relu set to zero add nothing
            rows[waiting] = weight2 + unit * scored;
            factors[waiting] = hidden[unit] * weights.scale[first + unit];
            waiting += !(hidden[unit] <= 0);  // NaN goes on
            if (waiting == AT_ONCE) add_byte_rows<AT_ONCE>(rows, factors, scored, scores), waiting = 0;
        }
        for (int i = waiting; i < AT_ONCE; ++i) rows[i] = weight2, factors[i] = 0;
        if (waiting) add_byte_rows<AT_ONCE>(rows, factors, scored, scores);
        for (int64_t c = 0; !gate.is_global && c < scored; ++c) scores[c] = scores[c] < 0 ? 0 : scores[c];
    }
}

}  // namespace dgconv::DGCONV_ISA
