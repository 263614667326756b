// The input of an item, as the product wants it: padded, only the channels of its group, gated.
#pragma once

#include "byte_choice.h"

namespace dgconv::DGCONV_ISA {

// What a group reads of a pixel.
struct PixelReader {
    int count;
    int first;             // of a block of channels; else
    const Choice* choice;
    int32_t zero;
    int channels;          // of the whole pixel

    // Neighbours in a row.
    INLINE void read_row(const uint8_t* pixel, int64_t step, int pixels, uint8_t* to) const {
#if defined(__AVX512VBMI2__)
        if (choice && choice->is_gated && channels <= 64 && count <= 32) {  // all that does not change stays in registers
            const __mmask64 mask = choice->masks[0];
            const __mmask64 there = channels == 64 ? ~uint64_t(0) : (uint64_t(1) << channels) - 1;
            const __m512i shift = _mm512_set1_epi16(int16_t(zero)), factors = _mm512_loadu_si512(choice->factors);
            const __m512i places = _mm512_maskz_compress_epi8(mask, bytes_from_0());
            const __m512i from = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(places));
            constexpr __mmask64 EVEN = 0x5555555555555555;
            for (int p = 0; p < pixels; ++p, pixel += step, to += count) {
                const __m512i all = _mm512_maskz_loadu_epi8(there, pixel);
                const __m512i x = _mm512_sub_epi16(_mm512_maskz_permutexvar_epi8(EVEN, from, all), shift);
                const __m512i v = _mm512_add_epi16(_mm512_mulhrs_epi16(x, factors), shift);
                _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi16_epi8(v));
            }
            return;
        }
#endif
        for (int p = 0; p < pixels; ++p, pixel += step, to += count) read(pixel, to);
    }

    // Up to 64 bytes behind the last are written, too.
    INLINE void read(const uint8_t* pixel, uint8_t* to) const {
        if (!choice) {
            memcpy(to, pixel + first, count);
        } else if (choice->is_gated) {
            pick<true>(pixel, to);
        } else {
            pick<false>(pixel, to);
        }
    }

  private:
#if defined(__AVX512VBMI2__)
    static INLINE __m512i bytes_from_0() {
        alignas(64) static const uint8_t places[64] = {
            0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
            22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
            44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
        return _mm512_load_si512(places);
    }
#endif

    template <bool IS_GATED>
    INLINE void pick(const uint8_t* pixel, uint8_t* to) const {
#if defined(__AVX512VBMI2__)
        const int16_t* factors = choice->factors;
        const uint64_t* masks = choice->masks;
        const __m512i shift = _mm512_set1_epi16(int16_t(zero));
        for (int c = 0; c < channels; c += 64) {
            const __m512i all = channels - c >= 64
                                    ? _mm512_loadu_si512(pixel + c)
                                    : _mm512_maskz_loadu_epi8((uint64_t(1) << (channels - c)) - 1, pixel + c);
            const uint64_t mask = *masks++;
            const int picked = int(__builtin_popcountll(mask));
            const __m512i some = _mm512_maskz_compress_epi8(mask, all);
            if (IS_GATED) {
                gate_32(_mm512_castsi512_si256(some), factors, shift, to);
                if (picked > 32) gate_32(_mm512_extracti64x4_epi64(some, 1), factors + 32, shift, to + 32);
            } else {
                _mm512_storeu_si512(to, some);
            }
            to += picked, factors += picked;
        }
#else
        for (int i = 0; i < count; ++i) {
            const int32_t code = choice->channels[i];
            to[i] = pixel[code < 0 ? ~code : code];
        }
        if (IS_GATED) gate(to);
#endif
    }

    // byte' = zero + ((byte - zero) * factor + 2^14) / 2^15
#if defined(__AVX512VNNI__)
    static INLINE void gate_32(__m256i bytes, const int16_t* factors, __m512i shift, uint8_t* to) {
        const __m512i x = _mm512_sub_epi16(_mm512_cvtepu8_epi16(bytes), shift);
        const __m512i v = _mm512_add_epi16(_mm512_mulhrs_epi16(x, _mm512_loadu_si512(factors)), shift);
        _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi16_epi8(v));
    }
#endif

    INLINE void gate(uint8_t* bytes) const {
#if defined(__AVX512VNNI__)
        const __m512i shift = _mm512_set1_epi16(int16_t(zero));
        for (int i = 0; i < count; i += 32) {
            gate_32(_mm256_loadu_si256((const __m256i*)(bytes + i)), choice->factors + i, shift, bytes + i);
        }
#else
        for (int i = 0; i < count; ++i) {
            bytes[i] = uint8_t(zero + (((bytes[i] - zero) * choice->factors[i] + (1 << 14)) >> 15));
        }
#endif
    }
};

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

// Input rows with their padding, one behind the other: [row][column][count].
inline Gathered gather_rows(const ByteConv& conv, const PixelReader& reader, const Pixels& x, int first_row, int rows,
                            int out_w, uint8_t* to, Run* runs) {
    const BytePlan plan(conv);
    const int in_rows = (rows - 1) * conv.stride_h + (conv.kernel_h - 1) * conv.dilation_h + 1;
    const int columns = (out_w - 1) * conv.stride_w + (conv.kernel_w - 1) * conv.dilation_w + 1;
    const int64_t row_bytes = int64_t(columns) * reader.count;
    for (int r = 0; r < in_rows; ++r) {
        const int in_row = first_row * conv.stride_h - conv.pad_top + r;
        uint8_t* row = to + r * row_bytes;
        if (!is_inside(in_row, x.height)) {
            memset(row, conv.input_zero, row_bytes);
            continue;
        }
        const int left = smaller(columns, conv.pad_left), end = larger(left, smaller(columns, x.width + conv.pad_left));
        memset(row, conv.input_zero, int64_t(left) * reader.count);
        const uint8_t* pixel = pixel_of(x, in_row, left - conv.pad_left);
        uint8_t* at = row + int64_t(left) * reader.count;
        const bool is_whole = !reader.choice && reader.count == x.pixel_stride;
        if (is_whole) {
            memcpy(at, pixel, int64_t(end - left) * reader.count);
        } else {
            reader.read_row(pixel, x.pixel_stride, end - left, at);
        }
        memset(row + int64_t(end) * reader.count, conv.input_zero, int64_t(columns - end) * reader.count);
    }
    for (int run = 0; run < plan.runs; ++run) {
        const int tap = run * plan.run_taps, ky = tap / conv.kernel_w, kx = tap % conv.kernel_w;
        runs[run].offset = ky * conv.dilation_h * row_bytes + int64_t(kx) * conv.dilation_w * reader.count;
        runs[run].groups = divide_up(plan.run_taps * reader.count, GROUP);
    }
    return {to, int64_t(conv.stride_w) * reader.count, conv.stride_h * row_bytes, rows, out_w};
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
        runs[run].groups = divide_up(plan.run_taps * reader.count, GROUP);
    }
    return {to, window, 0, 1, rows * out_w};
}

}  // namespace dgconv::DGCONV_ISA
