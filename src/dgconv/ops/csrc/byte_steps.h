// Steps of bytes that are no convolutions: from and to floats, sums, pooling, rescaling.
#pragma once

#include "byte_plan.h"

namespace dgconv::DGCONV_ISA {

// Adds up the channels of `count` pixels.
INLINE void add_pixels(const uint8_t* x, int64_t step, int64_t count, int channels, int32_t* sums) {
    for (int c = 0; c < channels; c += LANES) {
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
    for (int c = 0; c < conv.in_channels; ++c) {
        const int place = conv.positions ? conv.positions[c] : c;
        int64_t sum = -pixels * conv.input_zero;
        for (int part = 0; part < parts; ++part) sum += sums[int64_t(part) * conv.in_channels + place];
        means[c] = float(sum) * scale;
    }
}

inline void mean_row(Pixels x, const int32_t* order, float scale, int32_t zero, float* row, int rank, int threads) {
    constexpr int BLOCK = WIDE;
    const int64_t pixels = int64_t(x.height) * x.width;
    const Share share = share_of(divide_up(x.channels, BLOCK), rank, threads);
    for (int64_t block = share.begin; block < share.end; ++block) {
        const int first = int(block) * BLOCK, count = smaller(BLOCK, x.channels - first);
        int32_t sums[BLOCK];
        add_pixels(x.data + first, x.pixel_stride, pixels, count, sums);
        for (int c = 0; c < count; ++c) {
            const float mean = float(int64_t(sums[c]) - pixels * zero) * (scale / float(pixels));
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
        for (int c = 0; c < y.channels; ++c) {
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
    const Share share = share_of(x.channels, rank, threads);
    for (int64_t c = share.begin; c < share.end; ++c) {
        const uint8_t* from = x.data + (positions ? positions[c] : c);
        float* to = planes + c * pixels;
        for (int64_t p = 0; p < pixels; ++p) to[p] = float(from[p * x.pixel_stride] - zero) * scale;
    }
}

// Vectors of channels that lie together.
template <int VECTORS>
INLINE void rescale_block(const uint8_t* x, const float* scale, const float* shift, const uint8_t* other, float other_scale,
                          const ToByte& to, uint8_t* y) {
    IntVec bytes[VECTORS];
    UNROLL for (int i = 0; i < VECTORS; ++i) {
        const int c = i * LANES;
        Vec v = to_float(load_bytes(x + c, LANES)) * load(scale + c) + load(shift + c);
        if (other) v += to_float(load_bytes(other + c, LANES)) * other_scale;
        bytes[i] = to_byte(v, to);
    }
    store_bytes(y, bytes);
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
