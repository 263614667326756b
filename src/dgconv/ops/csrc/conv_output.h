// The end of every convolution: bias, residual, activation, storing, and sums for the pooling that may follow.
#pragma once

#include "conv_plan.h"

namespace dgconv::DGCONV_ISA {

// Where the results of one item go.
class Output {
  public:
    Output(const Conv& conv, const Plan& plan, const Item& item, const Planes& y, const Planes* residual, float* pooled)
        : bias(conv.bias), plane(int64_t(y.height) * y.width) {
        low = conv.activation == IDENTITY ? -__builtin_inff() : 0;
        high = conv.activation == RELU6 ? 6 : __builtin_inff();
        step = plan.step;
        first = first_output_of(plan, item.group) + item.first_output * step;
        const int64_t start = int64_t(item.first_row) * y.width;
        to = y.data + item.image * y.image_stride + start;
        add = residual ? residual->data + item.image * residual->image_stride + start : nullptr;
        sums = pooled ? pooled + int64_t(item.image) * conv.out_channels * plan.chunks + item.chunk : nullptr;
        parts = plan.chunks;
    }

    bool wants_sums() const { return sums; }

    // Finishes and stores `count` pixels of an output, counted from the item's first; the rest of the vector is
    // ignored. Returns them with zeros behind.
    INLINE Vec put(int output, int pixel, Vec v, int count) const {
        const int channel = first + output * step;
        float* target = to + channel * plane + pixel;
        if (bias) v += bias[channel];
        if (count == WIDTH) {
            if (add) v += load(add + channel * plane + pixel);
            v = activated(v);
            store(target, v);
            return v;
        }
        if (add) v += load_first(add + channel * plane + pixel, count);
        v = activated(v);
        store_first(target, v, count);
        return first_lanes(v, count);
    }

    // The same for outputs that follow each other and VECTORS vectors of pixels, of which `pixels` count. Adds them to
    // `totals`, a vector for each output, if there will be sums.
    template <int OUTPUTS, int VECTORS>
    INLINE void put_tile(int output, int pixel, const Vec (&tile)[OUTPUTS][VECTORS], int pixels, float* totals) const {
        if (pixels < VECTORS * WIDTH || sums) {
            Vec copy[OUTPUTS][VECTORS];  // so that the tile itself has no address and stays in registers
            UNROLL for (int i = 0; i < OUTPUTS; ++i) {
                UNROLL for (int j = 0; j < VECTORS; ++j) copy[i][j] = tile[i][j];
            }
            for (int i = 0; i < OUTPUTS; ++i) {
                for (int j = 0; j < VECTORS; ++j) {
                    const int count = smaller(WIDTH, pixels - j * WIDTH);
                    const Vec v = put(output + i, pixel + j * WIDTH, copy[i][j], count);
                    if (sums) store(totals + i * WIDTH, load(totals + i * WIDTH) + v);
                }
            }
            return;
        }
        int channel = first + output * step;
        int64_t offset = channel * plane + pixel;
        UNROLL for (int i = 0; i < OUTPUTS; ++i, channel += step, offset += step * plane) {
            const Vec b = splat(bias ? bias[channel] : 0);
            UNROLL for (int j = 0; j < VECTORS; ++j) {
                Vec v = tile[i][j] + b;
                if (add) v += load(add + offset + j * WIDTH);
                store(to + offset + j * WIDTH, activated(v));
            }
        }
    }

    INLINE void put_sum(int output, Vec v) const { sums[int64_t(first + output * step) * parts] = sum(v); }

    // The same for a block [pixels][stride] with the outputs in the lanes.
    inline void put_transposed(const float* block, int stride, int outputs, int pixels) const {
        for (int output = 0; output < outputs; output += WIDTH) {
            const int lanes = smaller(WIDTH, outputs - output);
            Vec totals[WIDTH] = {};
            for (int pixel = 0; pixel < pixels; pixel += WIDTH) {
                const int count = smaller(WIDTH, pixels - pixel);
                Vec rows[WIDTH];
                if (count == WIDTH) {
                    UNROLL for (int i = 0; i < WIDTH; ++i) rows[i] = load(block + int64_t(pixel + i) * stride + output);
                } else {
                    for (int i = 0; i < WIDTH; ++i) {
                        rows[i] = i < count ? load(block + int64_t(pixel + i) * stride + output) : Vec{};
                    }
                }
                transpose(rows);
                if (wants_sums()) {
                    for (int lane = 0; lane < lanes; ++lane) {
                        totals[lane] += put(output + lane, pixel, rows[lane], count);
                    }
                } else {
                    for (int lane = 0; lane < lanes; ++lane) put(output + lane, pixel, rows[lane], count);
                }
            }
            if (wants_sums()) {
                for (int lane = 0; lane < lanes; ++lane) put_sum(output + lane, totals[lane]);
            }
        }
    }

  private:
    // Any activation is a pair of bounds; NaN passes both.
    INLINE Vec activated(Vec v) const {
        v = v < low ? splat(low) : v;
        return v > high ? splat(high) : v;
    }

    const float* bias;
    float low, high;
    int64_t plane;
    int step, first, parts;
    float *to, *sums;
    const float* add;
};

}  // namespace dgconv::DGCONV_ISA
