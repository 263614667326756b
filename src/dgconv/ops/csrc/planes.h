// What every small kernel needs: a thread's share of the items, norms and activations, sums over a row.
#pragma once

#include "kernels.h"
#include "vec.h"

namespace dgconv::DGCONV_ISA {

// The items of one thread: neighbours, so that it finds in its cache what it has just used.
struct Share {
    int64_t begin, end;
};

INLINE Share share_of(int64_t items, int rank, int threads) {
    return {items * rank / threads, items * (rank + 1) / threads};
}

// Calls body(image, channel) for a thread's share of all planes.
template <class Body>
INLINE void for_each_plane(int batch, const Planes& x, int rank, int threads, Body body) {
    const Share share = share_of(int64_t(batch) * x.channels, rank, threads);
    if (share.begin == share.end) return;  // there may be no channels at all
    int64_t image = share.begin / x.channels, channel = share.begin % x.channels;
    for (int64_t item = share.begin; item < share.end; ++item) {
        body(image, channel);
        if (++channel == x.channels) ++image, channel = 0;
    }
}

INLINE float* plane_of(const Planes& x, int64_t image, int64_t channel) {
    return x.data + image * x.image_stride + channel * x.height * x.width;
}

// As activate, for a float or a Vec and an activation that the compiler knows.
template <int ACTIVATION, class T>
INLINE T activated(T x) {
    if (ACTIVATION != IDENTITY) x = x < 0.0f ? T{} : x;
    if (ACTIVATION == RELU6) x = x > 6.0f ? T{} + 6.0f : x;
    return x;
}

struct NoNorm {
    template <class T>
    T operator()(T x) const {
        return x;
    }
};

template <int ACTIVATION>
struct ChannelNorm {
    float scale, shift;
    template <class T>
    T operator()(T x) const {
        return activated<ACTIVATION>(x * scale + shift);
    }
};

// Calls body with the norm of one channel, a function of a float or a Vec.
template <class Body>
INLINE void with_norm(const Norm& norm, int64_t channel, Body body) {
    if (!norm.scale) return body(NoNorm{});
    const float scale = norm.scale[channel], shift = norm.shift[channel];
    if (norm.activation == RELU) return body(ChannelNorm<RELU>{scale, shift});
    if (norm.activation == RELU6) return body(ChannelNorm<RELU6>{scale, shift});
    body(ChannelNorm<IDENTITY>{scale, shift});
}

// The last `count` lanes, the others 0.
INLINE Vec last_lanes(Vec v, int count) {
    IntVec lane;
    UNROLL for (int i = 0; i < WIDTH; ++i) lane[i] = i;
    return lane >= WIDTH - count ? v : Vec{};
}

constexpr int64_t MOST_SUMMED = 1 << 16;  // floats: of more, the sum would swallow what is added

// Sum of norm(x[0]) ... norm(x[count - 1]).
template <class AnyNorm>
inline float sum_row(const float* x, int64_t count, AnyNorm norm) {
    if (count > MOST_SUMMED) {
        double total = 0;
        for (int64_t i = 0; i < count; i += MOST_SUMMED)
            total += sum_row(x + i, count - i < MOST_SUMMED ? count - i : MOST_SUMMED, norm);
        return float(total);
    }
    if (count < WIDTH) {
        float total = 0;
        for (int64_t i = 0; i < count; ++i) total += norm(x[i]);
        return total;
    }
    Vec sum[4] = {};
    int64_t i = 0;
    for (; i + 4 * WIDTH <= count; i += 4 * WIDTH)
        for (int k = 0; k < 4; ++k) sum[k] += norm(load(x + i + k * WIDTH));
    for (; i + WIDTH <= count; i += WIDTH) sum[0] += norm(load(x + i));
    const int rest = int(count - i);  // read once more with what comes before it
    if (rest > 0) sum[1] += last_lanes(norm(load(x + count - WIDTH)), rest);
    return sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// Sum over i of row[i] * x[i]. Meanwhile fetches as many floats from `fetched`, which may be the row itself.
INLINE float dot(const float* row, const float* x, int64_t count, const float* fetched) {
    Vec sum[4] = {};
    int64_t i = 0;
    for (; i + 4 * WIDTH <= count; i += 4 * WIDTH) {
        UNROLL for (int k = 0; k < 4 * WIDTH; k += 16) __builtin_prefetch(fetched + i + k, 0, 2);
        UNROLL for (int k = 0; k < 4; ++k) sum[k] += load(row + i + k * WIDTH) * load(x + i + k * WIDTH);
    }
    for (; i + WIDTH <= count; i += WIDTH) sum[0] += load(row + i) * load(x + i);
    if (i < count) sum[1] += load_first(row + i, int(count - i)) * load_first(x + i, int(count - i));
    return sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

INLINE float dot(const float* row, const float* x, int64_t count) { return dot(row, x, count, row); }

// The same of bytes.
INLINE float dot(const int8_t* row, const float* x, int64_t count) {
    Vec sum[4] = {};
    int64_t i = 0;
    for (; i + 4 * WIDTH <= count; i += 4 * WIDTH)
        UNROLL for (int k = 0; k < 4; ++k) sum[k] += load_signed(row + i + k * WIDTH) * load(x + i + k * WIDTH);
    for (; i + WIDTH <= count; i += WIDTH) sum[0] += load_signed(row + i) * load(x + i);
    float total = sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; i < count; ++i) total += row[i] * x[i];
    return total;
}

// A matrix [count_rows, count], row by row, times a vector.
template <class Number>
INLINE void multiply(const Number* matrix, int64_t count_rows, const float* x, int64_t count, float* out) {
    for (int64_t row = 0; row < count_rows; ++row) out[row] = dot(matrix + row * count, x, count);
}

}  // namespace dgconv::DGCONV_ISA
