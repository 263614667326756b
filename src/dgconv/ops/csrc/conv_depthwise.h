// Depthwise convolution, 3x3 or 5x5 with stride 1 or 2: each channel has one kernel of its own. Pixels are in the
// lanes; several rows are computed at once, so that what is loaded of an input row serves all of them.
#pragma once

#include "conv_gather.h"
#include "conv_output.h"

namespace dgconv::DGCONV_ISA {

constexpr int ROWS_AT_ONCE = 4;

// What the taps of one row of the kernel need for the outputs in a vector.
template <int KERNEL, int STRIDE>
INLINE void load_taps(const float* x, Vec (&taps)[KERNEL]) {
    if constexpr (STRIDE == 1) {
        UNROLL for (int k = 0; k < KERNEL; ++k) taps[k] = load(x + k), hold(taps[k]);
    } else {
        UNROLL for (int k = 0; k < KERNEL; k += 2) {
            const Vec a = load(x + k), b = load(x + k + WIDTH);
            taps[k] = shuffle<Even>(a, b);
            if (k + 1 < KERNEL) taps[k + 1] = shuffle<Odd>(a, b);
        }
    }
}

template <int KERNEL, int STRIDE>
void convolve_rows(const float* weight, int pitch, const Item& item, int out_w, const float* from,
                   const Output& output) {
    constexpr int IN_ROWS = (ROWS_AT_ONCE - 1) * STRIDE + KERNEL;
    const PlaneOutput plane = output.plane_of(0);
    Vec total{};
    for (int row = 0; row < item.rows; row += ROWS_AT_ONCE) {
        const int rows = smaller(ROWS_AT_ONCE, item.rows - row);
        for (int column = 0; column < out_w; column += WIDTH) {
            Vec acc[ROWS_AT_ONCE] = {};
            const float* x = from + int64_t(row) * STRIDE * pitch + column * STRIDE;
            UNROLL for (int i = 0; i < IN_ROWS; ++i, x += pitch) {
                Vec taps[KERNEL];
                load_taps<KERNEL, STRIDE>(x, taps);
                UNROLL for (int k = 0; k < KERNEL; ++k) {
                    UNROLL for (int r = 0; r < ROWS_AT_ONCE; ++r) {
                        const int tap_row = i - r * STRIDE;  // the kernel's row that output row r has here
                        const bool is_inside = tap_row >= 0 && tap_row < KERNEL;
                        if (is_inside) acc[r] += taps[k] * weight[(tap_row * KERNEL + k) * WIDTH];
                    }
                }
            }
            const int count = smaller(WIDTH, out_w - column), pixel = row * out_w + column;
            UNROLL for (int r = 0; r < ROWS_AT_ONCE; ++r) {
                if (r < rows) total += plane.put(pixel + r * out_w, acc[r], count);
            }
        }
    }
    if (output.wants_sums()) output.put_sum(0, total);
}

// Weights are packed [vector of channels][tap][channel], for conv_expand.h. Where those of a channel begin:
INLINE int64_t depthwise_weight(const Plan& plan, int channel) {
    return int64_t(channel / WIDTH) * plan.taps * WIDTH + channel % WIDTH;
}

inline void pack_depthwise(const Conv& conv, const Plan& plan, const float* oihw, float* packed) {
    for (int channel = 0; channel < conv.groups; ++channel) {
        float* to = packed + depthwise_weight(plan, channel);
        for (int tap = 0; tap < plan.taps; ++tap) to[tap * WIDTH] = oihw[channel * plan.taps + tap];
    }
}

// Rows are computed in fours and vectors in whole, also the last, from whatever lies there.
inline int64_t depthwise_scratch_floats(const Conv& conv, const Plan& plan, int in_w, int out_w) {
    const PaddedPlane padded(conv, plan, in_w, out_w);
    return padded.floats() + int64_t(ROWS_AT_ONCE) * conv.stride_h * padded.pitch + 2 * WIDTH;
}

// What lies outside the image is set to 0 once, by the thread's first item, and never written again.
inline void convolve_depthwise(const Conv& conv, const Plan& plan, const Item& item, const Planes& x, int out_w,
                               const Output& output, float* scratch, bool is_first) {
    const PaddedPlane padded(conv, plan, x.width, out_w);
    if (is_first) memset(scratch, 0, sizeof(float) * depthwise_scratch_floats(conv, plan, x.width, out_w));
    const float* plane = x.data + item.image * x.image_stride + int64_t(item.group) * x.height * x.width;
    padded.fill(conv, item, x, plane, Prepare(conv, item, 0, item.group), scratch);
    const float* weight = conv.weight + depthwise_weight(plan, item.group);
    const auto run = conv.kernel_h == 3 ? (conv.stride_h == 1 ? convolve_rows<3, 1> : convolve_rows<3, 2>)
                                        : (conv.stride_h == 1 ? convolve_rows<5, 1> : convolve_rows<5, 2>);
    run(weight, padded.pitch, item, out_w, scratch, output);
}

}  // namespace dgconv::DGCONV_ISA
