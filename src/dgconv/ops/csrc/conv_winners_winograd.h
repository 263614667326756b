// 3x3 convolution of stride 1 of the winners, by Winograd's method. Channels and outputs are few and differ from image
// to image, so it is tiles that fill the vectors: all that is done for a channel or an output is done for those alone
// that are wanted.
//
// Where there are fewer tiles than lanes, four points of each stand together.
#pragma once

#include "conv_winners.h"
#include "winograd_transform.h"

namespace dgconv::DGCONV_ISA {

template <int TOGETHER>
struct WinnersWinograd {
    static constexpr int OUT = 4, IN = OUT + 2, POINTS = IN * IN, GROUPS = POINTS / TOGETHER;

    const Conv& conv;
    const Plan& plan;
    const PaddedPlane padded;
    int out_w, tiles_x;
    int slots;             // tiles of a whole item, up to whole vectors
    int channels_at_once;  // as many as fill a vector with tiles
    // Floats between rows of transformed columns, groups of points, and rows of results: always some more than needed,
    // to be read or written past the end, and as powers of two would share one set of the cache.
    int64_t column_row, input_group, product_group, result_row;
    // Parts of the scratch: a padded plane; its columns transformed,
    // [own or next][row of a tile][channel][tile][column]; then its rows, too, [group][channel][tile][point]; products,
    // [group][output][tile][point]; results, [row of a tile][output][tile][column]; the terms of the sums.
    int64_t columns, inputs, products, results, terms, total;

    WinnersWinograd(const Conv& conv, const Plan& plan, int in_w, int out_w)
        : conv(conv), plan(plan), padded(conv, plan, in_w, out_w), out_w(out_w) {
        tiles_x = divide_up(out_w, OUT);
        slots = round_up(plan.rows / OUT * tiles_x, WIDTH / TOGETHER);
        channels_at_once = larger(1, WIDTH / slots);
        column_row = (channels_at_once * slots + WIDTH) * OUT + WIDTH;
        input_group = (int64_t(plan.inputs) * slots + WIDTH) * TOGETHER + WIDTH;
        product_group = (int64_t(plan.block) * slots + WIDTH) * TOGETHER + WIDTH;
        result_row = (int64_t(plan.block) * slots + WIDTH) * OUT + WIDTH;
        columns = padded.floats();
        inputs = columns + 2 * IN * column_row;
        products = inputs + GROUPS * input_group;
        results = products + GROUPS * product_group;
        terms = results + OUT * result_row;
        total = terms + 2 * plan.inputs;
    }

    void run(const Item& item, const Planes& x, const WinnersOutput& output, float* scratch, bool is_first) const {
        const int tile_rows = divide_up(item.rows, OUT);
        clear_outside(item, tile_rows, scratch, is_first);
        for (int first = 0; first < item.kept; first += channels_at_once) {
            const int channels = smaller(channels_at_once, item.kept - first);
            for (int i = 0; i < channels; ++i) {
                const int channel = item.channel(first + i);
                const float* plane = x.data + item.image * x.image_stride + int64_t(channel) * x.height * x.width;
                padded.fill(conv, item, x, plane, Prepare(conv, item, first + i, channel), scratch);
                transform_columns(scratch, tile_rows, scratch + columns + i * slots * OUT);
            }
            float* to = scratch + inputs + int64_t(first) * slots * TOGETHER;
            for (int tile = 0; tile < channels * slots; tile += WIDTH) {
                transform_rows(scratch + columns + tile * OUT, to + tile * TOGETHER);
            }
        }
        multiply(item, output, scratch);
        for (int tile = 0; tile < output.count * slots; tile += WIDTH) {
            transform_back(scratch + products + int64_t(tile) * TOGETHER, scratch + results + int64_t(tile) * OUT);
        }
        for (int i = 0; i < output.count; ++i) {
            const float* from = scratch + results + int64_t(i) * slots * OUT;
            output.put_winner(i, item.rows, out_w, [&](int row) {
                return from + row % OUT * result_row + row / OUT * tiles_x * OUT;
            });
        }
        output.put_losers();
    }

  private:
    // What lies outside the image is 0: all around, set once, and the rows that the last tiles have too many.
    void clear_outside(const Item& item, int tile_rows, float* plane, bool is_first) const {
        const int first = is_first ? 0 : item.rows + 2, end = is_first ? padded.rows + 1 : tile_rows * OUT + 2;
        memset(plane + int64_t(first) * padded.pitch, 0, sizeof(float) * larger(0, end - first) * padded.pitch);
    }

    // Tiles overlap: besides its own columns each needs the first ones of the next tile, which are kept once more in
    // the same order. So in both, tiles follow each other without regard to where a row ends.
    void transform_columns(const float* plane, int tile_rows, float* own) const {
        const int pixels = tiles_x * OUT;
        for (int row = 0; row < tile_rows; ++row, own += pixels) {
            const float* from = plane + int64_t(row) * OUT * padded.pitch;
            Vec d[IN], later[IN];
            transform_column(from, later);
            for (int x = 0; x < pixels; x += WIDTH) {
                UNROLL for (int i = 0; i < IN; ++i) d[i] = later[i];
                if (x + WIDTH < pixels + 2) transform_column(from + x + WIDTH, later);
                UNROLL for (int i = 0; i < IN; ++i) {
                    store(own + i * column_row + x, d[i]);
                    store(own + (IN + i) * column_row + x, shuffle<LanesFrom<OUT>>(d[i], later[i]));
                }
            }
        }
    }
    INLINE void transform_column(const float* from, Vec (&d)[IN]) const {
        UNROLL for (int i = 0; i < IN; ++i) d[i] = load(from + i * padded.pitch);
        Transform<OUT>::input(d);
    }

    void transform_rows(const float* own, float* to) const {
        Vec points[POINTS];
        UNROLL for (int i = 0; i < IN; ++i) {
            Vec columns[OUT], next[OUT], d[IN];
            UNROLL for (int k = 0; k < OUT; ++k) columns[k] = load(own + i * column_row + k * WIDTH);
            UNROLL for (int k = 0; k < OUT; ++k) next[k] = load(own + (IN + i) * column_row + k * WIDTH);
            transpose_quads(columns);
            transpose_quads(next);
            UNROLL for (int j = 0; j < IN; ++j) d[j] = j < OUT ? columns[j] : next[j - OUT];
            Transform<OUT>::input(d);
            UNROLL for (int j = 0; j < IN; ++j) points[i * IN + j] = d[j];
        }
        UNROLL for (int first = 0; first < POINTS; first += 4) {
            Vec four[4];
            UNROLL for (int i = 0; i < 4; ++i) four[i] = points[first + i];
            if (TOGETHER == 4) transpose_quads(four);
            UNROLL for (int i = 0; i < 4; ++i) store(to + place_of(first, i, input_group), four[i]);
        }
    }

    void multiply(const Item& item, const WinnersOutput& output, float* scratch) const {
        Term* const all = reinterpret_cast<Term*>(scratch + terms);
        for (int i = 0; i < item.kept; ++i) all[i] = {i * slots * TOGETHER, item.channel(i) * 4};
        WinnerFactors f = {nullptr, nullptr, int64_t(plan.inputs) * POINTS, all, item.kept};
        for (int group = 0; group < GROUPS; ++group) {
            const int point = group * TOGETHER;
            f.x = scratch + inputs + group * input_group;
            f.weight = conv.weight + int64_t(point / 4) * plan.inputs * 4 + point % 4;
            float* to = scratch + products + group * product_group;
            multiply_winners<TOGETHER>(f, output.channels, output.count, slots * TOGETHER / WIDTH, to);
        }
    }

    void transform_back(const float* from, float* to) const {
        Vec points[POINTS], y[OUT][OUT];
        UNROLL for (int first = 0; first < POINTS; first += 4) {
            Vec four[4];
            UNROLL for (int i = 0; i < 4; ++i) four[i] = load(from + place_of(first, i, product_group));
            if (TOGETHER == 4) transpose_quads(four);
            UNROLL for (int i = 0; i < 4; ++i) points[first + i] = four[i];
        }
        transform_output<OUT>([&](int point) { return points[point]; }, y);
        UNROLL for (int i = 0; i < OUT; ++i) {
            transpose_quads(y[i]);
            UNROLL for (int j = 0; j < OUT; ++j) store(to + i * result_row + j * WIDTH, y[i][j]);
        }
    }

    // Of four points, or of the four vectors in which they stand together, where the i-th lies.
    static INLINE int64_t place_of(int first_point, int i, int64_t group) {
        return TOGETHER == 4 ? first_point / 4 * group + i * WIDTH : (first_point + i) * group;
    }
};

template <class Body>
inline void with_winners_winograd(const Conv& conv, const Plan& plan, int in_w, int out_w, Body body) {
    const bool has_few_tiles = plan.rows / plan.tile * divide_up(out_w, plan.tile) < WIDTH;
    has_few_tiles ? body(WinnersWinograd<4>(conv, plan, in_w, out_w))
                  : body(WinnersWinograd<1>(conv, plan, in_w, out_w));
}

// [output][four points][channel][point].
inline void pack_winners_winograd(const Plan& plan, const float* oihw, float* packed) {
    for (int output = 0; output < plan.outputs; ++output, packed += int64_t(plan.taps) * plan.inputs) {
        for (int channel = 0; channel < plan.inputs; ++channel, oihw += 9) {
            float points[WinnersWinograd<1>::POINTS];
            transform_kernel<WinnersWinograd<1>::OUT>(oihw, points, 1);
            for (int point = 0; point < plan.taps; ++point) {
                packed[(int64_t(point / 4) * plan.inputs + channel) * 4 + point % 4] = points[point];
            }
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
