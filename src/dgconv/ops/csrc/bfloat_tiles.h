// Products of bfloat16 in tiles of AMX, for sparse_tiles.h; bfloat_vectors.h has the same in vectors.
#pragma once

#include "vec.h"
//
#include "tiles.h"

namespace dgconv::DGCONV_ISA {

// The tiles of this thread: 4 of sums, 2 for each factor. A product takes `step` terms of its sums at a time.
class BFloatTiles {
   public:
    explicit BFloatTiles(int64_t step) {
        TileShapes shapes;
        for (int tile = 0; tile < 8; ++tile) {
            shapes.rows[tile] = uint8_t(tile < 6 ? TILE_ROWS : step / 2);
            shapes.row_bytes[tile] = uint16_t(tile < 4 || tile > 5 ? TILE_BYTES : 2 * step);
        }
        configure_tiles(shapes);
    }
    BFloatTiles(const BFloatTiles&) = delete;
    BFloatTiles& operator=(const BFloatTiles&) = delete;
    ~BFloatTiles() { release_tiles(); }

    // M times N tiles of sums over `outer` times `inner` steps, each written to to(m, n). Strides are in bytes.
    template <int M, int N, class A, class B, class To>
    INLINE void product(int64_t outer, int64_t inner, const A& a, int64_t a_stride, const B& b, int64_t b_stride,
                        const To& to, int64_t to_stride) const {
        static_assert(M * N <= 4);
        call_with<M * N>([&](auto sum) { zero_tile<sum()>(); });
        for (int64_t o = 0; o < outer; ++o) {
            for (int64_t i = 0; i < inner; ++i) {
                if constexpr (M <= 2) {
                    call_with<M>([&](auto m) { load_tile<4 + m()>(a(m(), o, i), a_stride); });
                    call_with<N>([&](auto n) {
                        load_tile<6 + n() % 2>(b(n(), o, i), b_stride);
                        call_with<M>([&](auto m) { multiply_bfloat_tiles<m() * N + n(), 4 + m(), 6 + n() % 2>(); });
                    });
                } else {
                    static_assert(N == 1);
                    load_tile<6>(b(0, o, i), b_stride);
                    call_with<M>([&](auto m) {
                        load_tile<4 + m() % 2>(a(m(), o, i), a_stride);
                        multiply_bfloat_tiles<m(), 4 + m() % 2, 6>();
                    });
                }
            }
        }
        call_with<M * N>([&](auto sum) { store_tile<sum()>(to(sum() / N, sum() % N), to_stride); });
    }
};

}  // namespace dgconv::DGCONV_ISA
