// The bytes of pixels that a group reads, one behind the other, and gated: byte' = zero + ((byte - zero) * factor + 2^14) / 2^15.
#pragma once

#include "byte_choice.h"

namespace dgconv::DGCONV_ISA {

#if defined(__AVX512VNNI__) || defined(__AVX2__)
#define DGCONV_GATES 1
#if defined(__AVX512VNNI__)
constexpr int GATED_AT_ONCE = 32;
typedef __m512i Factors;
INLINE Factors load_factors(const int16_t* from) { return _mm512_loadu_si512(from); }
INLINE Factors factors_of(int16_t x) { return _mm512_set1_epi16(x); }
INLINE __m256i gated(__m256i bytes, Factors factors, Factors zero) {
    const __m512i x = _mm512_sub_epi16(_mm512_cvtepu8_epi16(bytes), zero);
    return _mm512_cvtepi16_epi8(_mm512_add_epi16(_mm512_mulhrs_epi16(x, factors), zero));
}
INLINE void gate_some(const uint8_t* from, Factors factors, Factors zero, uint8_t* to) {
    _mm256_storeu_si256((__m256i*)to, gated(_mm256_loadu_si256((const __m256i*)from), factors, zero));
}
#else
constexpr int GATED_AT_ONCE = 16;
typedef __m256i Factors;
INLINE Factors load_factors(const int16_t* from) { return _mm256_loadu_si256((const __m256i*)from); }
INLINE Factors factors_of(int16_t x) { return _mm256_set1_epi16(x); }
INLINE void gate_some(const uint8_t* from, Factors factors, Factors zero, uint8_t* to) {
    const __m256i x = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)from)), zero);
    const __m256i v = _mm256_add_epi16(_mm256_mulhrs_epi16(x, factors), zero);
    _mm_storeu_si128((__m128i*)to, _mm_packus_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
}
#endif
#endif

// What a group reads of a pixel.
struct PixelReader {
    int count;
    int first;             // of a block of channels; else
    const Choice* choice;
    int32_t zero;
    int channels;          // of the whole pixel

    // Neighbours in a row. Up to 64 bytes behind the last are written, too.
    INLINE void read_row(const uint8_t* pixel, int64_t step, int pixels, uint8_t* to) const {
        if (!choice) {
            for (int p = 0; p < pixels; ++p, pixel += step, to += count) memcpy(to, pixel + first, count);
        } else if (choice->is_gated) {
            read_gated_row(pixel, step, pixels, to);
        } else {
            pick_row(pixel, step, pixels, to);
        }
    }
    INLINE void read(const uint8_t* pixel, uint8_t* to) const { read_row(pixel, 0, 1, to); }

  private:
#if defined(__AVX512VBMI2__)
    INLINE void read_gated_row(const uint8_t* pixel, int64_t step, int pixels, uint8_t* to) const {
        const __m512i shift = factors_of(int16_t(zero));
        if (channels > 128 || count > 64) {
            for (int p = 0; p < pixels; ++p, pixel += step, to += count) compress<true>(pixel, shift, to);
        } else if (channels > 64) {
            count > 32 ? gather<2, 2>(pixel, step, pixels, to) : gather<2, 1>(pixel, step, pixels, to);
        } else {
            count > 32 ? gather<1, 2>(pixel, step, pixels, to) : gather<1, 1>(pixel, step, pixels, to);
        }
    }

    // Of so many times 64 channels, so many times 32: all that does not change stays in registers.
    template <int SOURCES, int PARTS>
    INLINE void gather(const uint8_t* pixel, int64_t step, int pixels, uint8_t* to) const {
        const __m512i shift = factors_of(int16_t(zero));
        const int last = channels - (SOURCES - 1) * 64;  // channels of the last source
        const __mmask64 there = last == 64 ? ~uint64_t(0) : (uint64_t(1) << last) - 1;
        alignas(64) uint8_t places[128];
        uint8_t* place = places;
        UNROLL for (int s = 0; s < SOURCES; ++s) {
            const __m512i all = _mm512_add_epi8(bytes_from_0(), _mm512_set1_epi8(char(s * 64)));
            _mm512_storeu_si512(place, _mm512_maskz_compress_epi8(choice->masks[s], all));
            place += __builtin_popcountll(choice->masks[s]);
        }
        __m512i from[PARTS], factors[PARTS];
        UNROLL for (int part = 0; part < PARTS; ++part) {
            from[part] = _mm512_cvtepu8_epi16(_mm256_load_si256((const __m256i*)(places + part * 32)));
            factors[part] = load_factors(choice->factors + part * 32);
        }
        constexpr __mmask64 EVEN = 0x5555555555555555;
        for (int p = 0; p < pixels; ++p, pixel += step, to += count) {
            const __m512i end = _mm512_maskz_loadu_epi8(there, pixel + (SOURCES - 1) * 64);
            const __m512i begin = SOURCES == 1 ? end : _mm512_loadu_si512(pixel);
            UNROLL for (int part = 0; part < PARTS; ++part) {
                const __m512i picked = SOURCES == 1
                                           ? _mm512_maskz_permutexvar_epi8(EVEN, from[part], end)
                                           : _mm512_maskz_permutex2var_epi8(EVEN, begin, from[part], end);
                const __m512i x = _mm512_sub_epi16(picked, shift);
                const __m512i v = _mm512_add_epi16(_mm512_mulhrs_epi16(x, factors[part]), shift);
                _mm256_storeu_si256((__m256i*)(to + part * 32), _mm512_cvtepi16_epi8(v));
            }
        }
    }

    INLINE void pick_row(const uint8_t* pixel, int64_t step, int pixels, uint8_t* to) const {
        for (int p = 0; p < pixels; ++p, pixel += step, to += count) compress<false>(pixel, __m512i{}, to);
    }

    template <bool IS_GATED>
    INLINE void compress(const uint8_t* pixel, __m512i shift, uint8_t* to) const {
        const int16_t* factors = choice->factors;
        const uint64_t* masks = choice->masks;
        for (int c = 0; c < channels; c += 64) {
            const __m512i all = channels - c >= 64
                                    ? _mm512_loadu_si512(pixel + c)
                                    : _mm512_maskz_loadu_epi8((uint64_t(1) << (channels - c)) - 1, pixel + c);
            const uint64_t mask = *masks++;
            const int picked = int(__builtin_popcountll(mask));
            const __m512i some = _mm512_maskz_compress_epi8(mask, all);
            if (IS_GATED) {
                store_gated(_mm512_castsi512_si256(some), factors, shift, to);
                if (picked > 32) store_gated(_mm512_extracti64x4_epi64(some, 1), factors + 32, shift, to + 32);
            } else {
                _mm512_storeu_si512(to, some);
            }
            to += picked, factors += picked;
        }
    }

    static INLINE void store_gated(__m256i bytes, const int16_t* factors, __m512i shift, uint8_t* to) {
        _mm256_storeu_si256((__m256i*)to, gated(bytes, load_factors(factors), shift));
    }

    static INLINE __m512i bytes_from_0() {
        alignas(64) static const uint8_t places[64] = {
            0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
            22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
            44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
        return _mm512_load_si512(places);
    }
#else
    static constexpr int ROOM = 4096;  // bytes: some pixels are picked, and then gated, in the first-level cache

    INLINE void read_gated_row(const uint8_t* pixel, int64_t step, int pixels, uint8_t* to) const {
        if (count > ROOM) {
            for (int p = 0; p < pixels; ++p, pixel += step, to += count) pick_row(pixel, step, 1, to), gate(to, 1, to);
            return;
        }
        uint8_t picked[ROOM + 64];
        const int at_once = ROOM / larger(count, 1);
        while (pixels > 0) {
            const int some = smaller(pixels, at_once);
            pick_row(pixel, step, some, picked);
            gate(picked, some, to);
            pixel += some * step, to += int64_t(some) * count, pixels -= some;
        }
    }

    INLINE void pick_row(const uint8_t* pixel, int64_t step, int pixels, uint8_t* to) const {
#if defined(DGCONV_SHUFFLES)
        switch (choice->shuffle_count) {
            case 1: return pick_few<1>(pixel, step, pixels, to);
            case 2: return pick_few<2>(pixel, step, pixels, to);
            case 3: return pick_few<3>(pixel, step, pixels, to);
            case 4: return pick_few<4>(pixel, step, pixels, to);
            case 5: return pick_few<5>(pixel, step, pixels, to);
            case 6: return pick_few<6>(pixel, step, pixels, to);
            case 7: return pick_few<7>(pixel, step, pixels, to);
            case 8: return pick_few<8>(pixel, step, pixels, to);
        }
#endif
        for (int p = 0; p < pixels; ++p, pixel += step, to += count) pick(pixel, to);
    }

    INLINE void pick(const uint8_t* pixel, uint8_t* to) const {
#if defined(DGCONV_SHUFFLES)
        for (const Shuffle *part = choice->shuffles, *end = part + choice->shuffle_count; part < end; ++part) {
            const __m128i all = _mm_loadu_si128((const __m128i*)(pixel + part->first));
            _mm_storeu_si128((__m128i*)to, _mm_shuffle_epi8(all, _mm_load_si128((const __m128i*)part->places)));
            to += part->count;
        }
#else
        for (int i = 0; i < count; ++i) {
            const int32_t code = choice->channels[i];
            to[i] = pixel[code < 0 ? ~code : code];
        }
#endif
    }

#if defined(DGCONV_SHUFFLES)
    template <int PARTS>
    INLINE void pick_few(const uint8_t* pixel, int64_t step, int pixels, uint8_t* to) const {
        __m128i places[PARTS];
        int64_t first[PARTS], at[PARTS], next = 0;
        UNROLL for (int part = 0; part < PARTS; ++part) {
            const Shuffle& shuffle = choice->shuffles[part];
            places[part] = _mm_load_si128((const __m128i*)shuffle.places);
            first[part] = shuffle.first, at[part] = next, next += shuffle.count;
        }
        for (int p = 0; p < pixels; ++p, pixel += step, to += next) {
            UNROLL for (int part = 0; part < PARTS; ++part) {
                const __m128i all = _mm_loadu_si128((const __m128i*)(pixel + first[part]));
                _mm_storeu_si128((__m128i*)(to + at[part]), _mm_shuffle_epi8(all, places[part]));
            }
        }
    }
#endif

    // Picked pixels, one behind the other.
    INLINE void gate(const uint8_t* from, int pixels, uint8_t* to) const {
#if defined(DGCONV_GATES)
        const Factors shift = factors_of(int16_t(zero));
        if (count <= GATED_AT_ONCE / 2) {  // several pixels in a vector
            const int at_once = GATED_AT_ONCE / larger(count, 1), step = at_once * count;
            const Factors factors = load_factors(choice->factors);
            for (int p = 0; p < pixels; p += at_once, from += step, to += step) gate_some(from, factors, shift, to);
            return;
        }
        for (int p = 0; p < pixels; ++p, from += count, to += count) {
            for (int i = 0; i < count; i += GATED_AT_ONCE)
                gate_some(from + i, load_factors(choice->factors + i), shift, to + i);
        }
#else
        for (int p = 0; p < pixels; ++p, from += count, to += count) {
            for (int i = 0; i < count; ++i)
                to[i] = uint8_t(zero + (((from[i] - zero) * choice->factors[i] + (1 << 14)) >> 15));
        }
#endif
    }
#endif
};

}  // namespace dgconv::DGCONV_ISA
