// Planes of another size: resampled, or with zeros around them.
#pragma once

#include "planes.h"

namespace dgconv::DGCONV_ISA {

// Between which two rows or columns of `size` a row or column of the result lies, and how far from the first. Whatever
// the ratio, both are there.
struct Between {
    int32_t first, second;
    float part;

    Between(const Resize& resize, float ratio, int64_t index, int64_t size) {
        const bool is_centred = resize.is_bilinear && !resize.aligns_corners;
        float at = is_centred ? (float(index) + 0.5f) * ratio - 0.5f : float(index) * ratio;
        at = at > 0 ? at : 0;  // nor NaN
        at = at < float(size - 1) ? at : float(size - 1);
        first = static_cast<int32_t>(at);
        if (first > size - 1) first = static_cast<int32_t>(size - 1);
        second = first + 1 < size ? first + 1 : first;
        part = resize.is_bilinear ? at - float(first) : 0;
    }
};

// For each column of the result what it lies between; and a row of the input.
inline int64_t resize_scratch_floats(const Planes& x, const Planes& y) {
    return y.width * int64_t(sizeof(Between) / sizeof(float)) + x.width;
}

inline void resize(const Resize& resize, int batch, Planes x, Planes y, float* scratch, int rank, int threads) {
    Between* const columns = reinterpret_cast<Between*>(scratch);
    float* const mixed = scratch + y.width * int64_t(sizeof(Between) / sizeof(float));
    for (int64_t i = 0; i < y.width; ++i) columns[i] = Between(resize, resize.ratio_w, i, x.width);
    for_each_plane(batch, y, rank, threads, [&](int64_t image, int64_t channel) {
        const float* plane = plane_of(x, image, channel);
        float* to = plane_of(y, image, channel);
        for (int64_t r = 0; r < y.height; ++r, to += y.width) {
            const Between row(resize, resize.ratio_h, r, x.height);
            const float* from = plane + int64_t(row.first) * x.width;
            if (!resize.is_bilinear) {
                for (int64_t i = 0; i < y.width; ++i) to[i] = from[columns[i].first];
                continue;
            }
            const float* below = plane + int64_t(row.second) * x.width;
            for (int64_t i = 0; i < x.width; ++i) mixed[i] = from[i] * (1 - row.part) + below[i] * row.part;
            for (int64_t i = 0; i < y.width; ++i) {
                const Between& column = columns[i];
                to[i] = mixed[column.first] * (1 - column.part) + mixed[column.second] * column.part;
            }
        }
    });
}

// y is x with zeros around it; x begins in row `top` and column `left`.
inline void pad(int32_t top, int32_t left, int batch, Planes x, Planes y, int rank, int threads) {
    for_each_plane(batch, y, rank, threads, [&](int64_t image, int64_t channel) {
        const float* from = plane_of(x, image, channel);
        float* to = plane_of(y, image, channel);
        memset(to, 0, sizeof(float) * y.height * y.width);
        for (int64_t row = 0; row < x.height; ++row) {
            memcpy(to + (row + top) * y.width + left, from + row * x.width, sizeof(float) * x.width);
        }
    });
}

}  // namespace dgconv::DGCONV_ISA
