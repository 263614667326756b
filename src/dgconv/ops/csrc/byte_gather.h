// The input of an item, as the product wants it: padded, only the channels of its group, gated.
#pragma once

#include "byte_pick.h"

namespace dgconv::DGCONV_ISA {

struct Run {
    int64_t offset;
    int64_t groups;
};

// Where the product finds the bytes of a result: those of neighbours in a row are `step` apart, rows are `row_step`.
struct Gathered {
    const uint8_t* data;
    int64_t step, row_step;
    int rows, columns;
};

INLINE bool is_inside(int at, int size) { return unsigned(at) < unsigned(size); }

// Of a kernel with one row or column of taps, only those pixels are gathered that it reads.
INLINE int row_skip(const ByteConv& conv) { return conv.kernel_h == 1 ? conv.stride_h : 1; }
INLINE int column_skip(const ByteConv& conv) { return conv.kernel_w == 1 ? conv.stride_w : 1; }
INLINE int64_t rows_read(const ByteConv& conv, int rows) {
    return int64_t(rows - 1) * conv.stride_h / row_skip(conv) + int64_t(conv.kernel_h - 1) * conv.dilation_h + 1;
}
INLINE int64_t columns_read(const ByteConv& conv, int columns) {
    return int64_t(columns - 1) * conv.stride_w / column_skip(conv) + int64_t(conv.kernel_w - 1) * conv.dilation_w + 1;
}

// Input rows with their padding, one behind the other: [row][column][count].
inline Gathered gather_rows(const ByteConv& conv, const PixelReader& reader, const Pixels& x, int first_row, int rows,
                            int out_w, uint8_t* to, Run* runs) {
    const BytePlan plan(conv);
    const int in_rows = int(rows_read(conv, rows)), columns = int(columns_read(conv, out_w)), skip = column_skip(conv);
    const int64_t row_bytes = int64_t(columns) * reader.count;
    for (int r = 0; r < in_rows; ++r) {
        const int in_row = first_row * conv.stride_h - conv.pad_top + r * row_skip(conv);
        uint8_t* row = to + r * row_bytes;
        if (!is_inside(in_row, x.height)) {
            memset(row, conv.input_zero, row_bytes);
            continue;
        }
        const int left = smaller(columns, divide_up(conv.pad_left, skip));
        const int end = larger(left, smaller(columns, divide_up(x.width + conv.pad_left, skip)));
        memset(row, conv.input_zero, int64_t(left) * reader.count);
        const uint8_t* pixel = pixel_of(x, in_row, int64_t(left) * skip - conv.pad_left);
        uint8_t* at = row + int64_t(left) * reader.count;
        const bool is_whole = !reader.choice && reader.count == x.pixel_stride && skip == 1;
        if (is_whole) {
            memcpy(at, pixel, int64_t(end - left) * reader.count);
        } else {
            reader.read_row(pixel, skip * x.pixel_stride, end - left, at);
        }
        memset(row + int64_t(end) * reader.count, conv.input_zero, int64_t(columns - end) * reader.count);
    }
    for (int run = 0; run < plan.runs; ++run) {
        const int tap = run * plan.run_taps, ky = tap / conv.kernel_w, kx = tap % conv.kernel_w;
        runs[run].offset = ky * conv.dilation_h * row_bytes + int64_t(kx) * conv.dilation_w * reader.count;
        runs[run].groups = plan.run_groups(reader.count);
    }
    return {to, int64_t(conv.stride_w / skip) * reader.count, conv.stride_h / row_skip(conv) * row_bytes, rows, out_w};
}

// All that a result is the sum of lies together, for images with short rows: [row][column][tap][count].
inline Gathered gather_windows(const ByteConv& conv, const PixelReader& reader, const Pixels& x, int first_row, int rows,
                               int out_w, uint8_t* to, Run* runs) {
    const BytePlan plan(conv);
    const int64_t window = int64_t(plan.taps()) * reader.count;
    uint8_t* at = to;
    for (int row = first_row; row < first_row + rows; ++row) {
        for (int column = 0; column < out_w; ++column) {
            for (int tap = 0; tap < plan.taps(); ++tap, at += reader.count) {
                const int in_row = row * conv.stride_h - conv.pad_top + tap / conv.kernel_w * conv.dilation_h;
                const int in_column = column * conv.stride_w - conv.pad_left + tap % conv.kernel_w * conv.dilation_w;
                if (is_inside(in_row, x.height) && is_inside(in_column, x.width))
                    reader.read(pixel_of(x, in_row, in_column), at);
                else
                    memset(at, conv.input_zero, reader.count);
            }
        }
    }
    for (int run = 0; run < plan.runs; ++run) {
        runs[run].offset = int64_t(run) * plan.run_taps * reader.count;
        runs[run].groups = plan.run_groups(reader.count);
    }
    return {to, window, 0, 1, rows * out_w};
}

}  // namespace dgconv::DGCONV_ISA
