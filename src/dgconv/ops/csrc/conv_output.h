// The end of every convolution: bias, residual, activation, storing, and sums for the pooling that may follow.
#pragma once

#include "activation.h"
#include "conv_plan.h"

namespace dgconv::DGCONV_ISA {

// What is a pair of bounds is put on as results are stored, any other activation once the item is; NaN passes both.
struct Bounds {
    float low, high;

    INLINE Vec operator()(Vec v) const {
        v = v < low ? splat(low) : v;
        return v > high ? splat(high) : v;
    }
};

INLINE Bounds bounds_of(int32_t activation) {
    const bool has_least = activation == RELU || activation == RELU6;
    return {has_least ? 0 : -__builtin_inff(), activation == RELU6 ? 6 : __builtin_inff()};
}

// Where the results of one output of an item go.
struct PlaneOutput {
    float* to;
    const float* add;
    float bias;
    Bounds bounds;

    // Finishes and stores `count` pixels, counted from the item's first; the rest of the vector is ignored. Returns
    // them with zeros behind.
    INLINE Vec put(int pixel, Vec v, int count) const {
        v += bias;
        if (count == WIDTH) {
            if (add) v += load(add + pixel);
            v = bounds(v);
            store(to + pixel, v);
            return v;
        }
        if (add) v += load_first(add + pixel, count);
        v = bounds(v);
        store_first(to + pixel, v, count);
        return first_lanes(v, count);
    }
};

// Where the results of one item go.
class Output {
  public:
    Output(const Conv& conv, const Plan& plan, const Item& item, const Planes& y, const Planes* residual, float* pooled)
        : bias(conv.bias), bounds(bounds_of(conv.activation)), plane(int64_t(y.height) * y.width),
          activation(conv.activation), outputs(item.outputs), pixels(item.rows * y.width) {
        step = plan.step;
        first = first_output_of(plan, item.group) + item.first_output * step;
        const int64_t start = int64_t(item.first_row) * y.width;
        to = y.data + item.image * y.image_stride + start;
        add = residual ? residual->data + item.image * residual->image_stride + start : nullptr;
        sums = pooled ? pooled + int64_t(item.image) * conv.out_channels * plan.chunks + item.chunk : nullptr;
        parts = plan.chunks;
        if (!is_bounds(activation)) late_sums = sums, sums = nullptr;
    }

    // Comes last, when all is written: an activation that is no pair of bounds, and then the sums.
    void finish() const {
        if (is_bounds(activation)) return;
        for (int output = 0; output < outputs; ++output) {
            const int64_t channel = first + output * step;
            const Vec total = activate_all(to + channel * plane, pixels, activation);
            if (late_sums) late_sums[channel * parts] = sum_lanes(total);
        }
    }

    bool wants_sums() const { return sums; }
    bool has_residual() const { return add; }

    INLINE PlaneOutput plane_of(int output) const {
        const int channel = first + output * step;
        return {to + channel * plane, add ? add + channel * plane : nullptr, bias ? bias[channel] : 0, bounds};
    }

    INLINE Vec put(int output, int pixel, Vec v, int count) const { return plane_of(output).put(pixel, v, count); }

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
                store(to + offset + j * WIDTH, bounds(v));
            }
        }
    }

    INLINE void put_sum(int output, Vec v) const { sums[int64_t(first + output * step) * parts] = sum_lanes(v); }

    // The same for a block [pixel][stride] with the outputs in the lanes, for pixels from `begin` to `end`. These are
    // the last of the item: what `sums_before` has of the others, a vector for each output, is added to their sums.
    inline void put_transposed(const float* block, int stride, int outputs, int begin, int end,
                               const float* sums_before) const {
        const int pixels = end - begin;
        for (int output = 0; output < outputs; output += WIDTH) {
            const int lanes = smaller(WIDTH, outputs - output);
            Vec totals[WIDTH] = {};
            if (wants_sums() && sums_before) {
                for (int lane = 0; lane < lanes; ++lane) totals[lane] = load(sums_before + (output + lane) * WIDTH);
            }
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
                        totals[lane] += put(output + lane, begin + pixel, rows[lane], count);
                    }
                } else {
                    for (int lane = 0; lane < lanes; ++lane) put(output + lane, begin + pixel, rows[lane], count);
                }
            }
            if (wants_sums()) {
                for (int lane = 0; lane < lanes; ++lane) put_sum(output + lane, totals[lane]);
            }
        }
    }

    // What is added to so many pixels, a vector of outputs for each.
    INLINE void load_residual(Vec (&pixels)[WIDTH], int outputs, int first_pixel, int count) const {
        const float* from = add + first * plane + first_pixel;
        UNROLL for (int lane = 0; lane < WIDTH; ++lane) {
            pixels[lane] = lane < outputs ? load_first(from + lane * plane, count) : Vec{};
        }
        transpose(pixels);
    }

    // Writes finished results, a vector of outputs for each pixel, to their planes. Changes them.
    INLINE void store_transposed(Vec (&pixels)[WIDTH], int outputs, int first_pixel, int count) const {
        transpose(pixels);
        float* to_pixel = to + first * plane + first_pixel;
        if (count == WIDTH && outputs == WIDTH) {
            UNROLL for (int lane = 0; lane < WIDTH; ++lane) store(to_pixel + lane * plane, pixels[lane]);
        } else {
            UNROLL for (int lane = 0; lane < WIDTH; ++lane) {
                if (lane < outputs) store_first(to_pixel + lane * plane, pixels[lane], count);
            }
        }
    }
    INLINE void put_sums(const float* totals, int outputs) const {
        for (int lane = 0; lane < outputs; ++lane) sums[int64_t(first + lane) * parts] = totals[lane];
    }

  private:
    const float* bias;
    Bounds bounds;
    int64_t plane;
    int32_t activation;
    int outputs, pixels, step, first, parts;
    float *to, *sums, *late_sums = nullptr;
    const float* add;
};

}  // namespace dgconv::DGCONV_ISA
