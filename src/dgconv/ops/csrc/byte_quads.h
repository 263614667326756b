// Depthwise convolution of bytes with few rows of taps: the bytes of a column, of up to four rows, are laid side by side
// once, channel by channel, and every result takes a product of four for each of its columns.
#pragma once

#include "byte_plan.h"

#if defined(__AVX512VNNI__)
namespace dgconv::DGCONV_ISA {

constexpr int QUAD_CHANNELS = 64, QUAD_VECTORS = 4, QUAD_COLUMNS = 64;  // columns: that are laid out at once
constexpr int PAIR_CHANNELS = QUAD_CHANNELS / 2;
constexpr int64_t QUAD_BYTES = QUAD_VECTORS * 64;                      // of a column

INLINE int quad_reach(const ByteConv& conv) { return (conv.kernel_w - 1) * conv.dilation_w; }

INLINE bool makes_quads(const ByteConv& conv) {
    return conv.kernel_h <= 4 && quad_reach(conv) + 1 <= QUAD_COLUMNS / 2 && conv.stride_w <= 4;
}

INLINE int quad_blocks(const ByteConv& conv) { return divide_up(conv.in_channels, QUAD_CHANNELS); }

// Lane i of vector v stands for this channel of QUAD_CHANNELS: where unpacking leaves it.
constexpr int channel_of_quad(int vector, int lane) { return lane / 4 * 16 + vector * 4 + lane % 4; }

// Of a block: [column of taps][vector][lane][row of taps], then what sums begin with, multipliers and biases.
struct QuadWeights {
    int8_t* weights;
    int32_t* start;
    float *multiplier, *bias;

    static int64_t bytes(const ByteConv& conv) { return (conv.kernel_w + 3) * QUAD_BYTES; }
    QuadWeights(const ByteConv& conv, const void* packed, int block) {
        weights = static_cast<int8_t*>(const_cast<void*>(packed)) + block * bytes(conv);
        start = reinterpret_cast<int32_t*>(weights + conv.kernel_w * QUAD_BYTES);
        multiplier = reinterpret_cast<float*>(start + QUAD_CHANNELS);
        bias = multiplier + QUAD_CHANNELS;
    }
};

inline void pack_quads(const ByteConv& conv, const int8_t* weight, void* packed) {
    for (int block = 0; block < quad_blocks(conv); ++block) {
        const QuadWeights to(conv, packed, block);
        for (int place = 0; place < QUAD_CHANNELS; ++place) {
            int c = block * QUAD_CHANNELS + channel_of_quad(place / LANES, place % LANES);
            if (conv.in_channels == PAIR_CHANNELS) c %= PAIR_CHANNELS;  // those of a second pixel
            if (c >= conv.in_channels) continue;
            to.multiplier[place] = conv.multiplier[c];
            to.bias[place] = conv.bias[c];
            for (int tap = 0; tap < conv.kernel_h * conv.kernel_w; ++tap) {
                const int8_t w = weight[int64_t(c) * conv.kernel_h * conv.kernel_w + tap];
                const int row = tap / conv.kernel_w, column = tap % conv.kernel_w;
                to.weights[column * QUAD_BYTES + place * 4 + row] = w;
                to.start[place] -= conv.input_zero * w;
            }
        }
    }
}

struct Quad {
    __m512i vectors[QUAD_VECTORS];
};
INLINE Quad interleave_rows(__m512i a, __m512i b, __m512i c, __m512i d) {
    const __m512i low = _mm512_unpacklo_epi8(a, b), low2 = _mm512_unpacklo_epi8(c, d);
    const __m512i high = _mm512_unpackhi_epi8(a, b), high2 = _mm512_unpackhi_epi8(c, d);
    return {{_mm512_unpacklo_epi16(low, low2), _mm512_unpackhi_epi16(low, low2), _mm512_unpacklo_epi16(high, high2),
             _mm512_unpackhi_epi16(high, high2)}};
}

// Where the results of a row go, for a block of channels.
struct QuadOutput {
    uint8_t* y;
    const uint8_t* residual;  // or null
    int64_t y_step, residual_step;
    int left;                 // of the channels
};

// Results next to each other; `quads` are those of the first one's first column. COLUMNS: the kernel's, whose weights
// then stay in registers; or 0, for any number.
template <int COLUMNS, bool HAS_RESIDUAL>
INLINE void multiply_quads(const ByteConv& conv, const QuadWeights& weights, const uint8_t* quads, int64_t step,
                           int results, const QuadOutput& output) {
    const ToByte as = conv.result;
    const int columns = COLUMNS ? COLUMNS : conv.kernel_w;
    const int64_t column_step = conv.dilation_w * QUAD_BYTES;
    const float residual_scale = conv.residual_scale;
    __m512i kept[COLUMNS ? COLUMNS : 1][QUAD_VECTORS];
    UNROLL for (int column = 0; column < COLUMNS; ++column) {
        UNROLL for (int v = 0; v < QUAD_VECTORS; ++v)
            kept[column][v] = _mm512_loadu_si512(weights.weights + column * QUAD_BYTES + v * 64);
    }
    for (int i = 0; i < results; ++i, quads += step) {
        IntVec sums[QUAD_VECTORS];
        UNROLL for (int v = 0; v < QUAD_VECTORS; ++v) sums[v] = load(weights.start + v * LANES);
        UNROLL for (int column = 0; column < columns; ++column) {
            const uint8_t* quad = quads + column * column_step;
            UNROLL for (int v = 0; v < QUAD_VECTORS; ++v) {
                const int8_t* const there = weights.weights + column * QUAD_BYTES + v * 64;
                const __m512i w = COLUMNS ? kept[COLUMNS ? column : 0][v] : _mm512_loadu_si512(there);
                sums[v] = dot(sums[v], _mm512_load_si512(quad + v * 64), w);
            }
        }
        Vec numbers[QUAD_VECTORS];
        UNROLL for (int v = 0; v < QUAD_VECTORS; ++v) {
            numbers[v] = to_float(sums[v]) * load(weights.multiplier + v * LANES) + load(weights.bias + v * LANES);
        }
        if (HAS_RESIDUAL) {
            const __m512i none = _mm512_setzero_si512();
            const WideVec bytes = load_wide(output.residual + i * output.residual_step, output.left);
            const Quad added = interleave_rows((__m512i)bytes, none, none, none);
            UNROLL for (int v = 0; v < QUAD_VECTORS; ++v) numbers[v] += to_float((IntVec)added.vectors[v]) * residual_scale;
        }
        store_wide(output.y + i * output.y_step, (WideVec)to_quarters(numbers, as), output.left);
    }
}

INLINE void multiply_quads(const ByteConv& conv, const QuadWeights& weights, const uint8_t* quads, int64_t step,
                           int results, const QuadOutput& output) {
    if (output.residual) return multiply_quads<0, true>(conv, weights, quads, step, results, output);
    if (conv.kernel_w == 3) return multiply_quads<3, false>(conv, weights, quads, step, results, output);
    multiply_quads<0, false>(conv, weights, quads, step, results, output);
}

// Half a vector of channels that lie together is taken two pixels at a time.
INLINE bool makes_pairs(const ByteConv& conv, const Pixels& x, const Pixels& y, const Pixels* residual) {
    const auto is_dense = [](const Pixels& pixels) { return pixels.pixel_stride == PAIR_CHANNELS; };
    return conv.in_channels == PAIR_CHANNELS && conv.stride_w == 1 && is_dense(x) && is_dense(y) &&
           (!residual || is_dense(*residual));
}

inline void convolve_quads(const ByteConv& conv, Pixels x, Pixels y, const Pixels* residual, Ahead* ahead, int rank,
                           int threads) {
    alignas(64) uint8_t quads[QUAD_COLUMNS * QUAD_BYTES];
    const Share share = share_of(y.height, rank, threads);
    const int reach = quad_reach(conv), together = makes_pairs(conv, x, y, residual) ? 2 : 1;
    const int at_once = ((QUAD_COLUMNS - 1 - reach) / conv.stride_w + 1) / together * together;
    const __m512i zero = _mm512_set1_epi8(char(conv.input_zero));
    for (int row = int(share.begin); row < share.end; ++row) {
        const uint8_t* rows[4] = {x.data, x.data, x.data, x.data};
        bool is_there[4] = {};
        for (int tap = 0; tap < conv.kernel_h; ++tap) {
            const int in_row = row * conv.stride_h - conv.pad_top + tap * conv.dilation_h;
            is_there[tap] = unsigned(in_row) < unsigned(x.height);
            if (is_there[tap]) rows[tap] = pixel_of(x, in_row, 0);
        }
        for (int block = 0; block < quad_blocks(conv); ++block) {
            const QuadWeights weights(conv, conv.weight, block);
            const int c = block * QUAD_CHANNELS, left = conv.in_channels - c;
            const uint64_t one = left >= QUAD_CHANNELS ? ~uint64_t(0) : (uint64_t(1) << left) - 1;
            const uint64_t all = together == 2 ? one | one << PAIR_CHANNELS : one;
            for (int first = 0; first < y.width; first += at_once) {
                const int results = smaller(at_once, y.width - first);
                const int begin = first * conv.stride_w - conv.pad_left;
                fetch(ahead, results);
                for (int column = 0; column < (results - 1) * conv.stride_w + reach + 1; ++column) {
                    const int64_t from = begin + column;
                    uint64_t inside = all;
                    if (unsigned(from) >= unsigned(x.width)) inside &= ~one;
                    if (unsigned(from + 1) >= unsigned(x.width)) inside &= one;
                    __m512i bytes[4];
                    UNROLL for (int tap = 0; tap < 4; ++tap) {
                        const uint8_t* const there = rows[tap] + from * x.pixel_stride + c;
                        bytes[tap] = zero;
                        if (is_there[tap] && inside == all) bytes[tap] = _mm512_maskz_loadu_epi8(all, there);
                        if (is_there[tap] && inside != all) bytes[tap] = _mm512_mask_loadu_epi8(zero, inside, there);
                    }
                    const Quad quad = interleave_rows(bytes[0], bytes[1], bytes[2], bytes[3]);
                    UNROLL for (int v = 0; v < QUAD_VECTORS; ++v) {
                        _mm512_store_si512(quads + column * QUAD_BYTES + v * 64, quad.vectors[v]);
                    }
                }
                const auto multiply = [&](int result, int count, int channels_left) {
                    QuadOutput output = {pixel_of(y, row, first + result) + c, nullptr, together * y.pixel_stride, 0,
                                         channels_left};
                    if (residual) {
                        output.residual = pixel_of(*residual, row, first + result) + c;
                        output.residual_step = together * residual->pixel_stride;
                    }
                    multiply_quads(conv, weights, quads + int64_t(result) * conv.stride_w * QUAD_BYTES,
                                   together * conv.stride_w * QUAD_BYTES, count, output);
                };
                multiply(0, results / together, together * left);
                if (results % together) multiply(results - 1, 1, left);
            }
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
#endif
