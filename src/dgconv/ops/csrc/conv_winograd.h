// 3x3 convolution of stride 1 by Winograd's method, in the same three steps for every item: bring the kept channels
// into the lanes and transform their tiles; multiply point by point, each a small matrix product over the kept
// channels; transform back.
//
// An infinite or NaN input spreads over the outputs of its tile, where the direct forms confine it to 3x3.
#pragma once

#include "conv_gather.h"
#include "conv_output.h"
#include "conv_tile.h"
#include "winograd_transform.h"

namespace dgconv::DGCONV_ISA {

template <int OUT>
struct Winograd {
    static constexpr int IN = OUT + 2, POINTS = IN * IN;

    const Conv& conv;
    const Plan& plan;
    int out_w, tiles_x, tiles;  // of a whole item
    int padded_w, padded_h;     // of the input that its tiles cover
    // Floats between points: a vector more than needed, as a power of two would put all into one set of the cache.
    int64_t input_point, product_point;
    // Places in the scratch: the padded image of some channels, [row][column][channel]; its transformed tiles,
    // [point][block of channels][tile][channel]; their products, [point][tile][output]; results, [pixel][output].
    int64_t padded, inputs, products, block, total;

    Winograd(const Conv& conv, const Plan& plan, int out_w) : conv(conv), plan(plan), out_w(out_w) {
        tiles_x = divide_up(out_w, OUT);
        tiles = plan.rows / OUT * tiles_x;
        padded_w = tiles_x * OUT + 2;
        padded_h = plan.rows + 2;
        input_point = int64_t(round_up(plan.inputs, WIDTH)) * tiles + WIDTH;
        product_point = int64_t(tiles) * plan.block + WIDTH;
        padded = 0;
        inputs = padded + int64_t(padded_h) * padded_w * WIDTH;
        products = inputs + POINTS * input_point;
        block = products + POINTS * product_point;
        total = block + int64_t(plan.rows) * out_w * plan.block;
    }

    // The first and the last row of the padded image that lie inside the image.
    int top_row(const Item& item) const { return smaller(padded_h, larger(0, conv.pad_top - item.first_row)); }
    int end_row(const Item& item, const Planes& x) const {
        return larger(top_row(item), smaller(padded_h, x.height + conv.pad_top - item.first_row));
    }

    // What lies outside the image is 0: columns, set once, and rows, which differ from item to item.
    void clear_outside(const Item& item, const Planes& x, float* image, bool is_first) const {
        const int64_t row = int64_t(padded_w) * WIDTH;
        const int top = is_first ? padded_h : top_row(item), end = end_row(item, x);
        memset(image, 0, sizeof(float) * top * row);
        memset(image + end * row, 0, sizeof(float) * (padded_h - end) * row);
    }

    // Pixels of up to WIDTH channels, side by side in a vector, into the padded image.
    void gather(const Item& item, const Planes& x, int first_kept, float* image) const {
        const int lanes = smaller(WIDTH, item.kept - first_kept);
        const int64_t plane = int64_t(x.height) * x.width;
        const int top = top_row(item), first_row = top + item.first_row - conv.pad_top;
        const float* from[WIDTH];
        Vec scale{}, shift{}, gate{};
        for (int lane = 0; lane < WIDTH; ++lane) {
            const int index = first_kept + smaller(lane, lanes - 1);  // idle lanes repeat the last channel, at gate 0
            const int channel = item.first_channel + item.channel(index);
            from[lane] = x.data + item.image * x.image_stride + channel * plane + int64_t(first_row) * x.width;
            if (lane < lanes) gate[lane] = item.gates ? item.gates[index] : 1;
            if (conv.in_scale) scale[lane] = conv.in_scale[channel], shift[lane] = conv.in_shift[channel];
        }
        const int64_t skip = int64_t(padded_w - x.width) * WIDTH;
        float* to = image + (int64_t(top) * padded_w + conv.pad_left) * WIDTH;
        const int pixels = (end_row(item, x) - top) * x.width;
        int column = 0;
        for (int pixel = 0; pixel < pixels; pixel += WIDTH) {
            const int count = smaller(WIDTH, pixels - pixel);
            Vec rows[WIDTH];
            if (count == WIDTH) {
                UNROLL for (int lane = 0; lane < WIDTH; ++lane) rows[lane] = load(from[lane] + pixel);
            } else {
                for (int lane = 0; lane < WIDTH; ++lane) rows[lane] = load_first(from[lane] + pixel, count);
            }
            transpose(rows);
            for (int i = 0; i < count; ++i) {
                Vec v = rows[i];
                if (conv.in_scale) v = activate(v * scale + shift, conv.in_activation);
                store(to, v * gate);
                to += WIDTH;
                if (++column == x.width) column = 0, to += skip;
            }
        }
    }

    void run(const Item& item, const Planes& x, const Output& output, float* scratch, bool is_first) const {
        const int tile_rows = divide_up(item.rows, OUT), count = tile_rows * tiles_x;
        clear_outside(item, x, scratch + padded, is_first);
        for (int first = 0; first < item.kept; first += WIDTH) {
            gather(item, x, first, scratch + padded);
            float* to = scratch + inputs + int64_t(first) * count;
            for (int row = 0; row < tile_rows; ++row) {
                const float* tile = scratch + padded + int64_t(row) * OUT * padded_w * WIDTH;
                for (int column = 0; column < tiles_x; ++column, tile += OUT * WIDTH, to += WIDTH) {
                    transform_input<OUT>(tile, int64_t(padded_w) * WIDTH, to, input_point);
                }
            }
        }
        multiply(item, count, scratch);
        for (int first = 0; first < item.outputs; first += WIDTH) {
            for (int tile = 0; tile < count; ++tile) {
                const float* points = scratch + products + int64_t(tile) * plan.block + first;
                Vec y[OUT][OUT];
                transform_output<OUT>([&](int point) { return load(points + point * product_point); }, y);
                const int row = tile / tiles_x * OUT, column = tile % tiles_x * OUT;
                float* to = scratch + block + (int64_t(row) * out_w + column) * plan.block + first;
                UNROLL for (int i = 0; i < OUT; ++i) {
                    UNROLL for (int j = 0; j < OUT; ++j) {
                        const bool is_inside = row + i < item.rows && column + j < out_w;
                        if (is_inside) store(to + (i * out_w + j) * plan.block, y[i][j]);
                    }
                }
            }
        }
        output.put_transposed(scratch + block, plan.block, item.outputs, 0, item.pixels, nullptr);
    }

    void multiply(const Item& item, int count, float* scratch) const;
};

// TILES tiles of VECTORS vectors of outputs, at one point.
template <int TILES, int VECTORS>
void point_tile(const Item& item, const float* x, int64_t x_block, const float* panel, int64_t w_channel,
                float* products, int stride) {
    Vec acc[TILES][VECTORS] = {};
    for (int first = 0; first < item.kept; first += WIDTH, x += x_block) {
        const int lanes = smaller(WIDTH, item.kept - first);
        for (int lane = 0; lane < lanes; ++lane) {
            const float* w = panel + item.channel(first + lane) * w_channel;
            prefetch<VECTORS>(w + VECTORS * WIDTH);  // for the next point
            multiply_add<TILES, VECTORS, WIDTH>(acc, x + lane, w);
        }
    }
    UNROLL for (int i = 0; i < TILES; ++i) {
        UNROLL for (int j = 0; j < VECTORS; ++j) store(products + i * stride + j * WIDTH, acc[i][j]);
    }
}

typedef void (*PointTile)(const Item&, const float*, int64_t, const float*, int64_t, float*, int);

template <size_t... size>
PointTile point_tile_of(int tiles, int vectors, std::index_sequence<size...>) {
    static constexpr PointTile one[] = {point_tile<size + 1, 1>...}, two[] = {point_tile<size / 2 + 1, 2>...};
    return vectors == 1 ? one[tiles - 1] : two[2 * (tiles - 1)];
}

template <int OUT>
void Winograd<OUT>::multiply(const Item& item, int count, float* scratch) const {
    for (int first = 0; first < item.outputs; first += PANEL) {
        const float* panel = panel_of(conv, plan, item.group, item.first_output + first);
        const int width = panel_width(plan, item.first_output + first);
        const int parts = divide_up(count, width == WIDTH ? 2 * TILE : TILE);
        for (int point = 0; point < POINTS; ++point, panel += width) {
            for (int part = 0; part < parts; ++part) {
                const int tile = share(count, parts, part), end = share(count, parts, part + 1);
                const PointTile run = point_tile_of(end - tile, width / WIDTH, std::make_index_sequence<2 * TILE>());
                const float* x = scratch + inputs + point * input_point + int64_t(tile) * WIDTH;
                float* to = scratch + products + point * product_point + int64_t(tile) * plan.block + first;
                run(item, x, int64_t(count) * WIDTH, panel, POINTS * width, to, plan.block);
            }
        }
    }
}

typedef double DoubleVec __attribute__((vector_size(8 * WIDTH)));

// G w G' for a vector of kernels, [tap][kernel]; points lie `step` apart.
template <int OUT>
inline void transform_kernels(const float (&w)[9][WIDTH], float* points, int64_t step) {
    constexpr int IN = OUT + 2;
    const auto& G = Transform<OUT>::G;
    for (int i = 0; i < IN; ++i) {
        DoubleVec row[9];
        UNROLL for (int tap = 0; tap < 9; ++tap) {
            row[tap] = G[i][tap / 3] * __builtin_convertvector(load(w[tap]), DoubleVec);
        }
        for (int j = 0; j < IN; ++j, points += step) {
            DoubleVec total = {};
            UNROLL for (int tap = 0; tap < 9; ++tap) total += row[tap] * G[j][tap % 3];
            store(points, __builtin_convertvector(total, Vec));
        }
    }
}

template <int OUT>
void pack_winograd(const Conv& conv, const Plan& plan, const float* oihw, float* packed) {
    for (int group = 0; group < conv.groups; ++group) {
        const int first = first_output_of(plan, group);
        for (int output = 0; output < plan.outputs; output += WIDTH) {
            const int panel = output / PANEL * PANEL, width = panel_width(plan, panel);
            const int lanes = smaller(WIDTH, plan.outputs - output);
            float* to = packed + group * group_floats(plan) + int64_t(panel) * plan.inputs * plan.taps + output - panel;
            float w[9][WIDTH] = {};
            for (int channel = 0; channel < plan.inputs; ++channel, to += plan.taps * width) {
                for (int lane = 0; lane < lanes; ++lane) {
                    const int64_t row = first + int64_t(output + lane) * plan.step;
                    for (int tap = 0; tap < 9; ++tap) w[tap][lane] = oihw[(row * plan.inputs + channel) * 9 + tap];
                }
                transform_kernels<OUT>(w, to, width);
            }
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
