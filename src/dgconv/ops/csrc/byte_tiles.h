// The tiles of a convolution of bytes; see tiles.h.
#pragma once

#include "byte_vec.h"
#include "tiles.h"

namespace dgconv::DGCONV_ISA {

constexpr int TILE_LANES = TILE_ROWS * LANES;

// The tiles of this thread for the time of a convolution: those of sums, of pixels and of weights.
class Tiles {
  public:
    static constexpr int SUMS_TILES = 4, PIXELS = 4, WEIGHTS = 6;  // the first of two each

    Tiles() = default;
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;
    ~Tiles() {
        if (pixels) release_tiles();
    }

    // So many pixels, and groups of their bytes, at a time.
    void shape(int new_pixels, int new_groups) {
        if (new_pixels == pixels && new_groups == groups) return;
        pixels = new_pixels, groups = new_groups;
        TileShapes shapes;
        for (int tile = 0; tile < SUMS_TILES; ++tile) set(shapes, tile, pixels, TILE_BYTES);
        for (int tile = 0; tile < 2; ++tile) {
            set(shapes, PIXELS + tile, pixels, groups * GROUP);
            set(shapes, WEIGHTS + tile, groups, TILE_BYTES);
        }
        configure_tiles(shapes);
    }

  private:
    int pixels = 0, groups = 0;

    static void set(TileShapes& shapes, int tile, int rows, int row_bytes) {
        shapes.rows[tile] = uint8_t(rows), shapes.row_bytes[tile] = uint16_t(row_bytes);
    }
};

}  // namespace dgconv::DGCONV_ISA
