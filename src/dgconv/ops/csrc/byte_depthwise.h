// Convolution of bytes in which every channel has a kernel of its own: channels in the lanes.
#pragma once

#include "byte_plan.h"

namespace dgconv::DGCONV_ISA {

// [tap][channel], in whole vectors.
inline int64_t depthwise_packed_bytes(const ByteConv& conv) {
    return int64_t(conv.kernel_h) * conv.kernel_w * round_up(conv.in_channels, LANES) * int64_t(sizeof(int32_t));
}

inline void pack_depthwise(const ByteConv& conv, const int8_t* weight, void* packed) {
    const int taps = conv.kernel_h * conv.kernel_w, channels = round_up(conv.in_channels, LANES);
    int32_t* const to = static_cast<int32_t*>(packed);
    for (int c = 0; c < conv.in_channels; ++c)
        for (int tap = 0; tap < taps; ++tap) to[int64_t(tap) * channels + c] = weight[int64_t(c) * taps + tap];
}

// Results of neighbours in a row share their weights, which stay in registers.
template <int PIXELS>
INLINE void depthwise_pixels(const ByteConv& conv, const Pixels& x, int row, int column, int c, int lanes, uint8_t* y,
                             int64_t y_step, const uint8_t* residual, int64_t residual_step) {
    const int channels = round_up(conv.in_channels, LANES);
    const int32_t* weights = static_cast<const int32_t*>(conv.weight) + c;
    IntVec sums[PIXELS] = {};
    const IntVec zero = IntVec{} + conv.input_zero;
    for (int ky = 0; ky < conv.kernel_h; ++ky) {
        const int in_row = row * conv.stride_h - conv.pad_top + ky * conv.dilation_h;
        if (unsigned(in_row) >= unsigned(x.height)) continue;
        for (int kx = 0; kx < conv.kernel_w; ++kx) {
            const IntVec w = load(weights + int64_t(ky * conv.kernel_w + kx) * channels);
            UNROLL for (int p = 0; p < PIXELS; ++p) {
                const int in_column = (column + p) * conv.stride_w - conv.pad_left + kx * conv.dilation_w;
                if (unsigned(in_column) >= unsigned(x.width)) continue;
                sums[p] += (load_bytes(pixel_of(x, in_row, in_column) + c, lanes) - zero) * w;
            }
        }
    }
    UNROLL for (int p = 0; p < PIXELS; ++p) {
        Vec v = to_float(sums[p]) * load(conv.multiplier + c) + load(conv.bias + c);
        if (residual) v += to_float(load_bytes(residual + p * residual_step, lanes)) * conv.residual_scale;
        store_bytes(y + p * y_step, to_byte(v, conv.result), lanes);
    }
}

inline void depthwise(const ByteConv& conv, Pixels x, Pixels y, const Pixels* residual, int rank, int threads) {
    constexpr int AT_ONCE = 4;
    const Share share = share_of(y.height, rank, threads);
    for (int row = int(share.begin); row < share.end; ++row) {
        for (int c = 0; c < conv.in_channels; c += LANES) {
            const int lanes = smaller(LANES, conv.in_channels - c);
            for (int column = 0; column < y.width;) {
                uint8_t* const to = pixel_of(y, row, column) + c;
                const uint8_t* add = residual ? pixel_of(*residual, row, column) + c : nullptr;
                const int64_t add_step = residual ? residual->pixel_stride : 0;
                if (column + AT_ONCE <= y.width) {
                    depthwise_pixels<AT_ONCE>(conv, x, row, column, c, lanes, to, y.pixel_stride, add, add_step);
                    column += AT_ONCE;
                } else {
                    depthwise_pixels<1>(conv, x, row, column, c, lanes, to, y.pixel_stride, add, add_step);
                    ++column;
                }
            }
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
