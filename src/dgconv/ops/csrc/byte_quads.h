// Depthwise convolution of bytes with few rows of taps: the bytes of a column, of up to four rows, are laid side by side
// once, channel by channel, and every result takes a product of four for each of its columns.
#pragma once

#include "byte_plan.h"

#if defined(__AVX512VNNI__)
namespace dgconv::DGCONV_ISA {

constexpr int QUAD_CHANNELS = 64, QUAD_VECTORS = 4, QUAD_COLUMNS = 64;  // columns: that are laid out at once
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
            const int c = block * QUAD_CHANNELS + channel_of_quad(place / LANES, place % LANES);
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

// One result, of a block of channels; `quads` are those of its first column.
template <bool HAS_RESIDUAL>
INLINE void multiply_quads(const ByteConv& conv, const QuadWeights& weights, const uint8_t* quads, uint8_t* y,
                           const uint8_t* residual, int left) {
    IntVec sums[QUAD_VECTORS];
    UNROLL for (int v = 0; v < QUAD_VECTORS; ++v) sums[v] = load(weights.start + v * LANES);
    for (int column = 0; column < conv.kernel_w; ++column) {
        const uint8_t* quad = quads + int64_t(column) * conv.dilation_w * QUAD_BYTES;
        const int8_t* w = weights.weights + column * QUAD_BYTES;
        UNROLL for (int v = 0; v < QUAD_VECTORS; ++v) {
            sums[v] = dot(sums[v], _mm512_load_si512(quad + v * 64), _mm512_loadu_si512(w + v * 64));
        }
    }
    const __m512i none = _mm512_setzero_si512();
    const Quad added = interleave_rows(HAS_RESIDUAL ? (__m512i)load_wide(residual, left) : none, none, none, none);
    UNROLL for (int v = 0; v < QUAD_VECTORS; ++v) {
        Vec result = to_float(sums[v]) * load(weights.multiplier + v * LANES) + load(weights.bias + v * LANES);
        if (HAS_RESIDUAL) result += to_float((IntVec)added.vectors[v]) * conv.residual_scale;
        sums[v] = to_byte(result, conv.result);
    }
    const __m512i words = _mm512_packs_epi32((__m512i)sums[0], (__m512i)sums[1]);
    const __m512i more = _mm512_packs_epi32((__m512i)sums[2], (__m512i)sums[3]);
    store_wide(y, (WideVec)_mm512_packus_epi16(words, more), left);
}

inline void convolve_quads(const ByteConv& conv, Pixels x, Pixels y, const Pixels* residual, Ahead* ahead, int rank,
                           int threads) {
    alignas(64) uint8_t quads[QUAD_COLUMNS * QUAD_BYTES];
    const Share share = share_of(y.height, rank, threads);
    const int reach = quad_reach(conv), at_once = (QUAD_COLUMNS - 1 - reach) / conv.stride_w + 1;
    const __m512i zero = _mm512_set1_epi8(char(conv.input_zero));
    for (int row = int(share.begin); row < share.end; ++row) {
        const uint8_t* rows[4] = {};
        for (int tap = 0; tap < conv.kernel_h; ++tap) {
            const int in_row = row * conv.stride_h - conv.pad_top + tap * conv.dilation_h;
            if (unsigned(in_row) < unsigned(x.height)) rows[tap] = pixel_of(x, in_row, 0);
        }
        for (int block = 0; block < quad_blocks(conv); ++block) {
            const QuadWeights weights(conv, conv.weight, block);
            const int c = block * QUAD_CHANNELS, left = conv.in_channels - c;
            for (int first = 0; first < y.width; first += at_once) {
                const int results = smaller(at_once, y.width - first);
                const int begin = first * conv.stride_w - conv.pad_left;
                fetch(ahead, results);
                for (int column = 0; column < (results - 1) * conv.stride_w + reach + 1; ++column) {
                    __m512i bytes[4];
                    UNROLL for (int tap = 0; tap < 4; ++tap) {
                        const bool is_there = rows[tap] && unsigned(begin + column) < unsigned(x.width);
                        bytes[tap] = zero;
                        if (is_there) bytes[tap] = (__m512i)load_wide(rows[tap] + (begin + column) * x.pixel_stride + c, left);
                    }
                    const Quad quad = interleave_rows(bytes[0], bytes[1], bytes[2], bytes[3]);
                    UNROLL for (int v = 0; v < QUAD_VECTORS; ++v) {
                        _mm512_store_si512(quads + column * QUAD_BYTES + v * 64, quad.vectors[v]);
                    }
                }
                for (int i = 0; i < results; ++i) {
                    const uint8_t* at = quads + int64_t(i) * conv.stride_w * QUAD_BYTES;
                    uint8_t* const to = pixel_of(y, row, first + i) + c;
                    if (residual)
                        multiply_quads<true>(conv, weights, at, to, pixel_of(*residual, row, first + i) + c, left);
                    else
                        multiply_quads<false>(conv, weights, at, to, nullptr, left);
                }
            }
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
#endif
