// Depthwise convolution, 3x3, 5x5 or 7x7 with stride 1 or 2: each channel has one kernel of its own. Channels are in the
// lanes, so that planes of any width fill the vectors: the rows that an item reads are turned that way first.
#pragma once

#include "ahead.h"
#include "conv_output.h"

namespace dgconv::DGCONV_ISA {

// Where pixels with channels in the lanes go: row by row.
struct RowPlace {
    float* to;
    int left, width;  // of the row
    int64_t skip;     // between rows

    INLINE void put(Vec v) {
        store(to, v);
        to += WIDTH;
        if (--left == 0) left = width, to += skip;
    }
};

// The channels of an item from `values`, one for each of the network's; 0 behind them, or if there are no values.
INLINE Vec load_channels(const float* values, const Item& item) {
    return values ? load_first(values + item.group, item.outputs) : Vec{};
}

// Rows of the input, normalized.
class TurnedRows {
  public:
    TurnedRows(const Conv& conv, const Planes& x) : conv(conv), x(x) {}

    int64_t scratch_floats() const { return 0; }
    void begin_thread() const {}

    // Some rows of the item's channels, to rows of pixels that are `pitch` floats apart.
    void make(const Item& item, int first_row, int rows, float* to, int64_t pitch, Ahead*) const {
        const int64_t plane = int64_t(x.height) * x.width;
        const float* from = x.data + item.image * x.image_stride + item.group * plane + int64_t(first_row) * x.width;
        const Vec scale = load_channels(conv.in_scale, item), shift = load_channels(conv.in_shift, item);
        const Bounds bounds = bounds_of(conv.in_activation);
        RowPlace place{to, x.width, x.width, pitch - int64_t(x.width) * WIDTH};
        for (int pixels = rows * x.width; pixels > 0; pixels -= WIDTH, from += WIDTH) {
            const int count = smaller(WIDTH, pixels);
            Vec v[WIDTH];
            if (count == WIDTH && item.outputs == WIDTH) {
                UNROLL for (int i = 0; i < WIDTH; ++i) v[i] = load(from + i * plane);
            } else {
                UNROLL for (int i = 0; i < WIDTH; ++i) {
                    v[i] = i < item.outputs ? load_first(from + i * plane, count) : Vec{};
                }
            }
            transpose(v);
            if (conv.in_scale) {
                UNROLL for (int i = 0; i < WIDTH; ++i) v[i] = bounds(v[i] * scale + shift);
            }
            UNROLL for (int i = 0; i < WIDTH; ++i) {
                if (i < count) place.put(v[i]);
            }
        }
    }

  private:
    const Conv& conv;
    const Planes& x;
};

// How many rows of its input an item needs at most.
inline int rows_read(const Conv& conv, const Plan& plan) { return (plan.rows - 1) * conv.stride_h + conv.kernel_h; }

// Computes items of some rows of WIDTH channels of one image each. `Rows` makes rows of the input, of which only the
// shape matters here.
template <class Rows>
class Depthwise {
  public:
    Depthwise(const Conv& conv, const Plan& plan, const Planes& x, int out_w, const Rows& input, float* scratch)
        : conv(conv), plan(plan), x(x), out_w(out_w), rows(rows_read(conv, plan)),
          columns(larger((out_w - 1) * conv.stride_w + conv.kernel_w, conv.pad_left + x.width)), input(input),
          scratch(scratch + input.scratch_floats()) {}

    int64_t scratch_floats() const { return input.scratch_floats() + int64_t(rows) * columns * WIDTH; }

    // The items of one chunk of rows follow each other: an expansion makes them from the same pixels.
    void run(int batch, const Planes& y, const Planes* residual, float* pooled, Ahead* ahead, int rank,
             int threads) const {
        const int blocks = divide_up(conv.out_channels, WIDTH);
        const int64_t items = int64_t(batch) * plan.chunks * blocks;
        const int begin = share(items, threads, rank), end = share(items, threads, rank + 1);
        if (begin < end) begin_thread();
        for (int index = begin; index < end; ++index) {
            Item item{};
            item.group = index % blocks * WIDTH;  // the first of its channels
            item.chunk = index / blocks % plan.chunks;
            item.image = index / blocks / plan.chunks;
            item.outputs = smaller(WIDTH, conv.out_channels - item.group);
            item.first_row = item.chunk * plan.rows;
            item.rows = smaller(plan.rows, y.height - item.first_row);
            make_rows(item, ahead);
            const Output output(conv, plan, item, y, residual, pooled);
            convolve(item, output);
            output.finish();
        }
    }

  private:
    float* at(int row, int column) const { return scratch + (int64_t(row) * columns + column) * WIDTH; }

    void clear(int row, int begin, int end) const {
        for (int column = begin; column < end; ++column) store(at(row, column), Vec{});
    }

    // What lies left and right of the image is set to 0 once and never written again.
    void begin_thread() const {
        input.begin_thread();
        for (int row = 0; row < rows; ++row) {
            clear(row, 0, conv.pad_left);
            clear(row, conv.pad_left + x.width, columns);
        }
    }

    void make_rows(const Item& item, Ahead* ahead) const {
        const int top = item.first_row * conv.stride_h - conv.pad_top;  // row of the image that is row 0 here
        const int needed = (item.rows - 1) * conv.stride_h + conv.kernel_h;
        const int begin = smaller(needed, larger(0, -top)), end = larger(begin, smaller(needed, x.height - top));
        for (int row = 0; row < needed; ++row) {
            if (row < begin || row >= end) clear(row, conv.pad_left, conv.pad_left + x.width);
        }
        input.make(item, top + begin, end - begin, at(begin, conv.pad_left), int64_t(columns) * WIDTH, ahead);
    }

    void convolve(const Item& item, const Output& output) const;

    const Conv& conv;
    const Plan& plan;
    const Planes& x;
    const int out_w, rows, columns;
    const Rows& input;
    float* const scratch;
};

// What a tile reads, and where its results and the sum of all that it wrote go.
struct ColumnFactors {
    int64_t pitch;               // between rows of the input
    const float *weight, *bias;  // [taps], vectors; a vector
    Bounds bounds;
    const Output& output;
    int outputs;
    float* total;  // a vector
};

// ROWS output rows of COLUMNS pixels each, which follow each other in the output from `pixel` on.
template <int KERNEL, int STRIDE, int ROWS, int COLUMNS>
void column_tile(const ColumnFactors& f, const float* x, int pixel) {
    constexpr int PIXELS = ROWS * COLUMNS;
    Vec acc[WIDTH] = {};
    if (f.output.has_residual()) {
        f.output.load_residual(acc, f.outputs, pixel, PIXELS);
        UNROLL for (int i = 0; i < PIXELS; ++i) acc[i] += load(f.bias);
    } else {
        UNROLL for (int i = 0; i < PIXELS; ++i) acc[i] = load(f.bias);
    }
    UNROLL for (int in_row = 0; in_row < (ROWS - 1) * STRIDE + KERNEL; ++in_row, x += f.pitch) {
        Vec weight[ROWS][KERNEL];  // of the kernel's row that each output row has here, if any
        UNROLL for (int row = 0; row < ROWS; ++row) {
            const int tap_row = in_row - row * STRIDE;
            if (tap_row < 0 || tap_row >= KERNEL) continue;
            UNROLL for (int k = 0; k < KERNEL; ++k) {
                weight[row][k] = load(f.weight + (tap_row * KERNEL + k) * WIDTH), hold(weight[row][k]);
            }
        }
        UNROLL for (int column = 0; column < (COLUMNS - 1) * STRIDE + KERNEL; ++column) {
            Vec v = load(x + column * WIDTH);
            hold(v);
            UNROLL for (int row = 0; row < ROWS; ++row) {
                const int tap_row = in_row - row * STRIDE;
                if (tap_row < 0 || tap_row >= KERNEL) continue;
                UNROLL for (int k = 0; k < KERNEL; ++k) {
                    const int i = (column - k) / STRIDE;  // the output that has this column at tap k
                    if (column < k || i >= COLUMNS || i * STRIDE + k != column) continue;
                    acc[row * COLUMNS + i] += v * weight[row][k];
                }
            }
        }
    }
    Vec total = load(f.total);
    UNROLL for (int i = 0; i < PIXELS; ++i) {
        acc[i] = f.bounds(acc[i]);
        total += acc[i];
    }
    store(f.total, total);
    f.output.store_transposed(acc, f.outputs, pixel, PIXELS);
}

constexpr int MOST_FOR_TWO_ROWS = 5;  // of a larger kernel, weights of two rows leave no registers for the rest

typedef void (*ColumnTile)(const ColumnFactors&, const float*, int);
template <int KERNEL, int STRIDE, size_t... size>
ColumnTile column_tile_of(int rows, int columns, std::index_sequence<size...>) {
    static constexpr ColumnTile one[] = {column_tile<KERNEL, STRIDE, 1, size + 1>...};
    if constexpr (KERNEL > MOST_FOR_TWO_ROWS) return one[columns - 1];
    static constexpr ColumnTile two[] = {column_tile<KERNEL, STRIDE, 2, size / 2 + 1>...};
    return rows == 1 ? one[columns - 1] : two[2 * (columns - 1)];
}
INLINE ColumnTile column_tile_of(const Conv& conv, int rows, int columns) {
    const auto sizes = std::make_index_sequence<WIDTH>();
    const bool is_dense = conv.stride_h == 1;
    if (conv.kernel_h == 3 && is_dense) return column_tile_of<3, 1>(rows, columns, sizes);
    if (conv.kernel_h == 3) return column_tile_of<3, 2>(rows, columns, sizes);
    if (conv.kernel_h == 7 && is_dense) return column_tile_of<7, 1>(rows, columns, sizes);
    if (conv.kernel_h == 7) return column_tile_of<7, 2>(rows, columns, sizes);
    return is_dense ? column_tile_of<5, 1>(rows, columns, sizes) : column_tile_of<5, 2>(rows, columns, sizes);
}

template <class Rows>
void Depthwise<Rows>::convolve(const Item& item, const Output& output) const {
    float bias[WIDTH], total[WIDTH] = {};
    store(bias, load_channels(conv.bias, item));
    const ColumnFactors f{int64_t(columns) * WIDTH, conv.weight + int64_t(item.group) * plan.taps, bias,
                          bounds_of(conv.activation), output, item.outputs, total};
    const int tiles = divide_up(out_w, WIDTH);
    const int most_rows = 2 * out_w <= WIDTH && conv.kernel_h <= MOST_FOR_TWO_ROWS ? 2 : 1;
    for (int row = 0, count; row < item.rows; row += count) {
        count = smaller(most_rows, item.rows - row);
        for (int tile = 0; tile < tiles; ++tile) {
            const int column = share(out_w, tiles, tile), end = share(out_w, tiles, tile + 1);
            const ColumnTile run = column_tile_of(conv, count, end - column);
            run(f, at(row * conv.stride_h, column * conv.stride_w), row * out_w + column);
        }
    }
    if (output.wants_sums()) output.put_sums(total, item.outputs);
}

// Weights are packed [vector of channels][tap][channel].
inline void pack_depthwise(const Conv& conv, const Plan& plan, const float* oihw, float* packed) {
    for (int channel = 0; channel < conv.groups; ++channel) {
        float* to = packed + int64_t(channel / WIDTH) * plan.taps * WIDTH + channel % WIDTH;
        for (int tap = 0; tap < plan.taps; ++tap) to[tap * WIDTH] = oihw[channel * plan.taps + tap];
    }
}

// Of `x` only the shape matters.
inline int64_t depthwise_scratch_floats(const Conv& conv, const Plan& plan, const Planes& x, int out_w) {
    const TurnedRows rows(conv, x);
    return Depthwise<TurnedRows>(conv, plan, x, out_w, rows, nullptr).scratch_floats();
}

inline void depthwise(const Conv& conv, const Plan& plan, int batch, const Planes& x, const Planes& y,
                      const Planes* residual, float* pooled, float* scratch, int rank, int threads) {
    const TurnedRows rows(conv, x);
    const Depthwise<TurnedRows> run(conv, plan, x, y.width, rows, scratch);
    run.run(batch, y, residual, pooled, nullptr, rank, threads);
}

}  // namespace dgconv::DGCONV_ISA
