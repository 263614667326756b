// A norm of each pixel over its channels. Pixels are in the lanes, some vectors of them at a time: for each channel it is
// another page of memory that is read.
#pragma once

#include "planes.h"

namespace dgconv::DGCONV_ISA {

// Up to VECTORS vectors of pixels of one image, `count` pixels in all.
template <int VECTORS>
INLINE void layer_norm_pixels(const Norm& norm, float epsilon, const float* x, float* y, int64_t channels, int64_t plane,
                              int count) {
    const auto counted = [&](int j) { return count - j * WIDTH < WIDTH ? count - j * WIDTH : WIDTH; };
    const auto each_channel = [&](auto body) {
        for (int64_t c = 0; c < channels; ++c) {
            UNROLL for (int j = 0; j < VECTORS; ++j) {
                const float* from = x + c * plane + j * WIDTH;
                body(c, j, counted(j) == WIDTH ? load(from) : load_first(from, counted(j)));
            }
        }
    };
    const float share = 1.0f / float(channels);
    Vec mean[VECTORS] = {}, variance[VECTORS] = {}, factor[VECTORS];
    each_channel([&](int64_t, int j, Vec v) { mean[j] += v; });
    UNROLL for (int j = 0; j < VECTORS; ++j) mean[j] *= share;
    each_channel([&](int64_t, int j, Vec v) { variance[j] += (v - mean[j]) * (v - mean[j]); });
    UNROLL for (int j = 0; j < VECTORS; ++j) {
        for (int i = 0; i < WIDTH; ++i) factor[j][i] = 1 / __builtin_sqrtf(variance[j][i] * share + epsilon);
    }
    each_channel([&](int64_t c, int j, Vec v) {
        store_first(y + c * plane + j * WIDTH, (v - mean[j]) * factor[j] * norm.scale[c] + norm.shift[c], counted(j));
    });
}

inline void layer_norm(const Norm& norm, float epsilon, int batch, Planes x, Planes y, int rank, int threads) {
    constexpr int VECTORS = 4, BLOCK = VECTORS * WIDTH;
    const int64_t pixels = int64_t(x.height) * x.width, blocks = (pixels + BLOCK - 1) / BLOCK;
    const Share share = share_of(batch * blocks, rank, threads);
    for (int64_t item = share.begin; item < share.end; ++item) {
        const int64_t image = item / blocks, first = item % blocks * BLOCK;
        const float* from = x.data + image * x.image_stride + first;
        float* to = y.data + image * y.image_stride + first;
        int count = pixels - first < BLOCK ? int(pixels - first) : BLOCK;
        if (count == BLOCK) {
            layer_norm_pixels<VECTORS>(norm, epsilon, from, to, x.channels, pixels, count);
            continue;
        }
        for (; count > 0; count -= WIDTH, from += WIDTH, to += WIDTH) {
            layer_norm_pixels<1>(norm, epsilon, from, to, x.channels, pixels, count < WIDTH ? count : WIDTH);
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
