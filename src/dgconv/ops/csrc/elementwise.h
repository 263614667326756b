// Steps without a window: norm, sum and activation of whole planes (without any of them, a copy), and the classifier.
#pragma once

#include "activation.h"
#include "planes.h"

namespace dgconv::DGCONV_ISA {

template <int ACTIVATION, class AnyNorm>
INLINE void elementwise_plane(const float* __restrict x, const float* __restrict other, float* __restrict y,
                            int64_t pixels, AnyNorm norm) {
    if (other)
        for (int64_t i = 0; i < pixels; ++i) y[i] = activated<ACTIVATION>(norm(x[i]) + other[i]);
    else
        for (int64_t i = 0; i < pixels; ++i) y[i] = activated<ACTIVATION>(norm(x[i]));
}

// y = activation(norm(x) + other), or activation(x * factor + other), the factor being a row; each of the three may be
// null. Channel c of y is made of channel order[c] of x, or of c.
inline void elementwise(const Norm& norm, int32_t activation, int batch, Planes x, const int32_t* order,
                        const Planes* factor, const Planes* other, Planes y, int rank, int threads) {
    const int64_t pixels = int64_t(x.height) * x.width;
    for_each_plane(batch, y, rank, threads, [&](int64_t image, int64_t channel) {
        const float* from = plane_of(x, image, order ? order[channel] : channel);
        const float* add = other ? plane_of(*other, image, channel) : nullptr;
        float* to = plane_of(y, image, channel);
        const auto compute = [&](auto pixel) {
            if (activation == RELU) return elementwise_plane<RELU>(from, add, to, pixels, pixel);
            if (activation == RELU6) return elementwise_plane<RELU6>(from, add, to, pixels, pixel);
            elementwise_plane<IDENTITY>(from, add, to, pixels, pixel);
            if (!is_bounds(activation)) activate_all(to, pixels, activation);
        };
        if (factor) {
            compute(ChannelNorm<IDENTITY>{*plane_of(*factor, image, channel), 0});
        } else {
            with_norm(norm, channel, compute);
        }
    });
}

template <class Weight>
INLINE void linear_of(const Weight* weight, const float* scale, const float* bias, int32_t activation, int batch, Planes x,
                      Planes y, int rank, int threads) {
    const int64_t block = 8, blocks = (y.channels + block - 1) / block;
    const Share share = share_of(blocks, rank, threads);
    for (int64_t item = share.begin; item < share.end; ++item) {
        const int64_t first = item * block, count = first + block < y.channels ? block : y.channels - first;
        for (int64_t image = 0; image < batch; image++) {
            float* out = y.data + image * y.image_stride + first;
            multiply(weight + first * x.channels, count, x.data + image * x.image_stride, x.channels, out);
            if (scale)
                for (int64_t i = 0; i < count; ++i) out[i] *= scale[first + i];
            if (bias)
                for (int64_t i = 0; i < count; ++i) out[i] += bias[first + i];
            if (activation != IDENTITY) activate_all(out, count, activation);
        }
    }
}

// y = activation(x weight^T * scale + bias), rows of features; bias may be null, and so may scale, whose weights are bytes.
// A few outputs of all images at a time: each weight is fetched from memory once.
inline void linear(const void* weight, const float* scale, const float* bias, int32_t activation, int batch, Planes x,
                   Planes y, int rank, int threads) {
    if (scale)
        linear_of(static_cast<const int8_t*>(weight), scale, bias, activation, batch, x, y, rank, threads);
    else
        linear_of(static_cast<const float*>(weight), scale, bias, activation, batch, x, y, rank, threads);
}

}  // namespace dgconv::DGCONV_ISA
