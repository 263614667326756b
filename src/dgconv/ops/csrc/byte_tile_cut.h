// How the pixels of an item are cut into tiles.
#pragma once

#include "byte_gather.h"
#include "byte_tiles.h"

namespace dgconv::DGCONV_ISA {

constexpr int PIECE = 4;  // pixels

// Neighbours in a row of results that become bytes together.
struct Piece {
    int row;    // of the sums of several tiles, 16 of each
    int pixel;  // of the item
    int count;
};

// Tiles are equally high. The last one of a line begins so early that it ends with the line: what it has in common with the
// one before is computed twice, and nothing is read behind the last pixel.
struct TileCut {
    int lines, length;    // lines of so many pixels are cut: rows, or all of them in one
    int per_line, height;
    int pitch, columns;   // in a line, columns of every `pitch` pixels are results

    explicit TileCut(const Gathered& x) : columns(x.columns) {
        const TileCut rows(x.rows, x.columns, x.columns, x.columns);
        *this = rows;
        if (x.rows == 1 || x.row_step % x.step) return;
        // Rows as far apart as a whole number of pixels, which is one line: between them are results of no use.
        const int64_t pitch = x.row_step / x.step, length = (x.rows - 1) * pitch + x.columns;
        if (length > 2 * int64_t(x.rows) * x.columns) return;
        const TileCut whole(1, int(length), int(pitch), x.columns);
        if (whole.cost() < rows.cost()) *this = whole;
    }

    int count() const { return lines * per_line; }

    INLINE const uint8_t* place_of(const Gathered& x, int tile) const {
        return x.data + tile / per_line * x.row_step + begin_of(tile) * x.step;
    }

    // Appends those of a tile; `row` is its first among the sums.
    INLINE Piece* add_pieces(int tile, int row, Piece* to) const {
        const int begin = begin_of(tile), line = tile / per_line;
        int i = tile % per_line * height - begin;
        int at = (begin + i) / pitch, column = (begin + i) % pitch;
        while (i < height) {
            const int some = smaller(smaller(PIECE, columns - column), height - i);
            if (some > 0) {
                i += some, column += some;
                const int count = smaller(smaller(PIECE, column), i);  // with some that were before, all of it
                *to++ = {row + i - count, (line + at) * columns + column - count, count};
            } else {
                i += pitch - column, column = 0, ++at;
            }
        }
        return to;
    }

  private:
    TileCut(int lines, int length, int pitch, int columns)
        : lines(lines), length(length), pitch(pitch), columns(columns) {
        per_line = divide_up(length, TILE_ROWS), height = divide_up(length, per_line);
    }

    INLINE int begin_of(int tile) const { return smaller(tile % per_line * height, length - height); }

    // Cycles, about: four products one after the other of fewer rows than these wait for the first.
    int64_t cost() const { return int64_t(count()) * (larger(height, 13) + 4); }
};

}  // namespace dgconv::DGCONV_ISA
