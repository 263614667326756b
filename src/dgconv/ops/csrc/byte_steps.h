// Steps of bytes that are no convolutions: from and to floats, sums, pooling, rescaling.
#pragma once

#include "byte_plan.h"

namespace dgconv::DGCONV_ISA {

#if defined(__AVX512VNNI__)
// Adds up 64 channels of some pixels, few enough for sums of 16 bits.
INLINE void add_wide_pixels(const uint8_t* x, int64_t step, int64_t count, int32_t* sums) {
    __m512i even{}, odd{};
    for (int64_t p = 0; p < count; ++p, x += step) {
        const __m512i bytes = _mm512_loadu_si512(x);
        even = _mm512_add_epi16(even, _mm512_and_si512(bytes, _mm512_set1_epi16(0xff)));
        odd = _mm512_add_epi16(odd, _mm512_srli_epi16(bytes, 8));
    }
    const __m512i first = _mm512_unpacklo_epi16(even, odd), second = _mm512_unpackhi_epi16(even, odd);
    const auto add = [&](int lane, __m128i low, __m128i high) {
        const __m512i words = _mm512_cvtepu16_epi32(_mm256_set_m128i(high, low));
        int32_t* const to = sums + 16 * lane;
        _mm512_storeu_si512(to, _mm512_add_epi32(_mm512_loadu_si512(to), words));
    };
    add(0, _mm512_castsi512_si128(first), _mm512_castsi512_si128(second));
    add(1, _mm512_extracti32x4_epi32(first, 1), _mm512_extracti32x4_epi32(second, 1));
    add(2, _mm512_extracti32x4_epi32(first, 2), _mm512_extracti32x4_epi32(second, 2));
    add(3, _mm512_extracti32x4_epi32(first, 3), _mm512_extracti32x4_epi32(second, 3));
}
#endif

// Adds up the channels of `count` pixels.
INLINE void add_pixels(const uint8_t* x, int64_t step, int64_t count, int channels, int32_t* sums) {
    int c = 0;
#if defined(__AVX512VNNI__)
    constexpr int64_t AT_ONCE = 256;  // pixels
    for (; c + 64 <= channels; c += 64) {
        memset(sums + c, 0, 64 * sizeof *sums);
        for (int64_t p = 0; p < count; p += AT_ONCE)
            add_wide_pixels(x + p * step + c, step, count - p < AT_ONCE ? count - p : AT_ONCE, sums + c);
    }
#endif
    for (; c < channels; c += LANES) {
        const int lanes = smaller(LANES, channels - c);
        IntVec some[4] = {};
        int64_t p = 0;
        for (; p + 4 <= count; p += 4)
            UNROLL for (int k = 0; k < 4; ++k) some[k] += load_bytes(x + (p + k) * step + c, lanes);
        for (; p < count; ++p) some[0] += load_bytes(x + p * step + c, lanes);
        const IntVec all = (some[0] + some[1]) + (some[2] + some[3]);
        for (int lane = 0; lane < lanes; ++lane) sums[c + lane] = all[lane];
    }
}

inline void sum_pixels(Pixels x, int32_t parts, int32_t* sums, int rank, int threads) {
    const Share share = share_of(parts, rank, threads);
    for (int64_t part = share.begin; part < share.end; ++part) {
        const Share rows = share_of(x.height, int(part), parts);
        add_pixels(pixel_of(x, rows.begin, 0), x.pixel_stride, (rows.end - rows.begin) * x.width, x.channels,
                   sums + part * x.channels);
    }
}

inline void means(const ByteConv& conv, int32_t parts, const int32_t* sums, int64_t pixels, float* means) {
    const float scale = conv.input_scale / float(pixels);
    const auto mean = [&](int place) {
        int64_t sum = -pixels * conv.input_zero;
        for (int part = 0; part < parts; ++part) sum += sums[int64_t(part) * conv.in_channels + place];
        return float(sum) * scale;
    };
    if (conv.positions) {
        for (int c = 0; c < conv.in_channels; ++c) means[c] = mean(conv.positions[c]);
    } else {
        for (int c = 0; c < conv.in_channels; ++c) means[c] = mean(c);
    }
}

inline void mean_row(Pixels x, const int32_t* order, float scale, int32_t zero, float* row, int rank, int threads) {
    constexpr int BLOCK = WIDE;
    const int64_t pixels = int64_t(x.height) * x.width;
    const Share share = share_of(divide_up(x.channels, BLOCK), rank, threads);
    for (int64_t block = share.begin; block < share.end; ++block) {
        const int first = int(block) * BLOCK, count = smaller(BLOCK, x.channels - first);
        int32_t sums[BLOCK];
        int64_t totals[BLOCK] = {};
        for (int64_t p = 0; p < pixels; p += MOST_SUMMED_BYTES) {
            const int64_t some = pixels - p < MOST_SUMMED_BYTES ? pixels - p : MOST_SUMMED_BYTES;
            add_pixels(x.data + p * x.pixel_stride + first, x.pixel_stride, some, count, sums);
            for (int c = 0; c < count; ++c) totals[c] += sums[c];
        }
        for (int c = 0; c < count; ++c) {
            const float mean = float(totals[c] - pixels * zero) * (scale / float(pixels));
            row[order ? order[first + c] : first + c] = mean;
        }
    }
}

#if defined(__AVX512VNNI__)
// Pixels of few channels, a vector of them at a time, as long as what is written too much belongs to pixels that follow.
INLINE int64_t quantize_few(const float* planes, int64_t plane, Pixels y, const int32_t* positions, float scale, ToByte to,
                            int64_t first, int64_t end) {
    const int channels = y.channels;
    alignas(16) uint8_t places[16];  // of four pixels, each four bytes
    for (int i = 0; i < 16; ++i) places[i] = i < 4 * channels ? uint8_t(i / channels * 4 + i % channels) : 0x80;
    const __m512i narrow = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)places));
    for (; first + 2 * LANES <= end; first += LANES) {
        IntVec pixels{};
        for (int c = 0; c < channels; ++c) {
            const IntVec bytes = to_byte(load(planes + c * plane + first) * scale, to);
            pixels |= bytes << (8 * (positions ? positions[c] : c));
        }
        const __m512i packed = _mm512_shuffle_epi8((__m512i)pixels, narrow);
        uint8_t* const at = y.data + first * channels;
        _mm_storeu_si128((__m128i*)at, _mm512_castsi512_si128(packed));
        _mm_storeu_si128((__m128i*)(at + 4 * channels), _mm512_extracti32x4_epi32(packed, 1));
        _mm_storeu_si128((__m128i*)(at + 8 * channels), _mm512_extracti32x4_epi32(packed, 2));
        _mm_storeu_si128((__m128i*)(at + 12 * channels), _mm512_extracti32x4_epi32(packed, 3));
    }
    return first;
}
#endif

#if defined(__AVX2__)
constexpr int SQUARE = 16;  // channels and pixels that change places together

// rows[r] byte c becomes rows[c] byte r.
INLINE void transpose_square(__m128i (&rows)[SQUARE]) {
    __m128i other[SQUARE];
    UNROLL for (int i = 0; i < 8; ++i) {
        other[2 * i] = _mm_unpacklo_epi8(rows[i], rows[i + 8]);
        other[2 * i + 1] = _mm_unpackhi_epi8(rows[i], rows[i + 8]);
    }
    UNROLL for (int i = 0; i < 8; ++i) {
        rows[2 * i] = _mm_unpacklo_epi8(other[i], other[i + 8]);
        rows[2 * i + 1] = _mm_unpackhi_epi8(other[i], other[i + 8]);
    }
    UNROLL for (int i = 0; i < 8; ++i) {
        other[2 * i] = _mm_unpacklo_epi8(rows[i], rows[i + 8]);
        other[2 * i + 1] = _mm_unpackhi_epi8(rows[i], rows[i + 8]);
    }
    UNROLL for (int i = 0; i < 8; ++i) {
        rows[2 * i] = _mm_unpacklo_epi8(other[i], other[i + 8]);
        rows[2 * i + 1] = _mm_unpackhi_epi8(other[i], other[i + 8]);
    }
}

// 16 pixels of 16 planes, which become 16 bytes of 16 pixels.
INLINE void quantize_square(const float* planes, int64_t plane, uint8_t* y, int64_t pixel, float scale, const ToByte& to) {
    alignas(16) uint8_t bytes[SQUARE][SQUARE];
    UNROLL for (int c = 0; c < SQUARE; ++c) {
        UNROLL for (int p = 0; p < SQUARE; p += LANES)
            store_bytes(bytes[c] + p, to_byte(load(planes + c * plane + p) * scale, to), LANES);
    }
    __m128i rows[SQUARE];
    UNROLL for (int c = 0; c < SQUARE; ++c) rows[c] = _mm_load_si128((const __m128i*)bytes[c]);
    transpose_square(rows);
    UNROLL for (int p = 0; p < SQUARE; ++p) _mm_storeu_si128((__m128i*)(y + p * pixel), rows[p]);
}

INLINE void dequantize_square(const uint8_t* x, int64_t pixel, float* planes, int64_t plane, float scale, int32_t zero) {
    __m128i rows[SQUARE];
    UNROLL for (int p = 0; p < SQUARE; ++p) rows[p] = _mm_loadu_si128((const __m128i*)(x + p * pixel));
    transpose_square(rows);
    alignas(16) uint8_t bytes[SQUARE];
    UNROLL for (int c = 0; c < SQUARE; ++c) {
        _mm_store_si128((__m128i*)bytes, rows[c]);
        UNROLL for (int p = 0; p < SQUARE; p += LANES) {
            const Vec v = to_float(load_bytes(bytes + p, LANES) - zero) * scale;
            memcpy(planes + c * plane + p, &v, sizeof v);
        }
    }
}
#endif

// Some pixels of one plane at a time: their bytes are a column.
inline void quantize(const float* planes, Pixels y, const int32_t* positions, float scale, ToByte to, int rank,
                     int threads) {
    const int64_t plane = int64_t(y.height) * y.width;
    const Share rows = share_of(y.height, rank, threads);
    int64_t first = rows.begin * y.width;
    const int64_t end = rows.end * y.width;
    constexpr int BLOCK = 8 * LANES;
#if defined(__AVX512VNNI__)
    if (y.channels <= 4 && y.pixel_stride == y.channels)
        first = quantize_few(planes, plane, y, positions, scale, to, first, end);
#endif
    for (int64_t p = first; p < end; p += BLOCK) {
        const int count = end - p < BLOCK ? int(end - p) : BLOCK;
        int c = 0;
#if defined(__AVX2__)
        for (; !positions && count == BLOCK && c + SQUARE <= y.channels; c += SQUARE)
            for (int64_t i = p; i < p + BLOCK; i += SQUARE)
                quantize_square(planes + c * plane + i, plane, y.data + i * y.pixel_stride + c, y.pixel_stride, scale, to);
#endif
        for (; c < y.channels; ++c) {
            const float* from = planes + c * plane + p;
            uint8_t bytes[BLOCK];
            int i = 0;
            for (; i + LANES <= count; i += LANES) store_bytes(bytes + i, to_byte(load(from + i) * scale, to), LANES);
            for (; i < count; ++i) bytes[i] = uint8_t(to_byte(from[i] * scale, to));
            uint8_t* pixel = y.data + p * y.pixel_stride + (positions ? positions[c] : c);
            for (i = 0; i < count; ++i) pixel[i * y.pixel_stride] = bytes[i];
        }
    }
}

inline void dequantize(Pixels x, float* planes, const int32_t* positions, float scale, int32_t zero, int rank,
                       int threads) {
    const int64_t pixels = int64_t(x.height) * x.width;
    const auto one = [&](int64_t c, int64_t first, int64_t end) {
        const uint8_t* from = x.data + (positions ? positions[c] : c);
        for (int64_t p = first; p < end; ++p) planes[c * pixels + p] = float(from[p * x.pixel_stride] - zero) * scale;
    };
#if defined(__AVX2__)
    if (!positions) {
        const int64_t squares = x.channels / SQUARE, whole = pixels / SQUARE * SQUARE;
        const Share share = share_of(squares + 1, rank, threads);  // the last has what is left of the channels
        for (int64_t square = share.begin; square < share.end; ++square) {
            const int64_t first = square * SQUARE, end = square < squares ? first + SQUARE : x.channels;
            for (int64_t p = 0; square < squares && p < whole; p += SQUARE)
                dequantize_square(x.data + p * x.pixel_stride + first, x.pixel_stride, planes + first * pixels + p, pixels,
                                  scale, zero);
            for (int64_t c = first; c < end; ++c) one(c, square < squares ? whole : 0, pixels);
        }
        return;
    }
#endif
    const Share share = share_of(x.channels, rank, threads);
    for (int64_t c = share.begin; c < share.end; ++c) one(c, 0, pixels);
}

// Vectors of channels that lie together.
template <int VECTORS>
INLINE void rescale_block(const uint8_t* x, const float* scale, const float* shift, const uint8_t* other, float other_scale,
                          const ToByte& to, uint8_t* y) {
    Vec v[VECTORS];
    UNROLL for (int i = 0; i < VECTORS; ++i) {
        const int c = i * LANES;
        v[i] = to_float(load_bytes(x + c, LANES)) * load(scale + c) + load(shift + c);
        if (other) v[i] += to_float(load_bytes(other + c, LANES)) * other_scale;
    }
    store_as_bytes(y, v, to);
}

inline void rescale(Pixels x, const int32_t* from, const float* scale, const float* shift, const Pixels* other,
                    float other_scale, Pixels y, ToByte to, int rank, int threads) {
    const Share rows = share_of(y.height, rank, threads);
    for (int64_t p = rows.begin * y.width; p < rows.end * y.width; ++p) {
        const uint8_t* in = x.data + p * x.pixel_stride;
        const uint8_t* add = other ? other->data + p * other->pixel_stride : nullptr;
        uint8_t* out = y.data + p * y.pixel_stride;
        int c = 0;
        for (; !from && c + WIDE <= y.channels; c += WIDE) {
            rescale_block<WIDE / LANES>(in + c, scale + c, shift + c, add ? add + c : nullptr, other_scale, to, out + c);
        }
        for (; c < y.channels; c += LANES) {
            const int lanes = smaller(LANES, y.channels - c);
            IntVec bytes;
            if (from) {
                bytes = IntVec{};
                for (int lane = 0; lane < lanes; ++lane) bytes[lane] = in[from[c + lane]];
            } else {
                bytes = load_bytes(in + c, lanes);
            }
            Vec v = to_float(bytes) * load(scale + c) + load(shift + c);
            if (add) v += to_float(load_bytes(add + c, lanes)) * other_scale;
            store_bytes(out + c, to_byte(v, to), lanes);
        }
    }
}

inline void look_up(const uint8_t* table, Pixels x, Pixels y, int rank, int threads) {
    const Share rows = share_of(y.height, rank, threads);
    const bool is_dense = x.pixel_stride == x.channels && y.pixel_stride == y.channels;
    const int64_t pixels = (rows.end - rows.begin) * y.width, runs = is_dense ? pixels > 0 : pixels;
    const int64_t count = is_dense ? pixels * y.channels : y.channels, first = rows.begin * y.width;
    for (int64_t run = first; run < first + runs; ++run) {
        const uint8_t* const from = x.data + run * x.pixel_stride;
        uint8_t* const to = y.data + run * y.pixel_stride;
        int64_t i = 0;
#if defined(__AVX512VBMI__)
        __m512i quarters[4];
        for (int quarter = 0; quarter < 4; ++quarter) quarters[quarter] = _mm512_loadu_si512(table + 64 * quarter);
        for (; i < count; i += 64) {
            const __mmask64 there = count - i < 64 ? (uint64_t{1} << (count - i)) - 1 : ~uint64_t{0};
            const __m512i bytes = _mm512_maskz_loadu_epi8(there, from + i);
            const __m512i low = _mm512_permutex2var_epi8(quarters[0], bytes, quarters[1]);
            const __m512i high = _mm512_permutex2var_epi8(quarters[2], bytes, quarters[3]);
            _mm512_mask_storeu_epi8(to + i, there, _mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes), low, high));
        }
#endif
        for (; i < count; ++i) to[i] = table[from[i]];
    }
}

// The greatest byte of each window, or their rounded mean, in which the padding counts as zero.
inline void pool(int32_t is_max, int32_t kernel_h, int32_t kernel_w, int32_t stride_h, int32_t stride_w,
                 int32_t pad_top, int32_t pad_left, int32_t zero, Pixels x, Pixels y, int rank, int threads) {
    const Share rows = share_of(y.height, rank, threads);
    const float part = 1.0f / float(kernel_h * kernel_w);
    const ToByte to = {0.0f, 255.0f, 0};
    for (int row = int(rows.begin); row < rows.end; ++row) {
        const int top = row * stride_h - pad_top, first_row = larger(top, 0), end_row = smaller(top + kernel_h, x.height);
        for (int column = 0; column < y.width; ++column) {
            const int left = column * stride_w - pad_left;
            const int first = larger(left, 0), end = smaller(left + kernel_w, x.width);
            const int outside = kernel_h * kernel_w - (end_row - first_row) * (end - first);
            uint8_t* const out = pixel_of(y, row, column);
            const uint8_t* const in = pixel_of(x, first_row, first);
            const int64_t row_step = int64_t(x.width) * x.pixel_stride;
            for (int c = 0; is_max && c < y.channels; c += WIDE) {
                const int count = y.channels - c;
                WideVec result{};
                for (int r = 0; r < end_row - first_row; ++r) {
                    for (int k = 0; k < end - first; ++k) {
                        const WideVec some = load_wide(in + r * row_step + k * x.pixel_stride + c, count);
                        result = some > result ? some : result;
                    }
                }
                store_wide(out + c, result, count);
            }
            for (int c = 0; !is_max && c < y.channels; c += LANES) {
                const int lanes = smaller(LANES, y.channels - c);
                IntVec sum = IntVec{} + outside * zero;
                for (int r = 0; r < end_row - first_row; ++r)
                    for (int k = 0; k < end - first; ++k)
                        sum += load_bytes(in + r * row_step + k * x.pixel_stride + c, lanes);
                store_bytes(out + c, to_byte(to_float(sum) * part, to), lanes);
            }
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
