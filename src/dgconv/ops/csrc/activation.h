// Activations that are no pair of bounds: by polynomials, within a few 1e-7 of what torch computes, relatively or, where
// results are near zero, to the greatest.
#pragma once

#include "vec.h"

namespace dgconv::DGCONV_ISA {

INLINE bool is_bounds(int32_t activation) { return activation <= RELU6; }

// NaN stays NaN: it passes the clamp, and whatever is multiplied with it is one.
INLINE Vec exponential(Vec x) {
    constexpr float LOG2_E = 1.44269504f, LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
    constexpr float SHIFT = 12582912;  // 1.5 * 2^23: what is added to it is rounded, and stands in its last bits
    x = x < -87.3f ? splat(-87.3f) : x;
    x = x > 88.3f ? splat(88.3f) : x;
    const Vec shifted = x * LOG2_E + SHIFT, whole = shifted - SHIFT;
    const Vec r = (x - whole * LN2_HIGH) - whole * LN2_LOW;
    Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    return p * (Vec)(((IntVec)shifted << 23) + (127 << 23));
}

// 1 / x for an x from 1 on: an estimate, and one step of Newton's.
INLINE Vec reciprocal(Vec x) {
#if DGCONV_VECTOR_FLOATS == 16
    const Vec estimate = (Vec)_mm512_rcp14_ps((__m512)x);
    return estimate * (2 - x * estimate);
#else
    return 1 / x;
#endif
}

INLINE Vec sigmoid(Vec x) { return reciprocal(1 + exponential(-x)); }

// Abramowitz and Stegun, 7.1.26.
INLINE Vec gelu(Vec x) {
    Vec z = x * 0.70710678f;
    const Vec squared = z * z;
    z = z < 0 ? -z : z;
    const Vec t = reciprocal(1 + 0.3275911f * z);
    Vec p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const Vec beyond = p * t * exponential(-squared) * 0.5f;  // of the normal distribution, behind abs(x)
    return x * (x < 0 ? beyond : 1 - beyond);
}

template <int ACTIVATION>
INLINE Vec activated_vector(Vec x) {
    if (ACTIVATION == SILU) return x * sigmoid(x);
    if (ACTIVATION == SIGMOID) return sigmoid(x);
    if (ACTIVATION == TANH) return 2 * sigmoid(2 * x) - 1;
    if (ACTIVATION == GELU) return gelu(x);
    if (ACTIVATION == GELU_TANH) return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
    const Vec part = activate(x + 3, RELU6) * (1.0f / 6);
    if (ACTIVATION == HARD_SIGMOID) return part;
    return x * part;
}

// Over `count` floats, in place; returns their sums by lane.
template <class Function>
INLINE Vec apply(float* x, int64_t count, Function function) {
    Vec total{};
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        const Vec v = function(load(x + i));
        store(x + i, v);
        total += v;
    }
    if (i < count) {
        const int rest = int(count - i);
        const Vec v = function(load_first(x + i, rest));
        store_first(x + i, v, rest);
        total += first_lanes(v, rest);
    }
    return total;
}

inline Vec activate_all(float* x, int64_t count, int32_t activation) {
    switch (activation) {
        case SILU: return apply(x, count, [](Vec v) { return activated_vector<SILU>(v); });
        case HARD_SWISH: return apply(x, count, [](Vec v) { return activated_vector<HARD_SWISH>(v); });
        case HARD_SIGMOID: return apply(x, count, [](Vec v) { return activated_vector<HARD_SIGMOID>(v); });
        case SIGMOID: return apply(x, count, [](Vec v) { return activated_vector<SIGMOID>(v); });
        case TANH: return apply(x, count, [](Vec v) { return activated_vector<TANH>(v); });
        case GELU: return apply(x, count, [](Vec v) { return activated_vector<GELU>(v); });
        case GELU_TANH: return apply(x, count, [](Vec v) { return activated_vector<GELU_TANH>(v); });
    }
    return apply(x, count, [=](Vec v) { return activate(v, activation); });
}

}  // namespace dgconv::DGCONV_ISA
