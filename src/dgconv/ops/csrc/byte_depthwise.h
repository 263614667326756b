// Convolution of bytes in which every channel has a kernel of its own: channels in the lanes.
//
// Two taps at a time: bytes are widened to 16 bits, those of two taps lie side by side, and products are added in pairs.
#pragma once

#include "byte_quads.h"

namespace dgconv::DGCONV_ISA {

#if defined(__AVX512VNNI__) || defined(__AVX2__)
#define DGCONV_PAIRS 1
#if defined(__AVX512VNNI__)
constexpr int CHANNELS = 32;  // at once
typedef __m512i Words;
INLINE Words load_words(const uint8_t* from, int count) {
    const __mmask32 there = count >= 32 ? ~uint32_t(0) : (uint32_t(1) << count) - 1;
    return _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(there, from));
}
INLINE Words words_of(int16_t x) { return _mm512_set1_epi16(x); }
INLINE Words load_pairs(const int16_t* from) { return _mm512_loadu_si512(from); }
INLINE Words subtract(Words a, Words b) { return _mm512_sub_epi16(a, b); }
INLINE Words low_pairs(Words a, Words b) { return _mm512_unpacklo_epi16(a, b); }
INLINE Words high_pairs(Words a, Words b) { return _mm512_unpackhi_epi16(a, b); }
INLINE IntVec add_products(IntVec sum, Words x, Words w) { return (IntVec)_mm512_dpwssd_epi32((__m512i)sum, x, w); }
INLINE void store_both(uint8_t* to, IntVec low, IntVec high, int count) {
    const __mmask32 there = count >= 32 ? ~uint32_t(0) : (uint32_t(1) << count) - 1;
    const __m512i words = _mm512_packs_epi32((__m512i)low, (__m512i)high);
    _mm256_mask_storeu_epi8(to, there, _mm512_cvtepi16_epi8(words));
}
#else
constexpr int CHANNELS = 16;
typedef __m256i Words;
INLINE Words load_words(const uint8_t* from, int count) {
    __m128i bytes = _mm_setzero_si128();
    memcpy(&bytes, from, count < 16 ? count : 16);
    return _mm256_cvtepu8_epi16(bytes);
}
INLINE Words words_of(int16_t x) { return _mm256_set1_epi16(x); }
INLINE Words load_pairs(const int16_t* from) { return _mm256_loadu_si256((const __m256i*)from); }
INLINE Words subtract(Words a, Words b) { return _mm256_sub_epi16(a, b); }
INLINE Words low_pairs(Words a, Words b) { return _mm256_unpacklo_epi16(a, b); }
INLINE Words high_pairs(Words a, Words b) { return _mm256_unpackhi_epi16(a, b); }
INLINE IntVec add_products(IntVec sum, Words x, Words w) { return sum + (IntVec)_mm256_madd_epi16(x, w); }
INLINE void store_both(uint8_t* to, IntVec low, IntVec high, int count) {
    const __m256i words = _mm256_packs_epi32((__m256i)low, (__m256i)high);
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    memcpy(to, &bytes, count < 16 ? count : 16);
}
#endif
// Lane i of the low half stands for this channel of CHANNELS, and of the high half for 4 more.
constexpr int channel_of_lane(int lane) { return lane / 4 * 8 + lane % 4; }
#endif

INLINE int channel_blocks(const ByteConv& conv) {
#if defined(DGCONV_PAIRS)
    return divide_up(conv.in_channels, CHANNELS);
#else
    return divide_up(conv.in_channels, LANES);
#endif
}

INLINE int pairs_of(const ByteConv& conv) { return divide_up(conv.kernel_h * conv.kernel_w, 2); }

// [block][pair of taps][half][lane][tap of the pair]; then multipliers and biases, [block][half][lane]. Without pairs
// [block][tap][lane].
inline int64_t depthwise_packed_bytes(const ByteConv& conv) {
#if defined(__AVX512VNNI__)
    if (makes_quads(conv)) return quad_blocks(conv) * QuadWeights::bytes(conv);
#endif
#if defined(DGCONV_PAIRS)
    return int64_t(channel_blocks(conv)) * CHANNELS * (pairs_of(conv) * 2 * int64_t(sizeof(int16_t)) + 8);
#else
    return int64_t(channel_blocks(conv)) * LANES * conv.kernel_h * conv.kernel_w * int64_t(sizeof(int32_t));
#endif
}

#if defined(DGCONV_PAIRS)
struct DepthwiseWeights {
    int16_t* pairs;  // of a block
    float *multiplier, *bias;

    DepthwiseWeights(const ByteConv& conv, const void* packed, int block) {
        const int blocks = channel_blocks(conv);
        int16_t* const first = static_cast<int16_t*>(const_cast<void*>(packed));
        float* const numbers = reinterpret_cast<float*>(first + int64_t(blocks) * CHANNELS * pairs_of(conv) * 2);
        pairs = first + int64_t(block) * CHANNELS * pairs_of(conv) * 2;
        multiplier = numbers + int64_t(block) * CHANNELS;
        bias = numbers + (int64_t(blocks) + block) * CHANNELS;
    }
};
#endif

inline void pack_depthwise(const ByteConv& conv, const int8_t* weight, void* packed) {
    const int taps = conv.kernel_h * conv.kernel_w;
#if defined(__AVX512VNNI__)
    if (makes_quads(conv)) return pack_quads(conv, weight, packed);
#endif
#if defined(DGCONV_PAIRS)
    for (int block = 0; block < channel_blocks(conv); ++block) {
        const DepthwiseWeights to(conv, packed, block);
        for (int place = 0; place < CHANNELS; ++place) {
            const int half = place / LANES, lane = place % LANES;
            const int c = block * CHANNELS + channel_of_lane(lane) + 4 * half;
            if (c >= conv.in_channels) continue;
            to.multiplier[place] = conv.multiplier[c];
            to.bias[place] = conv.bias[c];
            for (int tap = 0; tap < taps; ++tap)
                to.pairs[(int64_t(tap / 2) * CHANNELS + place) * 2 + tap % 2] = weight[int64_t(c) * taps + tap];
        }
    }
#else
    int32_t* const to = static_cast<int32_t*>(packed);
    for (int c = 0; c < conv.in_channels; ++c)
        for (int tap = 0; tap < taps; ++tap)
            to[(int64_t(c / LANES) * taps + tap) * LANES + c % LANES] = weight[int64_t(c) * taps + tap];
#endif
}

constexpr int MOST_DEPTHWISE_TAPS = 121;

// PIXELS neighbours, all of whose taps are `step` further on than those of the one before; null: in the padding.
template <int PIXELS>
INLINE void depthwise_pixels(const ByteConv& conv, const uint8_t* const* taps, int64_t step, int block, int c, uint8_t* y,
                             int64_t y_step, const uint8_t* residual, int64_t residual_step) {
    const int count = conv.kernel_h * conv.kernel_w, left = conv.in_channels - c;
#if defined(DGCONV_PAIRS)
    const DepthwiseWeights weights(conv, conv.weight, block);
    const Words zero = words_of(int16_t(conv.input_zero));
    IntVec low[PIXELS] = {}, high[PIXELS] = {};
    for (int tap = 0; tap < count; tap += 2) {
        const int16_t* pair = weights.pairs + int64_t(tap / 2) * CHANNELS * 2;
        const Words low_weights = load_pairs(pair), high_weights = load_pairs(pair + CHANNELS);
        UNROLL for (int p = 0; p < PIXELS; ++p) {
            const Words a = taps[tap] ? subtract(load_words(taps[tap] + p * step + c, left), zero) : words_of(0);
            const bool has_second = tap + 1 < count && taps[tap + 1];
            const Words b = has_second ? subtract(load_words(taps[tap + 1] + p * step + c, left), zero) : words_of(0);
            low[p] = add_products(low[p], low_pairs(a, b), low_weights);
            high[p] = add_products(high[p], high_pairs(a, b), high_weights);
        }
    }
    UNROLL for (int p = 0; p < PIXELS; ++p) {
        Vec v = to_float(low[p]) * load(weights.multiplier) + load(weights.bias);
        Vec w = to_float(high[p]) * load(weights.multiplier + LANES) + load(weights.bias + LANES);
        if (residual) {
            const Words added = load_words(residual + p * residual_step, left), none = words_of(0);
            v += to_float((IntVec)low_pairs(added, none)) * conv.residual_scale;
            w += to_float((IntVec)high_pairs(added, none)) * conv.residual_scale;
        }
        store_both(y + p * y_step, to_byte(v, conv.result), to_byte(w, conv.result), left);
    }
#else
    const int lanes = smaller(LANES, left);
    const int32_t* weights = static_cast<const int32_t*>(conv.weight) + int64_t(block) * count * LANES;
    for (int p = 0; p < PIXELS; ++p) {
        IntVec sum{};
        for (int tap = 0; tap < count; ++tap) {
            if (!taps[tap]) continue;
            sum += (load_bytes(taps[tap] + p * step + c, lanes) - conv.input_zero) * load(weights + tap * LANES);
        }
        Vec v = to_float(sum) * load(conv.multiplier + c) + load(conv.bias + c);
        if (residual) v += to_float(load_bytes(residual + p * residual_step, lanes)) * conv.residual_scale;
        store_bytes(y + p * y_step, to_byte(v, conv.result), lanes);
    }
#endif
}

// The columns from which on, and up to which, all taps of a row lie inside the image.
INLINE Share inner_columns(const ByteConv& conv, const Pixels& x, int out_w) {
    const int reach = (conv.kernel_w - 1) * conv.dilation_w;
    const int begin = smaller(out_w, divide_up(conv.pad_left, conv.stride_w));
    const int last = x.width - 1 - reach + conv.pad_left;  // where the last window inside begins, in padded columns
    const int end = last < 0 ? 0 : smaller(out_w, last / conv.stride_w + 1);
    return {begin, larger(begin, end)};
}

inline void depthwise(const ByteConv& conv, Pixels x, Pixels y, const Pixels* residual, Ahead* ahead, int rank,
                      int threads) {
#if defined(__AVX512VNNI__)
    if (makes_quads(conv)) return convolve_quads(conv, x, y, residual, ahead, rank, threads);
#endif
    constexpr int AT_ONCE = 4;
    const Share share = share_of(y.height, rank, threads), inner = inner_columns(conv, x, y.width);
    const int count = conv.kernel_h * conv.kernel_w, blocks = channel_blocks(conv);
    const int64_t step = conv.stride_w * x.pixel_stride;
    const uint8_t* taps[MOST_DEPTHWISE_TAPS];
    for (int row = int(share.begin); row < share.end; ++row) {
        for (int column = 0; column < y.width;) {
            const bool is_inner = column >= inner.begin && column + AT_ONCE <= inner.end;
            for (int tap = 0; tap < count; ++tap) {
                const int in_row = row * conv.stride_h - conv.pad_top + tap / conv.kernel_w * conv.dilation_h;
                const int in_column = column * conv.stride_w - conv.pad_left + tap % conv.kernel_w * conv.dilation_w;
                const bool is_there = unsigned(in_row) < unsigned(x.height) && unsigned(in_column) < unsigned(x.width);
                taps[tap] = is_there ? pixel_of(x, in_row, in_column) : nullptr;
            }
            for (int block = 0; block < blocks; ++block) {
#if defined(DGCONV_PAIRS)
                const int c = block * CHANNELS;
#else
                const int c = block * LANES;
#endif
                uint8_t* const to = pixel_of(y, row, column) + c;
                const uint8_t* add = residual ? pixel_of(*residual, row, column) + c : nullptr;
                const int64_t add_step = residual ? residual->pixel_stride : 0;
                fetch(ahead, is_inner ? AT_ONCE : 1);
                if (is_inner)
                    depthwise_pixels<AT_ONCE>(conv, taps, step, block, c, to, y.pixel_stride, add, add_step);
                else
                    depthwise_pixels<1>(conv, taps, step, block, c, to, y.pixel_stride, add, add_step);
            }
            column += is_inner ? AT_ONCE : 1;
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
