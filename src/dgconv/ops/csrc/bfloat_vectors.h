// Products of bfloat16 in vectors (AVX512-BF16), for sparse_tiles.h: what bfloat_tiles.h does where there is no AMX. A
// tile is 16 rows of a vector each; as many rows are summed at once as registers hold.
#pragma once

#include "vec.h"
//
#include "tiles.h"

namespace dgconv::DGCONV_ISA {

class BFloatTiles {
   public:
    explicit BFloatTiles(int64_t step) : pairs(step / 2) {}

    // M times N tiles of sums over `outer` times `inner` steps, each written to to(m, n). Strides are in bytes.
    template <int M, int N, class A, class B, class To>
    INLINE void product(int64_t outer, int64_t inner, const A& a, int64_t a_stride, const B& b, int64_t b_stride,
                        const To& to, int64_t to_stride) const {
        constexpr int ROWS = N == 1 ? 16 : N == 2 ? 8 : 4;
        for (int64_t m = 0; m < M; ++m) {
            for (int64_t row = 0; row < TILE_ROWS; row += ROWS) rows<ROWS, N>(m, row, outer, inner, a, a_stride, b, b_stride, to, to_stride);
        }
    }

   private:
    int64_t pairs;  // of terms, in a step

    template <int ROWS, int N, class A, class B, class To>
    INLINE void rows(int64_t m, int64_t first, int64_t outer, int64_t inner, const A& a, int64_t a_stride, const B& b,
                     int64_t b_stride, const To& to, int64_t to_stride) const {
        __m512 sums[ROWS][N];
        UNROLL for (int r = 0; r < ROWS; ++r) {
            UNROLL for (int n = 0; n < N; ++n) sums[r][n] = _mm512_setzero_ps();
        }
        for (int64_t o = 0; o < outer; ++o) {
            for (int64_t i = 0; i < inner; ++i) {
                const char* from = reinterpret_cast<const char*>(a(m, o, i)) + first * a_stride;
                const char* by[N];
                UNROLL for (int n = 0; n < N; ++n) by[n] = reinterpret_cast<const char*>(b(n, o, i));
                for (int64_t pair = 0; pair < pairs; ++pair, from += sizeof(int32_t)) {
                    __m512bh factor[N];
                    UNROLL for (int n = 0; n < N; ++n) {
                        factor[n] = (__m512bh)_mm512_loadu_si512(by[n]);
                        by[n] += b_stride;
                    }
                    UNROLL for (int r = 0; r < ROWS; ++r) {
                        int32_t value;
                        memcpy(&value, from + r * a_stride, sizeof value);
                        const __m512bh values = (__m512bh)_mm512_set1_epi32(value);
                        UNROLL for (int n = 0; n < N; ++n) sums[r][n] = _mm512_dpbf16_ps(sums[r][n], values, factor[n]);
                    }
                }
            }
        }
        UNROLL for (int r = 0; r < ROWS; ++r) {
            UNROLL for (int n = 0; n < N; ++n) {
                _mm512_storeu_ps(reinterpret_cast<char*>(to(m, n)) + (first + r) * to_stride, sums[r][n]);
            }
        }
    }
};

}  // namespace dgconv::DGCONV_ISA
