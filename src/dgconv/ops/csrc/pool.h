// Max and average pooling, plane by plane: each output row first reduces the rows of its windows to one, padded, then
// the columns.
#pragma once

#include "planes.h"

namespace dgconv::DGCONV_ISA {

struct Max {
    static constexpr float NEUTRAL = -__builtin_inff();
    template <class T>
    INLINE T operator()(T a, T b) const {
        return (b > a) | (b != b) ? b : a;  // NaN wins, as in torch
    }
};

struct Sum {
    static constexpr float NEUTRAL = 0;
    template <class T>
    INLINE T operator()(T a, T b) const {
        return a + b;
    }
};

// out[i] = reduction over the rows, for all columns of the image.
template <class Reduce, class AnyNorm>
INLINE void reduce_rows(const float* x, int64_t rows, int64_t width, AnyNorm norm, float* out) {
    const auto column = [&](auto get, int64_t i) {
        auto result = norm(get(x + i));
        for (int64_t r = 1; r < rows; ++r) result = Reduce()(result, norm(get(x + r * width + i)));
        return result;
    };
    for (int64_t i = 0; i + WIDTH <= width; i += WIDTH) store(out + i, column(load, i));
    if (width % WIDTH == 0) return;
    if (width > WIDTH) return store(out + width - WIDTH, column(load, width - WIDTH));  // some of them once more
    for (int64_t i = 0; i < width; ++i) out[i] = column([](const float* at) { return *at; }, i);
}

// out[i] = reduction over the `kernel` columns from i * stride on, divided. The padded row may be read to WIDTH floats
// beyond its end.
template <class Reduce>
INLINE void reduce_columns(const float* padded, const Window& window, int64_t count, float divisor, float* out) {
    const auto reduced = [&](int64_t from) {
        Vec result = load(padded + from);
        for (int64_t k = 1; k < window.kernel_w; ++k) result = Reduce()(result, load(padded + from + k));
        return result / divisor;
    };
    for (int64_t i = 0; i < count; i += WIDTH) {
        const int some = count - i < WIDTH ? int(count - i) : WIDTH;
        if (window.stride_w == 1) {
            store_first(out + i, reduced(i), some);
        } else if (window.stride_w == 2) {
            store_first(out + i, shuffle<Even>(reduced(2 * i), reduced(2 * i + WIDTH)), some);
        } else {
            for (int64_t lane = 0; lane < some; ++lane) out[i + lane] = reduced((i + lane) * window.stride_w)[0];
        }
    }
}

// Length of a padded row: what the windows cover, and what whole vectors read beyond.
inline int64_t pool_scratch_floats(const Window& window, const Planes& x, const Planes& y) {
    const int64_t covered = y.width * int64_t(window.stride_w) + window.kernel_w, padded = window.pad_left + x.width;
    return (covered > padded ? covered : padded) + 3 * WIDTH;
}

template <class Reduce, class AnyNorm>
INLINE void pool_plane(const Window& window, const float* x, const Planes& in, float* y, const Planes& out,
                       AnyNorm norm, float* padded) {
    const float divisor = window.is_max ? 1.0f : float(window.kernel_h * window.kernel_w);
    for (int64_t i = pool_scratch_floats(window, in, out); i-- > 0;) padded[i] = Reduce::NEUTRAL;
    for (int64_t row = 0; row < out.height; ++row) {
        const int64_t top = row * window.stride_h - window.pad_top;
        const int64_t first = top > 0 ? top : 0;
        const int64_t end = top + window.kernel_h < in.height ? top + window.kernel_h : in.height;
        reduce_rows<Reduce>(x + first * in.width, end - first, in.width, norm, padded + window.pad_left);
        reduce_columns<Reduce>(padded, window, out.width, divisor, y + row * out.width);
    }
}

inline void pool(const Window& window, const Norm& norm, int batch, Planes x, Planes y, float* scratch, int rank,
                 int threads) {
    for_each_plane(batch, x, rank, threads, [&](int64_t image, int64_t channel) {
        const float* from = plane_of(x, image, channel);
        float* to = plane_of(y, image, channel);
        with_norm(norm, channel, [&](auto pixel) {
            if (window.is_max)
                pool_plane<Max>(window, from, x, to, y, pixel, scratch);
            else
                pool_plane<Sum>(window, from, x, to, y, pixel, scratch);
        });
    });
}

}  // namespace dgconv::DGCONV_ISA
