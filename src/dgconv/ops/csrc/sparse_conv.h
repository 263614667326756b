// Training of a dynamic convolution: forward, and back to the input, to the gates and to the weights, of the channels
// that each head of each image keeps. The others are never read, multiplied or written.
//
// A head of an image is a product of matrices: its kept channels, scaled and padded, become the columns of a matrix, a
// row for each channel and tap. Weights lie in rows, too: [H, C, taps, outputs of a head], so that to choose channels is
// to choose rows. The output is cut into blocks of whole rows whose columns stay in a cache.
#pragma once

#include "vec.h"

namespace dgconv::DGCONV_ISA {

constexpr int SPARSE_LANES = 16;        // outputs of a head in a row of weights: padded to a multiple of these
constexpr int SPARSE_COLUMNS = 1 << 15;  // floats of a block, but for so many pixels at least
constexpr int SPARSE_PIXELS = 64;
constexpr int SPARSE_WEIGHTS = 1 << 14;  // floats of weights that are gone through at a time

INLINE int64_t sparse_up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

// What follows from a convolution, the sizes of its planes, and how many channels a head keeps at most.
struct SparsePlan {
    int64_t taps, outputs, row, most;     // outputs of a head; floats of a row of weights; rows of columns
    int64_t padded_w, padded, out_w;      // floats of a padded plane
    int64_t block_rows, line;             // output rows of a block; floats of a row of columns
    int64_t planes, columns, block, places, list;  // floats of the parts of the scratch

    SparsePlan(const Conv& conv, int64_t most_kept, int32_t out_h, int32_t out_w_) : out_w(out_w_) {
        taps = static_cast<int64_t>(conv.kernel_h) * conv.kernel_w;
        outputs = conv.out_channels / conv.groups;
        row = sparse_up(outputs, SPARSE_LANES);
        most = most_kept * taps;
        padded_w = static_cast<int64_t>(out_w - 1) * conv.stride_w + (conv.kernel_w - 1) * conv.dilation_w + 1;
        padded = padded_w * (static_cast<int64_t>(out_h - 1) * conv.stride_h + (conv.kernel_h - 1) * conv.dilation_h + 1);
        const int64_t enough = (SPARSE_PIXELS + out_w - 1) / out_w, fitting = SPARSE_COLUMNS / (most * out_w);
        block_rows = fitting > enough ? fitting : enough;
        block_rows = block_rows > out_h ? out_h : block_rows;
        line = sparse_up(block_rows * out_w, WIDTH);
        planes = sparse_up(most_kept * padded + WIDTH, WIDTH);
        columns = sparse_up((most + REGISTERS) * line + 2 * WIDTH, WIDTH);
        block = sparse_up(line * row, WIDTH);
        places = sparse_up((most + REGISTERS) * 2, WIDTH);  // pointers
        list = sparse_up(conv.in_channels + row, WIDTH);
    }
};

// One head of one image.
struct SparseHead {
    const int32_t* channels;
    const float* gates;
    int64_t count;
};

INLINE SparseHead sparse_head(const Conv& conv, const Selection& selection, int64_t image, int64_t head) {
    const int64_t entry = image * conv.groups + head;
    return {selection.channels + entry * conv.in_channels, selection.gates + entry * conv.in_channels,
            selection.counts[entry]};
}

// The part of a plane that lies within the padded one: output size and padding may leave out its end.
struct SparseOverlap {
    int64_t rows, width;
};
INLINE SparseOverlap sparse_overlap(const Conv& conv, const SparsePlan& plan, const Planes& x) {
    const int64_t rows = plan.padded / plan.padded_w - conv.pad_top, width = plan.padded_w - conv.pad_left;
    return {rows < 0 ? 0 : rows < x.height ? rows : x.height, width < 0 ? 0 : width < x.width ? width : x.width};
}

// A channel, scaled and padded.
INLINE void sparse_pad(const Conv& conv, const SparsePlan& plan, const Planes& x, const float* plane, float gate,
                       float* padded) {
    for (int64_t i = 0; i < plan.padded; ++i) padded[i] = 0;
    const SparseOverlap part = sparse_overlap(conv, plan, x);
    for (int64_t y = 0; y < part.rows; ++y) {
        float* to = padded + (y + conv.pad_top) * plan.padded_w + conv.pad_left;
        for (int64_t i = 0; i < part.width; ++i) to[i] = gate * plane[y * x.width + i];
    }
}

// The columns of one padded channel, for some rows of the output. Whole vectors are copied: what is too much is
// overwritten by the next row, or lies behind the last.
INLINE void sparse_columns(const Conv& conv, const SparsePlan& plan, const float* padded, int64_t first, int64_t rows,
                           float* columns) {
    for (int64_t ky = 0; ky < conv.kernel_h; ++ky) {
        for (int64_t kx = 0; kx < conv.kernel_w; ++kx, columns += plan.line) {
            const float* from = padded + (first * conv.stride_h + ky * conv.dilation_h) * plan.padded_w +
                                kx * conv.dilation_w;
            float* to = columns;
            for (int64_t y = 0; y < rows; ++y, from += conv.stride_h * plan.padded_w, to += plan.out_w) {
                if (conv.stride_w == 1) {
                    for (int64_t i = 0; i < plan.out_w; i += WIDTH) store(to + i, load(from + i));
                } else {
                    for (int64_t i = 0; i < plan.out_w; ++i) to[i] = from[i * conv.stride_w];
                }
            }
        }
    }
}

// The way back: adds columns to where they came from.
INLINE void sparse_add_columns(const Conv& conv, const SparsePlan& plan, const float* columns, int64_t first,
                               int64_t rows, float* padded) {
    for (int64_t ky = 0; ky < conv.kernel_h; ++ky) {
        for (int64_t kx = 0; kx < conv.kernel_w; ++kx, columns += plan.line) {
            float* to = padded + (first * conv.stride_h + ky * conv.dilation_h) * plan.padded_w + kx * conv.dilation_w;
            const float* from = columns;
            for (int64_t y = 0; y < rows; ++y, to += conv.stride_h * plan.padded_w, from += plan.out_w) {
                if (conv.stride_w == 1) {
                    int64_t i = 0;
                    for (; i + WIDTH <= plan.out_w; i += WIDTH) store(to + i, load(to + i) + load(from + i));
                    const int rest = static_cast<int>(plan.out_w - i);
                    if (rest) store_first(to + i, load_first(to + i, rest) + load_first(from + i, rest), rest);
                } else {
                    for (int64_t i = 0; i < plan.out_w; ++i) to[i * conv.stride_w] += from[i];
                }
            }
        }
    }
}

// to[c][r] = from[r][c]; the rows of `to` are filled up with zeros to whole vectors.
INLINE void sparse_transpose(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                             int64_t to_stride) {
    for (int64_t r = 0; r < rows; r += WIDTH) {
        for (int64_t c = 0; c < columns; c += WIDTH) {
            const int left = columns - c < WIDTH ? static_cast<int>(columns - c) : WIDTH;
            Vec square[WIDTH];
            UNROLL for (int i = 0; i < WIDTH; ++i) {
                square[i] = r + i < rows ? load_first(from + (r + i) * from_stride + c, left) : Vec{};
            }
            transpose(square);
            UNROLL for (int i = 0; i < WIDTH; ++i) {
                if (i < left) store(to + (c + i) * to_stride + r, square[i]);
            }
        }
    }
}

// Weights of a head, for some of the input channels, as rows; and back.
inline void sparse_pack(const Conv& conv, int64_t head, int64_t first, int64_t last, const float* weight, float* rows) {
    const SparsePlan plan(conv, 1, 1, 1);
    const int64_t taps = conv.in_channels * plan.taps, begin = first * plan.taps, count = (last - first) * plan.taps;
    float* const to = rows + (head * taps + begin) * plan.row;
    for (int64_t r = 0; r < count; ++r) {
        for (int64_t o = plan.outputs / WIDTH * WIDTH; o < plan.row; ++o) to[r * plan.row + o] = 0;
    }
    sparse_transpose(weight + head * taps + begin, conv.groups * taps, plan.outputs, count, to, plan.row);
}

inline void sparse_unpack(const Conv& conv, int64_t head, int64_t first, int64_t last, const float* rows,
                          float* weight) {
    const SparsePlan plan(conv, 1, 1, 1);
    const int64_t taps = conv.in_channels * plan.taps, begin = first * plan.taps, count = (last - first) * plan.taps;
    const float* const from = rows + (head * taps + begin) * plan.row;
    float* const to = weight + head * taps + begin;
    for (int64_t r = 0; r < count; r += WIDTH) {
        const int left = count - r < WIDTH ? static_cast<int>(count - r) : WIDTH;
        for (int64_t o = 0; o < plan.outputs; o += WIDTH) {
            Vec square[WIDTH];
            UNROLL for (int i = 0; i < WIDTH; ++i) {
                square[i] = i < left ? load(from + (r + i) * plan.row + o) : Vec{};
            }
            transpose(square);
            UNROLL for (int i = 0; i < WIDTH; ++i) {
                if (o + i < plan.outputs) store_first(to + (o + i) * conv.groups * taps + r, square[i], left);
            }
        }
    }
}

// to[m][n] += sum over k of from(m)[k] * by[k][n], for M rows m and N vectors n.
template <int M, int N, bool ADD, class From, class To>
INLINE void sparse_tile(const From& from, const float* by, int64_t by_stride, int64_t terms, const To& to) {
    Vec sums[M][N];
    const float* at[M];
    UNROLL for (int m = 0; m < M; ++m) {
        at[m] = from(m);
        UNROLL for (int n = 0; n < N; ++n) sums[m][n] = ADD ? load(to(m) + n * WIDTH) : Vec{};
    }
    for (int64_t k = 0; k < terms; ++k, by += by_stride) {
        Vec factor[N];
        UNROLL for (int n = 0; n < N; ++n) factor[n] = load(by + n * WIDTH);
        UNROLL for (int m = 0; m < M; ++m) {
            const Vec value = splat(at[m][k]);
            UNROLL for (int n = 0; n < N; ++n) sums[m][n] += value * factor[n];
        }
    }
    UNROLL for (int m = 0; m < M; ++m) {
        UNROLL for (int n = 0; n < N; ++n) store(to(m) + n * WIDTH, sums[m][n]);
    }
}

constexpr int SPARSE_ROWS = REGISTERS == 32 ? 8 : 4;  // at a time

constexpr int SPARSE_AHEAD = 64 / sizeof(float);  // floats of a cache line

// The whole product: `rows` is a multiple of SPARSE_ROWS, and `width` floats a row one of WIDTH.
template <bool ADD, class From, class To>
INLINE void sparse_product(const From& from, const float* by, int64_t by_stride, int64_t terms, int64_t rows,
                           int64_t width, const To& to) {
    for (int64_t m = 0; m < rows; m += SPARSE_ROWS) {
        if (m + SPARSE_ROWS < rows) {  // those that are not in a line with each other
            for (int64_t row = m + SPARSE_ROWS; row < m + 2 * SPARSE_ROWS; ++row) {
                for (int64_t i = 0; i < (ADD ? width : terms); i += SPARSE_AHEAD) {
                    if constexpr (ADD) {
                        __builtin_prefetch(to(row) + i, 1);
                    } else {
                        __builtin_prefetch(from(row) + i);
                    }
                }
            }
        }
        const auto from_here = [&](int64_t row) { return from(m + row); };
        int64_t n = 0;
        for (; n + 2 * WIDTH <= width; n += 2 * WIDTH) {
            sparse_tile<SPARSE_ROWS, 2, ADD>(from_here, by + n, by_stride, terms,
                                             [&](int64_t row) { return to(m + row) + n; });
        }
        for (; n < width; n += WIDTH) {
            sparse_tile<SPARSE_ROWS, 1, ADD>(from_here, by + n, by_stride, terms,
                                             [&](int64_t row) { return to(m + row) + n; });
        }
    }
}

// Where the rows of weights of some channels are, and up to a multiple of SPARSE_ROWS another place; how many that is.
template <class Float>
INLINE int64_t sparse_places(const SparsePlan& plan, const int32_t* channels, int64_t count, Float* weight,
                             Float* otherwise, Float** places) {
    int64_t rows = 0;
    for (int64_t i = 0; i < count; ++i) {
        Float* row = weight + channels[i] * plan.taps * plan.row;
        for (int64_t tap = 0; tap < plan.taps; ++tap, row += plan.row) places[rows++] = row;
    }
    while (rows % SPARSE_ROWS) places[rows++] = otherwise;
    return rows;
}

// Some pixels of some outputs of a head: sums over channels and taps of weight times column, `to` being added to if
// these are not the first channels.
template <int M, int N>
INLINE void sparse_output_tile(const SparsePlan& plan, const SparseHead& kept, const float* weight,
                               const float* columns, float* to, int64_t to_stride, int64_t outputs, int64_t pixels,
                               bool is_first) {
    Vec sums[M][N];
    int part[N];
    UNROLL for (int n = 0; n < N; ++n) {
        const int64_t left = pixels - n * WIDTH;
        part[n] = left < WIDTH ? static_cast<int>(left) : WIDTH;
    }
    UNROLL for (int m = 0; m < M; ++m) {
        UNROLL for (int n = 0; n < N; ++n) {
            sums[m][n] = is_first || m >= outputs ? Vec{} : load_first(to + m * to_stride + n * WIDTH, part[n]);
        }
    }
    for (int64_t i = 0; i < kept.count; ++i) {
        const float* row = weight + kept.channels[i] * plan.taps * plan.row;
        const float* soon = weight + kept.channels[i + 2 < kept.count ? i + 2 : i] * plan.taps * plan.row;
        for (int64_t tap = 0; tap < plan.taps; ++tap, row += plan.row, soon += plan.row, columns += plan.line) {
            __builtin_prefetch(soon);
            Vec column[N];
            UNROLL for (int n = 0; n < N; ++n) column[n] = load(columns + n * WIDTH);
            UNROLL for (int m = 0; m < M; ++m) {
                const Vec value = splat(row[m]);
                UNROLL for (int n = 0; n < N; ++n) sums[m][n] += value * column[n];
            }
        }
    }
    UNROLL for (int m = 0; m < M; ++m) {
        if (m >= outputs) break;
        UNROLL for (int n = 0; n < N; ++n) store_first(to + m * to_stride + n * WIDTH, sums[m][n], part[n]);
    }
}

template <int M, int N>
INLINE void sparse_output_band(const SparsePlan& plan, const SparseHead& kept, const float* weight,
                               const float* columns, float* to, int64_t to_stride, int64_t pixels, bool is_first) {
    for (int64_t m = 0; m < plan.outputs; m += M) {
        sparse_output_tile<M, N>(plan, kept, weight + m, columns, to + m * to_stride, to_stride, plan.outputs - m,
                                 pixels, is_first);
    }
}

inline int64_t sparse_scratch_floats(const Conv& conv, int64_t most_kept, int32_t out_h, int32_t out_w) {
    const SparsePlan plan(conv, most_kept, out_h, out_w);
    return plan.planes + plan.columns + plan.block + plan.places + plan.list;
}

// One head of one image.
inline void sparse_forward(const Conv& conv, const Selection& selection, int64_t most_kept, int64_t image, int64_t head, const Planes& x,
                           const Planes& y, const float* weight, float* scratch) {
    const SparsePlan plan(conv, most_kept, y.height, y.width);
    const SparseHead kept = sparse_head(conv, selection, image, head);
    float *const planes = scratch, *const columns = scratch + plan.planes;
    const int64_t plane = static_cast<int64_t>(x.height) * x.width, pixels = static_cast<int64_t>(y.height) * y.width;
    for (int64_t i = 0; i < kept.count; ++i) {
        sparse_pad(conv, plan, x, x.data + image * x.image_stride + kept.channels[i] * plane, kept.gates[i],
                   planes + i * plan.padded);
    }
    weight += head * conv.in_channels * plan.taps * plan.row;
    constexpr int M = REGISTERS == 32 ? 8 : 4, N = 2, ALONE = REGISTERS == 32 ? 16 : 8;
    const int64_t fitting = SPARSE_WEIGHTS / (plan.taps * plan.row), at_once = fitting > 1 ? fitting : 1;
    for (int64_t first = 0; first < y.height; first += plan.block_rows) {
        const int64_t rows = first + plan.block_rows > y.height ? y.height - first : plan.block_rows;
        for (int64_t i = 0; i < kept.count; ++i) {
            sparse_columns(conv, plan, planes + i * plan.padded, first, rows, columns + i * plan.taps * plan.line);
        }
        float* const to = y.data + image * y.image_stride + head * pixels + first * y.width;
        const int64_t block = rows * y.width, stride = conv.groups * pixels;
        for (int64_t begin = 0; begin < kept.count || begin == 0; begin += at_once) {  // of no channels: zeros
            const int64_t count = kept.count - begin < at_once ? kept.count - begin : at_once;
            const SparseHead some{kept.channels + begin, kept.gates + begin, count};
            const float* const from = columns + begin * plan.taps * plan.line;
            int64_t p = 0;
            for (; p + WIDTH < block; p += N * WIDTH) {
                sparse_output_band<M, N>(plan, some, weight, from + p, to + p, stride, block - p, begin == 0);
            }
            for (; p < block; p += WIDTH) {
                sparse_output_band<ALONE, 1>(plan, some, weight, from + p, to + p, stride, block - p, begin == 0);
            }
        }
    }
}

// One image: the gradient of its input, which is overwritten, and of its gates [H, C], those not kept 0.
inline void sparse_backward_input(const Conv& conv, const Selection& selection, int64_t most_kept, int64_t image, const Planes& grad,
                                  const Planes& x, const Planes& grad_x, const float* weight, float* grad_gates,
                                  float* scratch) {
    const SparsePlan plan(conv, most_kept, grad.height, grad.width);
    float *const planes = scratch, *const columns = scratch + plan.planes, *const block = columns + plan.columns;
    const float** const places = reinterpret_cast<const float**>(block + plan.block);
    const int64_t plane = static_cast<int64_t>(x.height) * x.width;
    const int64_t pixels = static_cast<int64_t>(grad.height) * grad.width;
    float* const to = grad_x.data + image * grad_x.image_stride;
    for (int64_t i = 0; i < conv.in_channels * plane; ++i) to[i] = 0;
    for (int64_t head = 0; head < conv.groups; ++head) {
        const SparseHead kept = sparse_head(conv, selection, image, head);
        const float* const rows_of_head = weight + head * conv.in_channels * plan.taps * plan.row;
        const int64_t products = sparse_places(plan, kept.channels, kept.count, rows_of_head, rows_of_head, places);
        for (int64_t i = 0; i < kept.count * plan.padded; ++i) planes[i] = 0;
        for (int64_t first = 0; first < grad.height; first += plan.block_rows) {
            const int64_t rows = first + plan.block_rows > grad.height ? grad.height - first : plan.block_rows;
            const int64_t width = rows * grad.width;
            for (int64_t o = 0; o < plan.outputs; ++o) {
                const float* from = grad.data + image * grad.image_stride + (o * conv.groups + head) * pixels +
                                    first * grad.width;
                float* copy = block + o * plan.line;
                for (int64_t p = 0; p < width; ++p) copy[p] = from[p];
                for (int64_t p = width; p < plan.line; ++p) copy[p] = 0;
            }
            sparse_product<false>([&](int64_t row) { return places[row]; }, block, plan.line, plan.outputs, products,
                                  sparse_up(width, WIDTH), [&](int64_t row) { return columns + row * plan.line; });
            for (int64_t i = 0; i < kept.count; ++i) {
                sparse_add_columns(conv, plan, columns + i * plan.taps * plan.line, first, rows,
                                   planes + i * plan.padded);
            }
        }
        float* const gates = grad_gates + (image * conv.groups + head) * conv.in_channels;
        for (int64_t c = 0; c < conv.in_channels; ++c) gates[c] = 0;
        const SparseOverlap part = sparse_overlap(conv, plan, x);
        for (int64_t i = 0; i < kept.count; ++i) {
            const float* const source = x.data + image * x.image_stride + kept.channels[i] * plane;
            float* const target = to + kept.channels[i] * plane;
            Vec sum{};
            for (int64_t y = 0; y < part.rows; ++y) {
                const float* from = planes + i * plan.padded + (y + conv.pad_top) * plan.padded_w + conv.pad_left;
                for (int64_t p = 0; p < part.width; p += WIDTH) {
                    const int left = part.width - p < WIDTH ? static_cast<int>(part.width - p) : WIDTH;
                    const Vec value = load_first(from + p, left);
                    const int64_t at = y * x.width + p;
                    sum += value * load_first(source + at, left);
                    store_first(target + at, load_first(target + at, left) + splat(kept.gates[i]) * value, left);
                }
            }
            gates[kept.channels[i]] = sum_lanes(sum);
        }
    }
}

// The gradient of the weights of one head, in rows, for the channels c of which c % parts is `part`: a sum over all
// images, in their order. `rows` is added to.
inline void sparse_backward_weight(const Conv& conv, const Selection& selection, int64_t most_kept, int64_t batch, int64_t head,
                                   int64_t part, int64_t parts, const Planes& grad, const Planes& x, float* rows_out,
                                   float* scratch) {
    const SparsePlan plan(conv, most_kept, grad.height, grad.width);
    float *const padded = scratch, *const columns = scratch + plan.planes, *const block = columns + plan.columns;
    const int64_t plane = static_cast<int64_t>(x.height) * x.width;
    const int64_t pixels = static_cast<int64_t>(grad.height) * grad.width;
    float** const places = reinterpret_cast<float**>(block + plan.block);
    int32_t* const mine = reinterpret_cast<int32_t*>(block + plan.block + plan.places);
    float* const nowhere = block + plan.block + plan.places + plan.list - plan.row;
    float* const rows_of_head = rows_out + head * conv.in_channels * plan.taps * plan.row;
    for (int64_t image = 0; image < batch; ++image) {
        const SparseHead kept = sparse_head(conv, selection, image, head);
        int64_t count = 0;
        for (int64_t i = 0; i < kept.count; ++i) {
            if (kept.channels[i] % parts != part) continue;
            sparse_pad(conv, plan, x, x.data + image * x.image_stride + kept.channels[i] * plane, kept.gates[i],
                       padded + count * plan.padded);
            mine[count++] = kept.channels[i];
        }
        const int64_t products = sparse_places(plan, mine, count, rows_of_head, nowhere, places);
        for (int64_t first = 0; count && first < grad.height; first += plan.block_rows) {
            const int64_t rows = first + plan.block_rows > grad.height ? grad.height - first : plan.block_rows;
            const int64_t width = rows * grad.width;
            for (int64_t i = 0; i < count; ++i) {
                sparse_columns(conv, plan, padded + i * plan.padded, first, rows,
                               columns + i * plan.taps * plan.line);
            }
            const float* const from = grad.data + image * grad.image_stride + head * pixels + first * grad.width;
            sparse_transpose(from, conv.groups * pixels, plan.outputs, width, block, plan.row);
            sparse_product<true>([&](int64_t row) { return columns + row * plan.line; }, block, plan.row, width,
                                 products, sparse_up(plan.outputs, WIDTH), [&](int64_t row) { return places[row]; });
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
