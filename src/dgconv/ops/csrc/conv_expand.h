// A 1x1 convolution and the depthwise one that reads it, a vector of channels at a time: what lies between them, the
// bulk of such a network's values, never leaves the cache of the thread that computes it.
#pragma once

#include "ahead.h"
#include "conv_depthwise.h"
#include "conv_tile.h"

namespace dgconv::DGCONV_ISA {

constexpr int COLUMNS_AT_ONCE = 7;  // with 9 weights in registers; the widths of most images are multiples of it

// One item: some rows of WIDTH channels of one image, which are in the lanes.
class Expand {
  public:
    Expand(const Conv& first, const Conv& then, const Plan& plan, const Planes& x, int out_w, float* scratch)
        : first(first), then(then), plan(plan), x(x), out_w(out_w), expanded(scratch) {
        columns = larger((out_w - 1) * then.stride_w + then.kernel_w, then.pad_left + x.width);
        rows = (plan.rows - 1) * then.stride_h + then.kernel_h;
        finished = expanded + int64_t(rows) * columns * WIDTH;
    }

    // Some output rows are finished before they are written to their planes: about so many pixels.
    int band() const { return larger(1, 8 * WIDTH / out_w); }
    int64_t scratch_floats() const {
        return finished - expanded + int64_t(round_up(band() * out_w, WIDTH)) * WIDTH;
    }

    // What lies left and right of the image is set to 0 once, by the thread's first item, and never written again.
    void run(const Item& item, const Output& output, Ahead* ahead, bool is_first) const {
        if (is_first) {
            for (int row = 0; row < rows; ++row) {
                clear(row, 0, then.pad_left);
                clear(row, then.pad_left + x.width, columns);
            }
        }
        const int top = item.first_row * then.stride_h - then.pad_top;  // row of the image that is row 0 here
        const int needed = (item.rows - 1) * then.stride_h + then.kernel_h;
        const int begin = smaller(needed, larger(0, -top)), end = larger(begin, smaller(needed, x.height - top));
        for (int row = 0; row < needed; ++row) {
            if (row < begin || row >= end) clear(row, then.pad_left, then.pad_left + x.width);
        }
        expand(item, top, begin, end, ahead);
        convolve(item, output);
    }

  private:
    float* at(int row, int column) const { return expanded + (int64_t(row) * columns + column) * WIDTH; }

    void clear(int row, int begin, int end) const {
        for (int column = begin; column < end; ++column) store(at(row, column), Vec{});
    }

    void expand(const Item& item, int top, int begin, int end, Ahead* ahead) const;
    void convolve(const Item& item, const Output& output) const;

    const Conv &first, &then;
    const Plan& plan;
    const Planes& x;
    int out_w, columns, rows;
    float *expanded, *finished;
};

// What a tile of the first convolution reads and how it finishes.
struct ExpandFactors {
    const float* x;
    int64_t plane;
    const float* weight;
    int weight_step, channels;
    const float* bias;  // a vector
    Bounds bounds;
    Ahead* ahead;
};
// Where its pixels go: row by row.
struct ExpandPlace {
    float* to;
    int left, width;  // of the row
    int64_t skip;     // between rows
};

template <int PIXELS>
void expand_tile(const ExpandFactors& f, int pixel, ExpandPlace& place) {
    Vec acc[PIXELS][1];
    UNROLL for (int i = 0; i < PIXELS; ++i) acc[i][0] = load(f.bias);
    Lines lines = take_lines(f.ahead, f.channels);
    const float *from = f.x + pixel, *w = f.weight;
    for (int channel = 0; channel < f.channels; ++channel, from += f.plane, w += f.weight_step) {
        prefetch<2>(from + 4 * f.plane);
        lines.fetch();
        multiply_add<PIXELS, 1, 1>(acc, from, w);
    }
    ExpandPlace p = place;
    UNROLL for (int i = 0; i < PIXELS; ++i) {
        store(p.to, f.bounds(acc[i][0]));
        p.to += WIDTH;
        if (--p.left == 0) p.left = p.width, p.to += p.skip;
    }
    place = p;
}

typedef void (*ExpandTile)(const ExpandFactors&, int, ExpandPlace&);
template <size_t... size>
ExpandTile expand_tile_of(int pixels, std::index_sequence<size...>) {
    static constexpr ExpandTile tiles[] = {expand_tile<size + 1>...};
    return tiles[pixels - 1];
}

// Rows from `begin` to `end`, counted from `top` in the image.
inline void Expand::expand(const Item& item, int top, int begin, int end, Ahead* ahead) const {
    const Plan packed = plan_weights(first);
    const int panel = item.group / PANEL * PANEL;
    float bias[WIDTH] = {};
    for (int lane = 0; lane < item.outputs && first.bias; ++lane) bias[lane] = first.bias[item.group + lane];
    ExpandFactors f{};
    f.plane = int64_t(x.height) * x.width;
    f.x = x.data + item.image * x.image_stride + int64_t(top + begin) * x.width;
    f.weight = panel_of(first, packed, 0, panel) + item.group - panel;
    f.weight_step = panel_width(packed, panel);
    f.channels = first.in_channels;
    f.bias = bias;
    f.bounds = bounds_of(first.activation);
    f.ahead = ahead;
    ExpandPlace place{at(begin, then.pad_left), x.width, x.width, int64_t(columns - x.width) * WIDTH};
    const int pixels = (end - begin) * x.width, tiles = divide_up(pixels, 2 * TILE);
    for (int tile = 0; tile < tiles; ++tile) {
        const int pixel = share(pixels, tiles, tile), count = share(pixels, tiles, tile + 1) - pixel;
        expand_tile_of(count, std::make_index_sequence<2 * TILE>())(f, pixel, place);
    }
}

// What a tile of the depthwise convolution reads besides its pixels, and the sum of all that it wrote.
struct ColumnFactors {
    int64_t pitch;
    const float *weight, *bias;  // [taps], vectors; a vector
    Bounds bounds;
    float* total;  // a vector
};

// COLUMNS neighbouring pixels of an output row.
template <int KERNEL, int STRIDE, int COLUMNS>
void column_tile(const ColumnFactors& f, const float* x, float* to) {
    Vec acc[COLUMNS];
    UNROLL for (int i = 0; i < COLUMNS; ++i) acc[i] = load(f.bias);
    UNROLL for (int row = 0; row < KERNEL; ++row, x += f.pitch) {
        Vec weight[KERNEL];
        UNROLL for (int k = 0; k < KERNEL; ++k) weight[k] = load(f.weight + (row * KERNEL + k) * WIDTH);
        UNROLL for (int column = 0; column < (COLUMNS - 1) * STRIDE + KERNEL; ++column) {
            const Vec v = load(x + column * WIDTH);
            UNROLL for (int k = 0; k < KERNEL; ++k) {
                const int i = (column - k) / STRIDE;  // the output that has this column at tap k
                if (column >= k && i < COLUMNS && i * STRIDE + k == column) acc[i] += v * weight[k];
            }
        }
    }
    Vec total = load(f.total);
    UNROLL for (int i = 0; i < COLUMNS; ++i) {
        const Vec v = f.bounds(acc[i]);
        total += v;
        store(to + i * WIDTH, v);
    }
    store(f.total, total);
}

typedef void (*ColumnTile)(const ColumnFactors&, const float*, float*);
template <int KERNEL, int STRIDE, size_t... size>
ColumnTile column_tile_of(int columns, std::index_sequence<size...>) {
    static constexpr ColumnTile tiles[] = {column_tile<KERNEL, STRIDE, size + 1>...};
    return tiles[columns - 1];
}
INLINE ColumnTile column_tile_of(const Conv& conv, int columns) {
    const auto sizes = std::make_index_sequence<COLUMNS_AT_ONCE>();
    if (conv.kernel_h == 3)
        return conv.stride_h == 1 ? column_tile_of<3, 1>(columns, sizes) : column_tile_of<3, 2>(columns, sizes);
    return conv.stride_h == 1 ? column_tile_of<5, 1>(columns, sizes) : column_tile_of<5, 2>(columns, sizes);
}

inline void Expand::convolve(const Item& item, const Output& output) const {
    float bias[WIDTH] = {}, total[WIDTH] = {};
    for (int lane = 0; lane < item.outputs && then.bias; ++lane) bias[lane] = then.bias[item.group + lane];
    const ColumnFactors f{int64_t(columns) * WIDTH, then.weight + int64_t(item.group) * plan.taps, bias,
                          bounds_of(then.activation), total};
    const int tiles = divide_up(out_w, COLUMNS_AT_ONCE);
    for (int row = 0; row < item.rows; row += band()) {
        const int end = smaller(row + band(), item.rows);
        float* to = finished;
        for (int y = row; y < end; ++y) {
            for (int tile = 0; tile < tiles; ++tile) {
                const int column = share(out_w, tiles, tile), count = share(out_w, tiles, tile + 1) - column;
                column_tile_of(then, count)(f, at(y * then.stride_h, column * then.stride_w), to);
                to += count * WIDTH;
            }
        }
        output.store_planes(finished, item.outputs, row * out_w, (end - row) * out_w);
    }
    if (output.wants_sums()) output.put_sums(total, item.outputs);
}

inline int64_t expand_scratch_floats(const Conv& first, const Conv& then, int in_w, int out_h, int out_w) {
    const Planes x{nullptr, 0, first.in_channels, 0, in_w};
    const Plan plan = make_plan(then, out_h, out_w);
    return Expand(first, then, plan, x, out_w, nullptr).scratch_floats();
}

// The items of one chunk of rows follow each other: they read the same pixels.
inline void expand(const Conv& first, const Conv& then, int32_t batch, Planes x, Planes y, float* pooled,
                   float* scratch, Ahead* ahead, int rank, int threads) {
    const Plan plan = make_plan(then, y.height, y.width);
    const Expand run(first, then, plan, x, y.width, scratch);
    const int blocks = divide_up(then.out_channels, WIDTH);
    const int64_t items = int64_t(batch) * plan.chunks * blocks;
    const int begin = share(items, threads, rank), end = share(items, threads, rank + 1);
    for (int index = begin; index < end; ++index) {
        Item item{};
        item.group = index % blocks * WIDTH;  // the first of its channels
        item.chunk = index / blocks % plan.chunks;
        item.image = index / blocks / plan.chunks;
        item.outputs = smaller(WIDTH, then.out_channels - item.group);
        item.first_row = item.chunk * plan.rows;
        item.rows = smaller(plan.rows, y.height - item.first_row);
        run.run(item, Output(then, plan, item, y, nullptr, pooled), ahead, index == begin);
    }
}

}  // namespace dgconv::DGCONV_ISA
