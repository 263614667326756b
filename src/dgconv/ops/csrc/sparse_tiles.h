// Training of a dynamic convolution in bfloat16, by tiles: as in sparse_conv.h, of the channels that are kept. Values are
// bfloat16, products and sums float32. Images are planes, NCHW. Whoever includes it has BFloatTiles, of AMX or of vectors.
//
// Tiles multiply so fast that most of the time is spent on bringing values into their order, so that is done once for
// each head of an image: channels are taken in pairs, a pixel of both in 32 bits, in padded planes. What a tap reads of
// all pixels lies in such a plane without gaps, if what is between two rows is computed, too, and left out at the end.
// Weights lie in rows of the outputs of a head, one for each channel and tap, in the order of these in the weight.
#pragma once

#include <cstring>

#include "sparse_conv.h"
#include "table.h"
#include "tiles.h"

namespace dgconv::DGCONV_ISA {

typedef uint16_t BFloat;
constexpr int TILE_TERMS = 32;      // of bfloat16, in a row of a tile
constexpr int TILE_SLACK = 4 * 64;  // bytes behind planes that a tile may read, or a vector write

INLINE int64_t tile_up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

INLINE uint32_t first_bits(int64_t count) { return count < 32 ? (1u << count) - 1 : ~0u; }

// The first `count` values.
INLINE __m512i load_words(const BFloat* from, int64_t count) {
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_bits(count < 16 ? count : 16), from));
}
INLINE Vec widen(__m512i words) { return (Vec)_mm512_slli_epi32(words, 16); }
INLINE Vec widen(const BFloat* from, int64_t count) { return widen(load_words(from, count)); }

// To the nearest, ties to even; a value in each 32 bits.
INLINE __m512i narrow(Vec v) {
#if !defined(__AVX512BF16__)
    const __m512i bits = (__m512i)v, odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    return _mm512_srli_epi32(_mm512_mask_blend_epi32(is_nan, rounded, _mm512_set1_epi32(0x7fc00000)), 16);
#else
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)v));
#endif
}
INLINE void store_words(BFloat* to, __m512i words, int64_t count) {
    _mm256_mask_storeu_epi16(to, first_bits(count < 16 ? count : 16), _mm512_cvtepi32_epi16(words));
}

// to[c][r] = from[r][c]; rows of `to` are filled up with zeros to `width` values.
inline void transpose_words(const BFloat* from, int64_t from_stride, int64_t rows, int64_t columns, BFloat* to,
                            int64_t to_stride, int64_t width) {
    for (int64_t r = 0; r < width; r += TILE_TERMS) {
        for (int64_t c = 0; c < columns; c += WIDTH) {
            Vec square[WIDTH];
            UNROLL for (int i = 0; i < WIDTH; ++i) {
                const int64_t row = r + 2 * i;
                const BFloat* const at = from + row * from_stride + c;
                const __m512i low = row < rows ? load_words(at, columns - c) : __m512i{};
                const __m512i high = row + 1 < rows ? load_words(at + from_stride, columns - c) : __m512i{};
                square[i] = (Vec)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
            }
            transpose(square);
            UNROLL for (int i = 0; i < WIDTH; ++i) {
                if (c + i >= columns) break;
                _mm512_mask_storeu_epi16(to + (c + i) * to_stride + r, first_bits(width - r), (__m512i)square[i]);
            }
        }
    }
}

// How many terms of a sum tiles take at a time, evenly.
struct TileDepth {
    int64_t chunks, step, terms;

    explicit TileDepth(int64_t count) {
        chunks = count > TILE_TERMS ? (count + TILE_TERMS - 1) / TILE_TERMS : 1;
        step = tile_up((count + chunks - 1) / chunks, 2);
        step = step < 2 ? 2 : step;
        terms = chunks * step;
    }
};

// M times N tiles of sums for m and n known at run time only.
template <class A, class B, class To>
INLINE void tile_product(const BFloatTiles& tiles, int64_t m, int64_t n, int64_t outer, int64_t inner, const A& a,
                         int64_t a_stride, const B& b, int64_t b_stride, const To& to, int64_t to_stride) {
#define DGCONV_TILES_OF(M, N) \
    if (m == M && n == N) return tiles.product<M, N>(outer, inner, a, a_stride, b, b_stride, to, to_stride)
    DGCONV_TILES_OF(2, 2);
    DGCONV_TILES_OF(1, 4);
    DGCONV_TILES_OF(1, 3);
    DGCONV_TILES_OF(1, 2);
    DGCONV_TILES_OF(1, 1);
    DGCONV_TILES_OF(2, 1);
    DGCONV_TILES_OF(3, 1);
    DGCONV_TILES_OF(4, 1);
#undef DGCONV_TILES_OF
}

// Rows of tiles m times columns of tiles n, at most four at a time: body(m, how many, n, how many).
template <class Body>
INLINE void tile_blocks(int64_t rows, int64_t columns, const Body& body) {
    const int64_t m_at_once = columns == 1 ? 4 : rows == 1 ? 1 : 2;
    for (int64_t m = 0; m < rows; m += m_at_once) {
        const int64_t some = rows - m < m_at_once ? rows - m : m_at_once, n_at_once = columns == 1 ? 1 : 4 / some;
        for (int64_t n = 0; n < columns; n += n_at_once) {
            body(m, some, n, columns - n < n_at_once ? columns - n : n_at_once);
        }
    }
}

// Where padded planes of the input are read by a tap for each output: a plane for each remainder of rows and of columns
// by the stride, so that neighbours are neighbours.
struct TilePhases {
    const Conv& conv;
    int64_t rows, width, plane, channel;  // of a plane; values of a plane, and of all planes of a channel
    int64_t flat;                         // from the first output to the last, and what is between rows

    TilePhases(const Conv& conv, int32_t out_h, int32_t out_w) : conv(conv) {
        rows = out_h + (conv.kernel_h - 1) * conv.dilation_h / conv.stride_h;
        width = out_w + (conv.kernel_w - 1) * conv.dilation_w / conv.stride_w;
        plane = rows * width;
        channel = plane * conv.stride_h * conv.stride_w;
        flat = (out_h - 1) * width + out_w;
    }

    // Where a tap reads for the first output.
    int64_t place(int64_t tap) const {
        const int64_t y = tap / conv.kernel_w * conv.dilation_h, x = tap % conv.kernel_w * conv.dilation_w;
        return (y % conv.stride_h * conv.stride_w + x % conv.stride_w) * plane + y / conv.stride_h * width +
               x / conv.stride_w;
    }

    static bool is_read(int64_t phase, int64_t kernel, int64_t dilation, int64_t stride) {
        for (int64_t k = 0; k < kernel; ++k) {
            if (k * dilation % stride == phase) return true;
        }
        return false;
    }

    // Writes the rows of a channel that `make(y, count, to)` makes into its planes, where all is zero now.
    template <class Value, class Make>
    INLINE void fill(int64_t x_h, int64_t x_w, Value* to, Value* row, const Make& make) const {
        for (int64_t py = 0; py < conv.stride_h; ++py) {
            if (!is_read(py, conv.kernel_h, conv.dilation_h, conv.stride_h)) continue;
            for (int64_t r = 0; r < rows; ++r) {
                const int64_t y = r * conv.stride_h + py - conv.pad_top;
                if (y < 0 || y >= x_h) continue;
                Value* const planes = to + py * conv.stride_w * plane + r * width;
                if (conv.stride_w == 1) {
                    const int64_t left = width - conv.pad_left;
                    if (left > 0) make(y, left < x_w ? left : x_w, planes + conv.pad_left);
                    continue;
                }
                make(y, x_w, row);
                for (int64_t px = 0; px < conv.stride_w; ++px) {
                    if (!is_read(px, conv.kernel_w, conv.dilation_w, conv.stride_w)) continue;
                    for (int64_t c = 0; c < width; ++c) {
                        const int64_t x = c * conv.stride_w + px - conv.pad_left;
                        if (x >= 0 && x < x_w) planes[px * plane + c] = row[x];
                    }
                }
            }
        }
    }
};

// The padded planes of the gradient of the output, spread by the stride, for the way back to the input.
struct TileSpread {
    const Conv& conv;
    int64_t width, plane, flat, top, left;

    TileSpread(const Conv& conv, int32_t x_h, int32_t x_w) : conv(conv) {
        width = x_w + (conv.kernel_w - 1) * conv.dilation_w;
        plane = width * (x_h + (conv.kernel_h - 1) * conv.dilation_h);
        flat = (x_h - 1) * width + x_w;
        top = (conv.kernel_h - 1) * conv.dilation_h - conv.pad_top;
        left = (conv.kernel_w - 1) * conv.dilation_w - conv.pad_left;
    }

    int64_t place(int64_t tap) const {
        const int64_t ky = conv.kernel_h - 1 - tap / conv.kernel_w, kx = conv.kernel_w - 1 - tap % conv.kernel_w;
        return ky * conv.dilation_h * width + kx * conv.dilation_w;
    }

    template <class Make>
    INLINE void fill(int64_t grad_h, int64_t grad_w, uint32_t* to, uint32_t* row, const Make& make) const {
        for (int64_t r = 0; r < grad_h; ++r) {
            const int64_t y = r * conv.stride_h + top;
            if (y < 0 || y >= plane / width) continue;
            if (conv.stride_w == 1 && left >= 0 && left + grad_w <= width) {
                make(r, grad_w, to + y * width + left);
                continue;
            }
            make(r, grad_w, row);
            for (int64_t c = 0; c < grad_w; ++c) {
                const int64_t x = c * conv.stride_w + left;
                if (x >= 0 && x < width) to[y * width + x] = row[c];
            }
        }
    }
};

// Two rows of values, each times its gate, as pairs. The second may be missing.
INLINE void pair_rows(const BFloat* first, float gate, const BFloat* second, float other_gate, int64_t count,
                      uint32_t* to) {
    for (int64_t i = 0; i < count; i += WIDTH) {
        const __m512i low = narrow(widen(first + i, count - i) * gate);
        const __m512i high = second ? narrow(widen(second + i, count - i) * other_gate) : __m512i{};
        _mm512_mask_storeu_epi32(to + i, (__mmask16)first_bits(count - i < 16 ? count - i : 16),
                                 _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
}

INLINE BFloat* bfloats(const Planes& planes, int64_t image, int64_t channel) {
    return reinterpret_cast<BFloat*>(planes.data) + image * planes.image_stride +
           channel * planes.height * planes.width;
}

// Takes parts of a thread's memory, one after the other.
struct Scratch {
    uintptr_t at = 0;  // if nothing, only how much it is

    template <class Value>
    Value* take(int64_t count) {
        Value* const part = reinterpret_cast<Value*>(at);
        at += tile_up(count * sizeof(Value) + TILE_SLACK, 64);
        return part;
    }
};

// What the kernels below take of it, and the sizes that follow from a convolution.
struct TileForward {
    TileDepth depth;
    TilePhases phases;
    int64_t taps, outputs, columns;
    uint32_t *pairs, *row;
    BFloat* weight;
    float* sums;

    TileForward(const Conv& conv, int64_t kept, const Planes& x, const Planes& y, Scratch& scratch)
        : depth(kept), phases(conv, y.height, y.width) {
        taps = int64_t(conv.kernel_h) * conv.kernel_w, outputs = conv.out_channels / conv.groups;
        columns = tile_up(phases.flat, WIDTH);
        pairs = scratch.take<uint32_t>(depth.terms / 2 * phases.channel);
        row = scratch.take<uint32_t>(x.width);
        weight = scratch.take<BFloat>(tile_up(outputs, TILE_ROWS) * taps * depth.terms);
        sums = scratch.take<float>(2 * TILE_ROWS * columns);
    }
};

struct TileBackwardInput {
    TileDepth depth;
    TileSpread spread;
    int64_t taps, outputs, columns, kept_rows;
    uint32_t *pairs, *row;
    BFloat* weight;
    float *sums, *result;

    TileBackwardInput(const Conv& conv, int64_t most_kept, const Planes& x, const Planes& grad, Scratch& scratch)
        : depth(conv.out_channels / conv.groups), spread(conv, x.height, x.width) {
        taps = int64_t(conv.kernel_h) * conv.kernel_w, outputs = conv.out_channels / conv.groups;
        columns = tile_up(spread.flat, WIDTH), kept_rows = tile_up(most_kept, TILE_ROWS);
        pairs = scratch.take<uint32_t>(depth.terms / 2 * spread.plane);
        row = scratch.take<uint32_t>(grad.width);
        weight = scratch.take<BFloat>(taps * kept_rows * depth.terms);
        sums = scratch.take<float>(2 * TILE_ROWS * columns);
        result = scratch.take<float>(int64_t(x.channels) * x.height * x.width);
    }
};

struct TileBackwardWeight {
    TilePhases phases;
    int64_t taps, outputs, row_floats, terms;
    int32_t* mine;
    BFloat *planes, *row, *grad_rows;
    uint32_t* pairs;
    float* sums;

    TileBackwardWeight(const Conv& conv, int64_t most_kept, const Planes& x, const Planes& grad, Scratch& scratch)
        : phases(conv, grad.height, grad.width) {
        taps = int64_t(conv.kernel_h) * conv.kernel_w, outputs = conv.out_channels / conv.groups;
        row_floats = tile_up(outputs, WIDTH), terms = tile_up(phases.flat, TILE_TERMS);
        mine = scratch.take<int32_t>(conv.in_channels);
        planes = scratch.take<BFloat>(tile_up(most_kept, TILE_ROWS) * phases.channel);
        row = scratch.take<BFloat>(x.width);
        grad_rows = scratch.take<BFloat>(TILE_ROWS * terms);
        pairs = scratch.take<uint32_t>(terms / 2 * row_floats);
        sums = scratch.take<float>(4 * TILE_ROWS * WIDTH);
    }
};

inline int64_t tile_scratch_bytes(const Conv& conv, int64_t most_kept, const Planes& x, const Planes& y) {
    Scratch forward, input, weight;
    TileForward(conv, most_kept, x, y, forward);
    TileBackwardInput(conv, most_kept, x, y, input);
    TileBackwardWeight(conv, most_kept, x, y, weight);
    uintptr_t most = forward.at;
    most = input.at > most ? input.at : most;
    return int64_t(weight.at > most ? weight.at : most);
}

// A matrix of so many rows and columns.
inline void tile_transpose(int64_t rows, int64_t columns, const BFloat* from, BFloat* to) {
    transpose_words(from, columns, rows, columns, to, rows, rows);
}

// Values of the rows of all weights, each filled up with zeros.
inline int64_t tile_rows_words(const Conv& conv) {
    return int64_t(conv.groups) * conv.kernel_h * conv.kernel_w * conv.in_channels *
           TileDepth(conv.out_channels / conv.groups).terms;
}

// Where the row of a channel and tap is, of those of a head: a weight has either the channels or the taps of an output
// side by side.
INLINE int64_t row_at(const Conv& conv, bool by_tap, int64_t channel, int64_t tap) {
    return by_tap ? tap * conv.in_channels + channel : channel * conv.kernel_h * conv.kernel_w + tap;
}

inline void tile_pack_rows(const Conv& conv, int64_t head, const BFloat* weight, BFloat* rows) {
    const int64_t of_output = int64_t(conv.kernel_h) * conv.kernel_w * conv.in_channels;
    const int64_t outputs = conv.out_channels / conv.groups, terms = TileDepth(outputs).terms;
    transpose_words(weight + head * of_output, conv.groups * of_output, outputs, of_output,
                    rows + head * of_output * terms, terms, terms);
}

// From sums in rows, of the outputs up to a multiple of WIDTH.
inline void tile_unpack_sums(const Conv& conv, int64_t head, const float* sums, BFloat* weight) {
    const int64_t of_output = int64_t(conv.kernel_h) * conv.kernel_w * conv.in_channels;
    const int64_t outputs = conv.out_channels / conv.groups, row = tile_up(outputs, WIDTH);
    sums += head * of_output * row;
    for (int64_t r = 0; r < of_output; r += WIDTH) {
        for (int64_t o = 0; o < outputs; o += WIDTH) {
            Vec square[WIDTH];
            UNROLL for (int i = 0; i < WIDTH; ++i) {
                square[i] = r + i < of_output ? load(sums + (r + i) * row + o) : Vec{};
            }
            transpose(square);
            UNROLL for (int i = 0; i < WIDTH; ++i) {
                if (o + i >= outputs) break;
                BFloat* const to = weight + ((o + i) * conv.groups + head) * of_output + r;
                store_words(to, narrow(square[i]), of_output - r);
            }
        }
    }
}

// The weights of the channels that are kept, of one tap: outputs, of each the channels and zeros up to `terms`.
INLINE void pick_weights(const Conv& conv, bool by_tap, const SparseHead& kept, const BFloat* rows, int64_t row_words,
                         int64_t tap, int64_t outputs, BFloat* to, int64_t to_stride, int64_t terms) {
    for (int64_t first = 0; first < terms; first += TILE_TERMS) {
        const BFloat* places[TILE_TERMS];
        for (int64_t i = 0; i < TILE_TERMS; ++i) {
            const int64_t at = first + i;
            places[i] = at < kept.count ? rows + row_at(conv, by_tap, kept.channels[at], tap) * row_words : nullptr;
        }
        for (int64_t o = 0; o < outputs; o += WIDTH) {
            Vec square[WIDTH];
            UNROLL for (int i = 0; i < WIDTH; ++i) {
                const BFloat *const even = places[2 * i], *const odd = places[2 * i + 1];
                const __m512i low = even ? load_words(even + o, row_words - o) : __m512i{};
                const __m512i high = odd ? load_words(odd + o, row_words - o) : __m512i{};
                square[i] = (Vec)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
            }
            transpose(square);
            UNROLL for (int i = 0; i < WIDTH; ++i) {
                _mm512_mask_storeu_epi16(to + (o + i) * to_stride + first, first_bits(terms - first),
                                         (__m512i)square[i]);
            }
        }
    }
}

// One head of one image.
inline void tile_forward(const Conv& conv, const Selection& selection, int64_t image, int64_t head, const Planes& x,
                         const Planes& y, const BFloat* rows, bool by_tap, char* scratch) {
    const SparseHead kept = sparse_head(conv, selection, image, head);
    Scratch memory{reinterpret_cast<uintptr_t>(scratch)};
    const TileForward parts(conv, kept.count, x, y, memory);
    const TilePhases& phases = parts.phases;
    const TileDepth& depth = parts.depth;

    const int64_t of_row = TileDepth(parts.outputs).terms, row_words = parts.taps * depth.terms;
    for (int64_t tap = 0; tap < parts.taps; ++tap) {
        pick_weights(conv, by_tap, kept, rows + head * conv.in_channels * parts.taps * of_row, of_row, tap,
                     parts.outputs, parts.weight + tap * depth.terms, row_words, depth.terms);
    }
    memset(parts.pairs, 0, depth.terms / 2 * phases.channel * sizeof *parts.pairs + TILE_SLACK);
    for (int64_t i = 0; i < kept.count; i += 2) {
        const bool is_pair = i + 1 < kept.count;
        const BFloat* const first = bfloats(x, image, kept.channels[i]);
        const BFloat* const second = is_pair ? bfloats(x, image, kept.channels[i + 1]) : nullptr;
        const float gate = kept.gates[i], other_gate = is_pair ? kept.gates[i + 1] : 0;
        phases.fill(x.height, x.width, parts.pairs + i / 2 * phases.channel, parts.row,
                    [&](int64_t row, int64_t count, uint32_t* to) {
                        const int64_t at = row * x.width;
                        pair_rows(first + at, gate, second ? second + at : nullptr, other_gate, count, to);
                    });
    }
    const BFloatTiles tiles(depth.step);
    const auto finish = [&](int64_t first, int64_t end) {
        for (int64_t o = first; o < end && o < parts.outputs; ++o) {
            BFloat* const to = bfloats(y, image, o * conv.groups + head);
            for (int64_t row = 0; row < y.height; ++row) {
                const float* const from = parts.sums + (o - first) * parts.columns + row * phases.width;
                for (int64_t i = 0; i < y.width; i += WIDTH) {
                    const int left = y.width - i < WIDTH ? int(y.width - i) : WIDTH;
                    store_words(to + row * y.width + i, narrow(load_first(from + i, left)), left);
                }
            }
        }
    };
    const int64_t columns = parts.columns / WIDTH;
    for (int64_t o = 0; o < parts.outputs; o += 2 * TILE_ROWS) {
        const int64_t tile_rows = parts.outputs - o > TILE_ROWS ? 2 : 1;
        tile_blocks(tile_rows, columns, [&](int64_t m, int64_t ms, int64_t n, int64_t ns) {
            tile_product(
                tiles, ms, ns, parts.taps, depth.chunks,
                [&](int64_t i, int64_t tap, int64_t chunk) {
                    return parts.weight + (o + (m + i) * TILE_ROWS) * row_words + tap * depth.terms +
                           chunk * depth.step;
                },
                row_words * sizeof(BFloat),
                [&](int64_t i, int64_t tap, int64_t chunk) {
                    return parts.pairs + chunk * depth.step / 2 * phases.channel + phases.place(tap) +
                           (n + i) * WIDTH;
                },
                phases.channel * sizeof(uint32_t),
                [&](int64_t i, int64_t j) {
                    return parts.sums + (m + i) * TILE_ROWS * parts.columns + (n + j) * WIDTH;
                },
                parts.columns * sizeof(float));
        });
        finish(o, o + tile_rows * TILE_ROWS);
    }
}

// One image: the gradient of its input, which is overwritten, and of its gates [H, C], those not kept 0.
inline void tile_backward_input(const Conv& conv, const Selection& selection, int64_t most_kept, int64_t image,
                                const Planes& grad, const Planes& x, const Planes& grad_x, const BFloat* rows,
                                bool by_tap, float* grad_gates, char* scratch) {
    Scratch memory{reinterpret_cast<uintptr_t>(scratch)};
    const TileBackwardInput parts(conv, most_kept, x, grad, memory);
    const TileSpread& spread = parts.spread;
    const TileDepth& depth = parts.depth;
    const int64_t plane = int64_t(x.height) * x.width, columns = parts.columns / WIDTH;
    memset(parts.result, 0, x.channels * plane * sizeof *parts.result);
    memset(parts.pairs, 0, depth.terms / 2 * spread.plane * sizeof *parts.pairs + TILE_SLACK);
    const BFloatTiles tiles(depth.step);
    for (int64_t head = 0; head < conv.groups; ++head) {
        const SparseHead kept = sparse_head(conv, selection, image, head);
        for (int64_t o = 0; o < parts.outputs; o += 2) {
            const BFloat* const first = bfloats(grad, image, o * conv.groups + head);
            const BFloat* const second =
                o + 1 < parts.outputs ? bfloats(grad, image, (o + 1) * conv.groups + head) : nullptr;
            spread.fill(grad.height, grad.width, parts.pairs + o / 2 * spread.plane, parts.row,
                        [&](int64_t row, int64_t count, uint32_t* to) {
                            const int64_t at = row * grad.width;
                            pair_rows(first + at, 1, second ? second + at : nullptr, 1, count, to);
                        });
        }
        const int64_t row_bytes = depth.terms * sizeof(BFloat);
        for (int64_t tap = 0; tap < parts.taps; ++tap) {
            const BFloat* const from = rows + head * parts.taps * conv.in_channels * depth.terms;
            BFloat* const to = parts.weight + tap * parts.kept_rows * depth.terms;
            for (int64_t i = 0; i < kept.count; ++i) {
                const int64_t row = row_at(conv, by_tap, kept.channels[i], tap);
                memcpy(to + i * depth.terms, from + row * depth.terms, row_bytes);
            }
        }
        float* const gates = grad_gates + (image * conv.groups + head) * conv.in_channels;
        memset(gates, 0, conv.in_channels * sizeof *gates);
        const auto finish = [&](int64_t first, int64_t end) {
            for (int64_t i = first; i < end && i < kept.count; ++i) {
                const int64_t channel = kept.channels[i];
                const BFloat* const source = bfloats(x, image, channel);
                float* const target = parts.result + channel * plane;
                Vec sum{};
                for (int64_t y = 0; y < x.height; ++y) {
                    const float* const from = parts.sums + (i - first) * parts.columns + y * spread.width;
                    for (int64_t p = 0; p < x.width; p += WIDTH) {
                        const int left = x.width - p < WIDTH ? int(x.width - p) : WIDTH;
                        const int64_t at = y * x.width + p;
                        const Vec value = load_first(from + p, left);
                        sum += value * widen(source + at, left);
                        store_first(target + at, load_first(target + at, left) + splat(kept.gates[i]) * value, left);
                    }
                }
                gates[channel] = sum_lanes(sum);
            }
        };
        for (int64_t c = 0; c < kept.count; c += 2 * TILE_ROWS) {
            const int64_t tile_rows = kept.count - c > TILE_ROWS ? 2 : 1;
            tile_blocks(tile_rows, columns, [&](int64_t m, int64_t ms, int64_t n, int64_t ns) {
                tile_product(
                    tiles, ms, ns, parts.taps, depth.chunks,
                    [&](int64_t i, int64_t tap, int64_t chunk) {
                        return parts.weight + (tap * parts.kept_rows + c + (m + i) * TILE_ROWS) * depth.terms +
                               chunk * depth.step;
                    },
                    row_bytes,
                    [&](int64_t i, int64_t tap, int64_t chunk) {
                        return parts.pairs + chunk * depth.step / 2 * spread.plane + spread.place(tap) +
                               (n + i) * WIDTH;
                    },
                    spread.plane * sizeof(uint32_t),
                    [&](int64_t i, int64_t j) {
                        return parts.sums + (m + i) * TILE_ROWS * parts.columns + (n + j) * WIDTH;
                    },
                    parts.columns * sizeof(float));
            });
            finish(c, c + tile_rows * TILE_ROWS);
        }
    }
    BFloat* const to = bfloats(grad_x, image, 0);
    for (int64_t i = 0; i < x.channels * plane; i += WIDTH) {
        const int left = x.channels * plane - i < WIDTH ? int(x.channels * plane - i) : WIDTH;
        store_words(to + i, narrow(load_first(parts.result + i, left)), left);
    }
}

// The gradient of the weights of one head for the channels c of which c % parts is `part`: a sum over all images, in
// their order, added to `sums` in rows, of the outputs up to a multiple of WIDTH.
inline void tile_backward_weight(const Conv& conv, const Selection& selection, int64_t most_kept, int64_t batch,
                                 int64_t head, int64_t part, int64_t part_count, const Planes& grad, const Planes& x,
                                 float* sums, bool by_tap, char* scratch) {
    Scratch memory{reinterpret_cast<uintptr_t>(scratch)};
    const TileBackwardWeight parts(conv, most_kept, x, grad, memory);
    const TilePhases& phases = parts.phases;
    const BFloatTiles tiles(TILE_TERMS);
    const int64_t output_tiles = parts.row_floats / WIDTH, steps = parts.terms / TILE_TERMS;
    sums += head * parts.taps * conv.in_channels * parts.row_floats;
    memset(parts.grad_rows, 0, TILE_ROWS * parts.terms * sizeof *parts.grad_rows);
    for (int64_t image = 0; image < batch; ++image) {
        const SparseHead kept = sparse_head(conv, selection, image, head);
        int64_t count = 0;
        for (int64_t i = 0; i < kept.count; ++i) count += kept.channels[i] % part_count == part;
        if (!count) continue;
        memset(parts.planes, 0, count * phases.channel * sizeof *parts.planes + TILE_SLACK);
        count = 0;
        for (int64_t i = 0; i < kept.count; ++i) {
            if (kept.channels[i] % part_count != part) continue;
            const BFloat* const from = bfloats(x, image, kept.channels[i]);
            phases.fill(x.height, x.width, parts.planes + count * phases.channel, parts.row,
                        [&](int64_t row, int64_t values, BFloat* to) {
                            for (int64_t p = 0; p < values; p += WIDTH) {
                                const Vec scaled = widen(from + row * x.width + p, values - p) * kept.gates[i];
                                store_words(to + p, narrow(scaled), values - p);
                            }
                        });
            parts.mine[count++] = kept.channels[i];
        }
        for (int64_t tile = 0; tile < output_tiles; ++tile) {
            const int64_t first = tile * TILE_ROWS;
            const int64_t outputs = parts.outputs - first < TILE_ROWS ? parts.outputs - first : TILE_ROWS;
            for (int64_t o = 0; o < outputs; ++o) {
                const BFloat* const from = bfloats(grad, image, (first + o) * conv.groups + head);
                for (int64_t y = 0; y < grad.height; ++y) {
                    memcpy(parts.grad_rows + o * parts.terms + y * phases.width, from + y * grad.width,
                           grad.width * sizeof(BFloat));
                }
            }
            for (int64_t pair = 0; pair < parts.terms / 2; pair += WIDTH) {
                Vec square[WIDTH];
                UNROLL for (int i = 0; i < WIDTH; ++i) {
                    const BFloat* const from = parts.grad_rows + i * parts.terms + 2 * pair;
                    square[i] = i < outputs ? load(reinterpret_cast<const float*>(from)) : Vec{};
                }
                transpose(square);
                UNROLL for (int i = 0; i < WIDTH; ++i) {
                    _mm512_storeu_si512(parts.pairs + (pair + i) * parts.row_floats + first, (__m512i)square[i]);
                }
            }
        }
        const int64_t row_tiles = (count + TILE_ROWS - 1) / TILE_ROWS * parts.taps;  // a tap after the other
        tile_blocks(row_tiles, output_tiles, [&](int64_t m, int64_t ms, int64_t n, int64_t ns) {
            tile_product(
                tiles, ms, ns, 1, steps,
                [&](int64_t i, int64_t, int64_t step) {
                    const int64_t row = (m + i) / parts.taps * TILE_ROWS;
                    return parts.planes + row * phases.channel + phases.place((m + i) % parts.taps) +
                           step * TILE_TERMS;
                },
                phases.channel * sizeof(BFloat),
                [&](int64_t i, int64_t, int64_t step) {
                    return parts.pairs + step * TILE_ROWS * parts.row_floats + (n + i) * WIDTH;
                },
                parts.row_floats * sizeof(uint32_t),
                [&](int64_t i, int64_t j) { return parts.sums + (i * ns + j) * TILE_ROWS * WIDTH; },
                WIDTH * sizeof(float));
            for (int64_t i = 0; i < ms; ++i) {
                const int64_t tap = (m + i) % parts.taps, first = (m + i) / parts.taps * TILE_ROWS;
                const int64_t valid = count - first < TILE_ROWS ? count - first : TILE_ROWS;
                for (int64_t j = 0; j < ns; ++j) {
                    const float* from = parts.sums + (i * ns + j) * TILE_ROWS * WIDTH;
                    for (int64_t row = 0; row < valid; ++row, from += WIDTH) {
                        const int64_t place = row_at(conv, by_tap, parts.mine[first + row], tap);
                        float* const to = sums + place * parts.row_floats + (n + j) * WIDTH;
                        store(to, load(to) + load(from));
                    }
                }
            }
        });
    }
}

// The mean of each plane of one image; `by_pixel`, the channels of a pixel lie together.
inline void tile_means(int64_t channels, int64_t pixels, bool by_pixel, const BFloat* x, float* means) {
    const float share = 1 / float(pixels);
    if (!by_pixel) {
        for (int64_t c = 0; c < channels; ++c, x += pixels) {
            Vec even{}, odd{};
            for (int64_t p = 0; p < pixels; p += 2 * WIDTH) {
                even += widen(x + p, pixels - p);
                if (pixels - p > WIDTH) odd += widen(x + p + WIDTH, pixels - p - WIDTH);
            }
            means[c] = sum_lanes(even + odd) * share;
        }
        return;
    }
    for (int64_t c = 0; c < channels; c += 4 * WIDTH) {
        Vec sums[4] = {};
        for (int64_t p = 0; p < pixels; ++p) {
            UNROLL for (int i = 0; i < 4; ++i) {
                const int64_t left = channels - c - i * WIDTH;
                if (left > 0) sums[i] += widen(x + p * channels + c + i * WIDTH, left);
            }
        }
        UNROLL for (int i = 0; i < 4; ++i) {
            const int64_t left = channels - c - i * WIDTH;
            if (left > 0) store_first(means + c + i * WIDTH, sums[i] * share, left < WIDTH ? int(left) : WIDTH);
        }
    }
}

}  // namespace dgconv::DGCONV_ISA

// The table of these kernels, of this name.
#define DGCONV_TILE_KERNELS(ISA)                                                                             \
    namespace dgconv {                                                                                       \
    extern const TileKernels ISA##_kernels = {                                                               \
        true,                     ISA::tile_scratch_bytes, ISA::tile_transpose,      ISA::tile_rows_words,   \
        ISA::tile_pack_rows,      ISA::tile_unpack_sums,   ISA::tile_forward,        ISA::tile_backward_input, \
        ISA::tile_backward_weight, ISA::tile_means,                                                          \
    };                                                                                                       \
    }
