// Tiles of AMX: registers of up to 16 rows of 64 bytes, and a product of two of them. Without AMX, for tests, plain code
// does the same: DGCONV_EMULATES_TILES, 1, or 2 without AVX-512, either. Whoever includes it has INLINE from a header for
// vectors.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace dgconv::DGCONV_ISA {

constexpr int TILE_ROWS = 16, TILE_BYTES = 64;  // of a row

// What the processor is told about its tiles; the layout is its own.
struct alignas(64) TileShapes {
    uint8_t palette = 1, first_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

#if defined(DGCONV_EMULATES_TILES)
struct EmulatedTiles {
    TileShapes shapes;  // no rows: a product of tiles that nobody configured is nothing
    uint8_t bytes[8][TILE_ROWS][TILE_BYTES];
};
inline EmulatedTiles& emulated_tiles() {
    static thread_local EmulatedTiles tiles;
    return tiles;
}

inline void configure_tiles(const TileShapes& shapes) {
    emulated_tiles() = {};
    emulated_tiles().shapes = shapes;
}
inline void release_tiles() { emulated_tiles() = {}; }

template <int TILE>
inline void load_tile(const void* from, int64_t step) {
    EmulatedTiles& tiles = emulated_tiles();
    memset(tiles.bytes[TILE], 0, sizeof tiles.bytes[TILE]);
    for (int row = 0; row < tiles.shapes.rows[TILE]; ++row)
        memcpy(tiles.bytes[TILE][row], static_cast<const char*>(from) + row * step, tiles.shapes.row_bytes[TILE]);
}

template <int TILE>
inline void store_tile(void* to, int64_t step) {
    const EmulatedTiles& tiles = emulated_tiles();
    for (int row = 0; row < tiles.shapes.rows[TILE]; ++row)
        memcpy(static_cast<char*>(to) + row * step, tiles.bytes[TILE][row], tiles.shapes.row_bytes[TILE]);
}

template <int SUMS_TILE, int X, int W>
inline void multiply_tiles() {
    EmulatedTiles& tiles = emulated_tiles();
    for (int row = 0; row < tiles.shapes.rows[SUMS_TILE]; ++row) {
        uint32_t sums[TILE_BYTES / 4];
        memcpy(sums, tiles.bytes[SUMS_TILE][row], TILE_BYTES);
        for (int k = 0; k < tiles.shapes.row_bytes[X]; ++k) {
            for (int lane = 0; lane < tiles.shapes.row_bytes[SUMS_TILE] / 4; ++lane)
                sums[lane] += uint32_t(tiles.bytes[X][row][k] * int8_t(tiles.bytes[W][k / 4][lane * 4 + k % 4]));
        }
        memcpy(tiles.bytes[SUMS_TILE][row], sums, TILE_BYTES);
    }
}
template <int TILE>
inline void zero_tile() {
    memset(emulated_tiles().bytes[TILE], 0, sizeof emulated_tiles().bytes[TILE]);
}

// Of bfloat16, two of each in a lane; sums are floats.
template <int SUMS_TILE, int A, int B>
inline void multiply_bfloat_tiles() {
    EmulatedTiles& tiles = emulated_tiles();
    const auto value = [](const uint8_t* from) {
        uint16_t bits[2] = {};
        memcpy(bits + 1, from, sizeof *bits);
        float wide;
        memcpy(&wide, bits, sizeof wide);
        return wide;
    };
    for (int row = 0; row < tiles.shapes.rows[SUMS_TILE]; ++row) {
        float sums[TILE_BYTES / 4];
        memcpy(sums, tiles.bytes[SUMS_TILE][row], TILE_BYTES);
        for (int k = 0; k < tiles.shapes.row_bytes[A] / 2; ++k) {
            for (int lane = 0; lane < tiles.shapes.row_bytes[SUMS_TILE] / 4; ++lane)
                sums[lane] += value(tiles.bytes[A][row] + 2 * k) * value(tiles.bytes[B][k / 2] + 4 * lane + k % 2 * 2);
        }
        memcpy(tiles.bytes[SUMS_TILE][row], sums, TILE_BYTES);
    }
}
#else
INLINE void configure_tiles(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
INLINE void release_tiles() { asm volatile("tilerelease"); }

// Rows are `step` bytes apart in memory.
template <int TILE>
INLINE void load_tile(const void* from, int64_t step) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(step), "i"(TILE) : "memory");
}
template <int TILE>
INLINE void store_tile(void* to, int64_t step) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(step), "i"(TILE) : "memory");
}

// Adds, for each row of bytes X and each lane of four weights W, their products.
template <int SUMS_TILE, int X, int W>
INLINE void multiply_tiles() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS_TILE), "i"(X), "i"(W));
}
template <int TILE>
INLINE void zero_tile() {
    asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}
#if defined(__AMX_BF16__)
// Of bfloat16, two of each in a lane; sums are floats.
template <int SUMS_TILE, int A, int B>
INLINE void multiply_bfloat_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS_TILE), "i"(A), "i"(B));
}
#endif
#endif

// Calls with 0, 1, ... as constants.
template <class Body, int... NUMBERS>
INLINE void call_with(std::integer_sequence<int, NUMBERS...>, Body body) {
    (body(std::integral_constant<int, NUMBERS>()), ...);
}
template <int COUNT, class Body>
INLINE void call_with(Body body) {
    call_with(std::make_integer_sequence<int, COUNT>(), body);
}

}  // namespace dgconv::DGCONV_ISA
