// The product of a convolution of bytes by tiles: rows of pixels, as they lie in memory, times weights in the order in
// which vectors take them, too. While a block of sums is made, the one before it becomes bytes.
#pragma once

#include <utility>

#include "byte_finish.h"

namespace dgconv::DGCONV_ISA {

constexpr int BLOCK_TILES = 4;  // of sums
constexpr int BLOCK_SUMS = BLOCK_TILES * TILE_LANES;
constexpr int BLOCK_PIECES = BLOCK_TILES * TILE_ROWS;
constexpr int64_t SQUARE_BYTES = 1 << 17;  // of weights

// What all blocks of an item have in common.
struct TileProduct {
    const Gathered& x;
    const Run* runs;
    int run_count, step;  // groups at a time
    Ahead* ahead;
    Finisher finisher;
    alignas(64) int32_t sums[2][BLOCK_SUMS];
    int turn = 0;

    TileProduct(const Gathered& x, const Run* runs, int run_count, int step, Ahead* ahead)
        : x(x), runs(runs), run_count(run_count), step(step), ahead(ahead) {}

    // TILES times VECTORS: `w` has a group of weights every `w_step` bytes.
    template <int TILES, int VECTORS>
    void multiply(const uint8_t* const* pixels, const Weight* w, int64_t w_step, const Piece* pieces, const Piece* end,
                  const ByteOutput& output) {
        static_assert(TILES * VECTORS <= BLOCK_TILES);
        constexpr int X = Tiles::PIXELS, W = Tiles::WEIGHTS;
        call_with<TILES * VECTORS>([&](auto sum) { load_tile<sum()>(output.start + sum() / TILES * LANES, 0); });
        const int steps = run_count * int(runs[0].groups) / step;
        const int finished = divide_up(finisher.left(), larger(steps, 1));  // at a time
        for (int run = 0; run < run_count; ++run) {
            int64_t at = runs[run].offset;
            for (int64_t group = 0; group < runs[run].groups; group += step, at += step * GROUP, w += step * w_step) {
                const auto load_w = [&](auto v) { load_tile<W + v() % 2>(w + v() * TILE_BYTES, w_step); };
                if constexpr (VECTORS <= 2) call_with<VECTORS>(load_w);
                call_with<TILES>([&](auto t) {
                    load_tile<X + t() % 2>(pixels[t()] + at, x.step);
                    call_with<VECTORS>([&](auto v) {
                        if constexpr (VECTORS > 2) load_w(v);
                        multiply_tiles<v() * TILES + t(), X + t() % 2, W + v() % 2>();
                    });
                });
                fetch(ahead, 2 * TILES * VECTORS);
                finisher.some(finished);
            }
        }
        finisher.some(finisher.left());
        int32_t* const to = sums[turn ^= 1];
        call_with<TILES * VECTORS>([&](auto sum) { store_tile<sum()>(to + sum() * TILE_LANES, TILE_BYTES); });
        finisher.begin(to, TILES, VECTORS, pieces, end, output);
    }

    void multiply(int tiles, int vectors, const uint8_t* const* pixels, const Weight* w, int64_t w_step,
                  const Piece* pieces, const Piece* end, const ByteOutput& output) {
        if (tiles == 4) return multiply<4, 1>(pixels, w, w_step, pieces, end, output);
        if (tiles == 3) return multiply<3, 1>(pixels, w, w_step, pieces, end, output);
        if (tiles == 2 && vectors == 2) return multiply<2, 2>(pixels, w, w_step, pieces, end, output);
        if (tiles == 2) return multiply<2, 1>(pixels, w, w_step, pieces, end, output);
        if (vectors == 4) return multiply<1, 4>(pixels, w, w_step, pieces, end, output);
        if (vectors == 2) return multiply<1, 2>(pixels, w, w_step, pieces, end, output);
        return multiply<1, 1>(pixels, w, w_step, pieces, end, output);
    }
};

// Whether tiles are faster than vectors: some are as good as empty if there are few pixels, or few bytes in a run.
INLINE bool suits_tiles(const Gathered& x, int step) {
    const int64_t pixels = int64_t(x.rows) * x.columns;
    return x.step > 0 && step >= 3 && pixels * step >= 96 && pixels < 1 << 28;
}

// Some vectors of the outputs of a group.
inline void convolve_tiles(Tiles& tiles, const BytePlan& plan, const Gathered& x, const Run* runs, const Weight* weights,
                           int step, int first, int end, const ByteOutput& output, Ahead* ahead) {
    const TileCut cut(x);
    tiles.shape(cut.height, step);
    TileProduct product(x, runs, plan.runs, step, ahead);
    const int64_t groups = plan.runs * runs[0].groups;
    Piece pieces[2][BLOCK_PIECES];  // those of the block before this one are still being read
    int turn = 0;
    // Two by two, fewer tiles are loaded for as many products; but weights are read twice as often.
    const bool is_square = end - first > 1 && groups * (end - first) * LANES * GROUP <= SQUARE_BYTES;
    const int most = is_square ? BLOCK_TILES / 2 : BLOCK_TILES;
    for (int tile = 0; tile < cut.count(); tile += most) {
        const int count = smaller(most, cut.count() - tile);
        const uint8_t* places[BLOCK_TILES];
        Piece *const begin = pieces[turn ^= 1], *behind = begin;
        for (int i = 0; i < count; ++i) {
            places[i] = cut.place_of(x, tile + i);
            behind = cut.add_pieces(tile + i, i * TILE_ROWS, behind);
        }
        for (int vector = first, at_once; vector < end; vector += at_once) {
            const int panel = plan.panel_at(plan.first_of_panel(vector));
            at_once = smaller(count == 1 ? 4 : count == 2 ? 2 : 1, panel);
            product.multiply(count, at_once, places, weights + plan.place_of(vector, 0, groups),
                             int64_t(panel) * LANES * GROUP, begin, behind, output.from(vector * LANES));
        }
    }
    product.finisher.some(product.finisher.left());
}

}  // namespace dgconv::DGCONV_ISA
