// 3x3 convolution of stride 1 by Winograd's method where outputs do not fill vectors: the winners, which differ from
// image to image, and narrow groups or heads. So it is tiles that fill the vectors: all that is done for a channel or an
// output is done for those alone that are wanted. Heads share the transformed channels, and put their gates on as they
// multiply.
//
// What a vector holds depends on how many tiles there are.
#pragma once

#include "conv_winners.h"
#include "winograd_transform.h"

namespace dgconv::DGCONV_ISA {

enum TileCount {
    MANY_TILES,  // a vector holds one point of tiles
    FEW_TILES,   // four points of each tile
    ONE_TILE,    // four points of the same tile in several channels: the sum over all of them comes in parts
};

template <TileCount COUNT>
struct WinogradTiles {
    static constexpr int OUT = 4, IN = OUT + 2, POINTS = IN * IN;
    static constexpr int TOGETHER = COUNT == MANY_TILES ? 1 : 4, GROUPS = POINTS / TOGETHER;
    static constexpr int PARTS = COUNT == ONE_TILE ? WIDTH / 4 : 1;  // of a sum

    const Conv& conv;
    const Plan& plan;
    const PaddedPlane padded;
    int out_w, tiles_x;
    int tiles;             // of a whole item, up to whole vectors unless it is one
    int output_tiles;      // the same, in as many parts as there are
    int channels_at_once;  // as many as fill a vector with tiles
    // Floats between rows of transformed columns, groups of points, and rows of results: always some more than needed,
    // to be read or written past the end, and as powers of two would share one set of the cache.
    int64_t column_row, input_group, product_group, result_row;
    // Parts of the scratch: a padded plane; its columns transformed,
    // [own or next][row of a tile][channel][tile][column]; then its rows, too, [group][channel][tile][point]; products,
    // [group][output][tile][point]; results, [row of a tile][output][tile][column]; the terms of the sums.
    int64_t columns, inputs, products, results, terms, total;

    WinogradTiles(const Conv& conv, const Plan& plan, int in_w, int out_w)
        : conv(conv), plan(plan), padded(conv, plan, in_w, out_w), out_w(out_w) {
        tiles_x = divide_up(out_w, OUT);
        tiles = COUNT == ONE_TILE ? 1 : round_up(plan.rows / OUT * tiles_x, WIDTH / TOGETHER);
        output_tiles = tiles * PARTS;
        channels_at_once = larger(1, WIDTH / tiles);
        column_row = (channels_at_once * tiles + WIDTH) * OUT + WIDTH;
        input_group = (int64_t(plan.inputs) * tiles + WIDTH) * TOGETHER + WIDTH;
        product_group = (int64_t(plan.block) * output_tiles + WIDTH) * TOGETHER + WIDTH;
        result_row = (int64_t(plan.block) * output_tiles + WIDTH) * OUT + WIDTH;
        columns = padded.floats();
        inputs = columns + 2 * IN * column_row;
        products = inputs + GROUPS * input_group;
        results = products + GROUPS * product_group;
        terms = results + OUT * result_row;
        total = terms + 2 * plan.inputs;
    }

    void run(const Item& item, const Planes& x, const ChosenOutputs& output, float* scratch, bool is_first) const {
        transform_channels(item, x, scratch, is_first);
        Term* const all = reinterpret_cast<Term*>(scratch + terms);
        int count = item.kept;
        for (int i = 0; i < count; ++i) all[i] = {i * tiles * TOGETHER, item.channel(i) * 4};
        if (COUNT == ONE_TILE) {
            count = divide_up(plan.inputs, PARTS);
            for (int i = 0; i < count; ++i) all[i] = {i * WIDTH, i * WIDTH};
        }
        multiply(count, nullptr, item, output, scratch);
    }

    // All heads, each with a selection; `output_of` gives where the results of a head's item go.
    template <class OutputOf>
    void run_heads(const Item& item, const Selection& selection, const Planes& x, OutputOf output_of, float* scratch,
                   bool is_first) const {
        transform_channels(item, x, scratch, is_first);
        Term* const all = reinterpret_cast<Term*>(scratch + terms);
        for (int head = 0; head < conv.groups; ++head) {
            const int64_t entry = int64_t(item.image) * conv.groups + head;
            const int32_t* channels = selection.channels + entry * conv.in_channels;
            const int kept = selection.counts[entry];
            for (int i = 0; i < kept; ++i) all[i] = {channels[i] * tiles * TOGETHER, channels[i] * 4};
            Item own = item;
            own.group = head;
            const float* gates = selection.gates ? selection.gates + entry * conv.in_channels : nullptr;
            const Output output = output_of(own);
            multiply(kept, gates, own, ChosenOutputs(conv, plan, own, nullptr, output), scratch);
            output.finish();
        }
    }

  private:
    void transform_channels(const Item& item, const Planes& x, float* scratch, bool is_first) const {
        clear_outside(item, scratch, is_first);
        transform_inputs(item, x, scratch);
    }

    // Products, sums of so many terms with gates or without, and all that comes after them.
    void multiply(int count, const float* gates, const Item& item, const ChosenOutputs& output, float* scratch) const {
        const float* weight = conv.weight + item.group * group_floats(plan);
        if (gates) {
            multiply_points<true>(weight, count, gates, output, scratch);
        } else {
            multiply_points<false>(weight, count, nullptr, output, scratch);
        }
        for (int tile = 0; tile < output.count * output_tiles; tile += WIDTH) {
            transform_back(scratch + products + int64_t(tile) * TOGETHER, scratch + results + int64_t(tile) * OUT);
        }
        for (int i = 0; i < output.count; ++i) put_chosen(i, item, output, scratch);
        output.put_rest();
    }

    // What lies outside the image is 0: all around, set once, and the rows that the last tiles have too many.
    void clear_outside(const Item& item, float* plane, bool is_first) const {
        const int first = is_first ? 0 : item.rows + 2, end = is_first ? padded.rows + 1 : round_up(item.rows, OUT) + 2;
        memset(plane + int64_t(first) * padded.pitch, 0, sizeof(float) * (end - first) * padded.pitch);
    }

    // Of one tile, the channels that are left out take part as zeros: vectors hold channels in their order.
    INLINE void transform_inputs(const Item& item, const Planes& x, float* scratch) const {
        const int count = COUNT == ONE_TILE ? plan.inputs : item.kept;
        for (int first = 0, kept = 0; first < count; first += channels_at_once) {
            const int channels = smaller(channels_at_once, count - first);
            for (int i = 0; i < channels; ++i) {
                float* to = scratch + columns + i * tiles * OUT;
                if (COUNT == ONE_TILE && (kept == item.kept || item.channel(kept) != first + i)) {
                    UNROLL for (int row = 0; row < 2 * IN; ++row) store(to + row * column_row, Vec{});
                    continue;
                }
                const int channel = item.first_channel + item.channel(kept);
                const float* plane = x.data + item.image * x.image_stride + int64_t(channel) * x.height * x.width;
                padded.fill(conv, item, x, plane, Prepare(conv, item, kept, channel), scratch);
                transform_columns(item, scratch, to);
                ++kept;
            }
            float* to = scratch + inputs + int64_t(first) * tiles * TOGETHER;
            for (int tile = 0; tile < channels * tiles; tile += WIDTH) {
                transform_rows(scratch + columns + tile * OUT, to + tile * TOGETHER);
            }
        }
    }

    // Tiles overlap: besides its own columns each needs the first ones of the next tile, which are kept once more in
    // the same order. So in both, tiles follow each other without regard to where a row ends.
    void transform_columns(const Item& item, const float* plane, float* own) const {
        const int pixels = tiles_x * OUT;
        for (int row = 0; row < item.rows; row += OUT, own += pixels) {
            const float* from = plane + int64_t(row) * padded.pitch;
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

    template <bool GATED>
    void multiply_points(const float* weight, int count, const float* gates, const ChosenOutputs& output,
                         float* scratch) const {
        const Term* const all = reinterpret_cast<const Term*>(scratch + terms);
        WinnerFactors f = {nullptr, nullptr, int64_t(plan.inputs) * POINTS, all, count, gates};
        for (int group = 0; group < GROUPS; ++group) {
            float* x = scratch + inputs + group * input_group;
            if (COUNT == ONE_TILE) store(x + plan.inputs * 4, Vec{});  // what fills the last vector
            const int point = group * TOGETHER;
            f.x = x;
            f.weight = weight + int64_t(point / 4) * plan.inputs * 4 + point % 4;
            float* to = scratch + products + group * product_group;
            const int vectors = output_tiles * TOGETHER / WIDTH;
            multiply_winners<TOGETHER * PARTS, GATED>(f, output.channels, output.count, vectors, to);
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

    INLINE void put_chosen(int index, const Item& item, const ChosenOutputs& output, float* scratch) const {
        float* from = scratch + results + int64_t(index) * output_tiles * OUT;
        if (COUNT == ONE_TILE) {
            for (int row = 0; row < OUT; ++row, from += result_row) store(from, sum_lanes<OUT>(load(from)));
            from -= OUT * result_row;
        }
        output.put_chosen(index, item.rows, out_w, [&](int row) {
            return from + row % OUT * result_row + row / OUT * tiles_x * OUT;
        });
    }

    // Of four points, or of the four vectors in which they stand together, where the i-th lies.
    static INLINE int64_t place_of(int first_point, int i, int64_t group) {
        return TOGETHER == 4 ? first_point / 4 * group + i * WIDTH : (first_point + i) * group;
    }
};

template <class Body>
inline void with_winograd_tiles(const Conv& conv, const Plan& plan, int in_w, int out_w, Body body) {
    const int tiles = plan.rows / plan.tile * divide_up(out_w, plan.tile);
    if (tiles >= WIDTH) {
        body(WinogradTiles<MANY_TILES>(conv, plan, in_w, out_w));
    } else if (tiles > 1 || plan.groups != conv.groups) {
        body(WinogradTiles<FEW_TILES>(conv, plan, in_w, out_w));
    } else {
        body(WinogradTiles<ONE_TILE>(conv, plan, in_w, out_w));
    }
}

// [output][four points][channel][point].
inline void pack_winograd_tiles(const Conv& conv, const Plan& plan, const float* oihw, float* packed) {
    for (int row = 0; row < conv.out_channels; ++row, packed += int64_t(plan.taps) * plan.inputs) {
        const int output = first_output_of(plan, row / plan.outputs) + row % plan.outputs * plan.step;
        for (int channel = 0; channel < plan.inputs; ++channel) {
            float points[36];
            transform_kernel<4>(oihw + (int64_t(output) * plan.inputs + channel) * 9, points, 1);
            for (int point = 0; point < plan.taps; ++point) {
                packed[(int64_t(point / 4) * plan.inputs + channel) * 4 + point % 4] = points[point];
            }
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
