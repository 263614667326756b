// What becomes of the sums of tiles: some pixels of one vector of outputs at a time, while other sums are made.
#pragma once

#include "byte_output.h"
#include "byte_tile_cut.h"

namespace dgconv::DGCONV_ISA {

#if defined(__AVX512VNNI__)
// Whole pieces of whole vectors.
template <bool HAS_RESIDUAL, bool IS_LEAST_0>
INLINE const Piece* finish_whole(const Piece* piece, const Piece* last, const int32_t* sums, const ByteOutput& output) {
    const Vec multiplier = load(output.multiplier) * output.unit, bias = load(output.bias);
    for (; piece < last && piece->count == PIECE; ++piece) {
        Vec v[PIECE];
        const uint8_t* added = HAS_RESIDUAL ? output.residual + piece->pixel * output.residual_step : nullptr;
        UNROLL for (int i = 0; i < PIECE; ++i) {
            v[i] = to_float(load(sums + (piece->row + i) * LANES)) * multiplier + bias;
            if (!HAS_RESIDUAL) continue;
            const __m128i bytes = _mm_loadu_si128((const __m128i*)(added + i * output.residual_step));
            v[i] += to_float((IntVec)_mm512_cvtepu8_epi32(bytes)) * output.residual_scale;
        }
        const __m512i bytes = in_order(to_quarters<IS_LEAST_0>(v, output.result));
        uint8_t* const to = output.y + piece->pixel * output.y_step;
        _mm_storeu_si128((__m128i*)to, _mm512_castsi512_si128(bytes));
        _mm_storeu_si128((__m128i*)(to + output.y_step), _mm512_extracti32x4_epi32(bytes, 1));
        _mm_storeu_si128((__m128i*)(to + 2 * output.y_step), _mm512_extracti32x4_epi32(bytes, 2));
        _mm_storeu_si128((__m128i*)(to + 3 * output.y_step), _mm512_extracti32x4_epi32(bytes, 3));
    }
    return piece;
}
#endif

inline void finish(const Piece* piece, const Piece* last, const int32_t* sums, const ByteOutput& output) {
    const Vec multipliers[1] = {load(output.multiplier) * output.unit};
    while (piece < last) {
#if defined(__AVX512VNNI__)
        if (piece->count == PIECE && output.count >= LANES) {
            if (output.residual)
                piece = is_least_0(output.result) ? finish_whole<true, true>(piece, last, sums, output)
                                                  : finish_whole<true, false>(piece, last, sums, output);
            else
                piece = is_least_0(output.result) ? finish_whole<false, true>(piece, last, sums, output)
                                                  : finish_whole<false, false>(piece, last, sums, output);
            continue;
        }
#endif
        for (int i = 0; i < piece->count; ++i) {
            const IntVec some[1] = {load(sums + (piece->row + i) * LANES)};
            output.put(piece->pixel + i, some, multipliers);
        }
        ++piece;
    }
}

// Sums that are to become bytes: vectors of outputs, and pieces of each.
class Finisher {
  public:
    void begin(const int32_t* new_sums, int new_tiles, int new_vectors, const Piece* new_pieces, const Piece* new_end,
               const ByteOutput& new_output) {
        sums = new_sums, tiles = new_tiles, vectors = new_vectors;
        pieces = next = new_pieces, end = new_end, output = new_output;
    }

    int left() const { return vectors ? int(end - next) + (vectors - 1) * int(end - pieces) : 0; }

    void some(int count) {
        while (vectors && count > 0) {
            const Piece* const last = end - next > count ? next + count : end;
            finish(next, last, sums, output);
            count -= int(last - next), next = last;
            if (next < end) return;
            --vectors, next = pieces, sums += tiles * TILE_LANES;
            output = output.from(LANES);
        }
    }

  private:
    const int32_t* sums = nullptr;
    int tiles = 0, vectors = 0;
    const Piece *pieces = nullptr, *next = nullptr, *end = nullptr;
    ByteOutput output{};
};

}  // namespace dgconv::DGCONV_ISA
