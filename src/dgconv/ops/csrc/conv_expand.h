// A convolution and the depthwise one that reads it, a vector of channels at a time: what lies between them, the bulk
// of such a network's values, never leaves the cache of the thread that computes it.
#pragma once

#include "conv_depthwise.h"
#include "expand_rows.h"

namespace dgconv::DGCONV_ISA {

// One item: some rows of WIDTH channels of one image, which are in the lanes.
class Expand {
  public:
    Expand(const Conv& first, const Conv& then, const Plan& plan, const Planes& x, const Planes& between, int out_w,
           float* scratch)
        : then(then), plan(plan), between(between), out_w(out_w), rows((plan.rows - 1) * then.stride_h + then.kernel_h),
          first(first, x, between, rows, scratch), scratch(scratch) {
        columns = larger((out_w - 1) * then.stride_w + then.kernel_w, then.pad_left + between.width);
        expanded = scratch + this->first.scratch_floats();
    }

    int64_t scratch_floats() const { return expanded - scratch + int64_t(rows) * columns * WIDTH; }

    // What lies left and right of the image is set to 0 once, by the thread's first item, and never written again.
    void run(const Item& item, const Output& output, Ahead* ahead, bool is_first) const {
        if (is_first) {
            first.begin_thread();
            for (int row = 0; row < rows; ++row) {
                clear(row, 0, then.pad_left);
                clear(row, then.pad_left + between.width, columns);
            }
        }
        const int top = item.first_row * then.stride_h - then.pad_top;  // row of the image that is row 0 here
        const int needed = (item.rows - 1) * then.stride_h + then.kernel_h;
        const int begin = smaller(needed, larger(0, -top)), end = larger(begin, smaller(needed, between.height - top));
        for (int row = 0; row < needed; ++row) {
            if (row < begin || row >= end) clear(row, then.pad_left, then.pad_left + between.width);
        }
        first.make(item, top + begin, end - begin, at(begin, then.pad_left), int64_t(columns) * WIDTH, ahead);
        convolve(item, output);
    }

  private:
    float* at(int row, int column) const { return expanded + (int64_t(row) * columns + column) * WIDTH; }

    void clear(int row, int begin, int end) const {
        for (int column = begin; column < end; ++column) store(at(row, column), Vec{});
    }

    void convolve(const Item& item, const Output& output) const;

    const Conv& then;
    const Plan& plan;
    const Planes& between;
    const int out_w, rows;
    const ExpandRows first;
    float* const scratch;
    int columns;
    float* expanded;
};

// What a tile of the depthwise convolution reads, and where its results and the sum of all that it wrote go.
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
    UNROLL for (int i = 0; i < PIXELS; ++i) acc[i] = load(f.bias);
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

typedef void (*ColumnTile)(const ColumnFactors&, const float*, int);
template <int KERNEL, int STRIDE, size_t... size>
ColumnTile column_tile_of(int rows, int columns, std::index_sequence<size...>) {
    static constexpr ColumnTile one[] = {column_tile<KERNEL, STRIDE, 1, size + 1>...},
                                two[] = {column_tile<KERNEL, STRIDE, 2, size / 2 + 1>...};
    return rows == 1 ? one[columns - 1] : two[2 * (columns - 1)];
}
INLINE ColumnTile column_tile_of(const Conv& conv, int rows, int columns) {
    const auto sizes = std::make_index_sequence<WIDTH>();
    const bool is_dense = conv.stride_h == 1;
    if (conv.kernel_h == 3 && is_dense) return column_tile_of<3, 1>(rows, columns, sizes);
    if (conv.kernel_h == 3) return column_tile_of<3, 2>(rows, columns, sizes);
    return is_dense ? column_tile_of<5, 1>(rows, columns, sizes) : column_tile_of<5, 2>(rows, columns, sizes);
}

inline void Expand::convolve(const Item& item, const Output& output) const {
    float bias[WIDTH] = {}, total[WIDTH] = {};
    for (int lane = 0; lane < item.outputs && then.bias; ++lane) bias[lane] = then.bias[item.group + lane];
    const ColumnFactors f{int64_t(columns) * WIDTH, then.weight + int64_t(item.group) * plan.taps, bias,
                          bounds_of(then.activation), output, item.outputs, total};
    const int tiles = divide_up(out_w, WIDTH), most_rows = 2 * out_w <= WIDTH ? 2 : 1;
    for (int row = 0, count; row < item.rows; row += count) {
        count = smaller(most_rows, item.rows - row);
        for (int tile = 0; tile < tiles; ++tile) {
            const int column = share(out_w, tiles, tile), end = share(out_w, tiles, tile + 1);
            const ColumnTile run = column_tile_of(then, count, end - column);
            run(f, at(row * then.stride_h, column * then.stride_w), row * out_w + column);
        }
    }
    if (output.wants_sums()) output.put_sums(total, item.outputs);
}

// Of `x` and `between` only the shapes matter.
inline int64_t expand_scratch_floats(const Conv& first, const Conv& then, Planes x, Planes between, int out_h,
                                     int out_w) {
    const Plan plan = make_plan(then, out_h, out_w);
    return Expand(first, then, plan, x, between, out_w, nullptr).scratch_floats();
}

// The items of one chunk of rows follow each other: they read the same pixels.
inline void expand(const Conv& first, const Conv& then, int32_t batch, Planes x, Planes between, Planes y,
                   float* pooled, float* scratch, Ahead* ahead, int rank, int threads) {
    const Plan plan = make_plan(then, y.height, y.width);
    const Expand run(first, then, plan, x, between, y.width, scratch);
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
