// Convolution of bytes: gathers the input of an item and multiplies it, outputs in the lanes, by packed weights.
#pragma once

#if defined(DGCONV_TILES)
#include "byte_amx.h"
#endif
#include "byte_depthwise.h"
#include "byte_fold.h"
#include "byte_joined.h"

namespace dgconv::DGCONV_ISA {

constexpr int SHORT_ROW = LANES == 16 ? 7 : 6;  // pixels; what is shorter is gathered window by window

// VECTORS of outputs for PIXELS neighbours.
template <int VECTORS, int PIXELS>
INLINE void multiply_tile(const uint8_t* x, int64_t step, const Run* runs, int run_count, const Weight* w,
                          const ByteOutput& output) {
    IntVec sums[PIXELS][VECTORS];
    UNROLL for (int v = 0; v < VECTORS; ++v) {
        const IntVec start = load(output.start + v * LANES);
        UNROLL for (int p = 0; p < PIXELS; ++p) sums[p][v] = start;
    }
    for (int run = 0; run < run_count; ++run) {
        const uint8_t* from = x + runs[run].offset;
        for (int64_t group = runs[run].groups; group > 0; --group) {
            // If sums leave no register for the last weights, these are read where they lie.
            constexpr int KEPT = VECTORS * PIXELS + VECTORS + 1 > REGISTERS ? VECTORS - 1 : VECTORS;
            decltype(load_weights(w)) weights[KEPT];
            UNROLL for (int v = 0; v < KEPT; ++v) weights[v] = load_weights(w + v * LANES * GROUP);
            UNROLL for (int p = 0; p < PIXELS; ++p) {
                const Four bytes = spread(from + p * step);
                UNROLL for (int v = 0; v < KEPT; ++v) sums[p][v] = dot(sums[p][v], bytes, weights[v]);
                UNROLL for (int v = KEPT; v < VECTORS; ++v) {
                    sums[p][v] = dot_in_place(sums[p][v], bytes, w + v * LANES * GROUP);
                }
            }
            from += GROUP;
            w += VECTORS * LANES * GROUP;
        }
    }
    Vec multipliers[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; ++v) multipliers[v] = load(output.multiplier + v * LANES) * output.unit;
    UNROLL for (int p = 0; p < PIXELS; ++p) output.put(p, sums[p], multipliers);
}

// A row of neighbours, in tiles of as many as fit in registers, and at the end fewer.
template <int VECTORS, int PIXELS>
INLINE void multiply_row(const uint8_t* x, int64_t step, int count, const Run* runs, int run_count, const Weight* w,
                         const ByteOutput& output, Ahead* ahead, int64_t lines) {
    int done = 0;
    for (; done + PIXELS <= count; done += PIXELS) {
        fetch(ahead, lines);
        multiply_tile<VECTORS, PIXELS>(x + done * step, step, runs, run_count, w, output.at(done));
    }
    if constexpr (PIXELS > 1) {
        constexpr int FEWER = PIXELS > 7 ? PIXELS / 2 : PIXELS > 4 ? 4 : PIXELS / 2;
        if (done < count) {
            multiply_row<VECTORS, FEWER>(x + done * step, step, count - done, runs, run_count, w, output.at(done),
                                        ahead, lines);
        }
    }
}

template <int VECTORS>
inline void multiply_panel(const Gathered& x, const Run* runs, int run_count, const Weight* w, const ByteOutput& output,
                           Ahead* ahead) {
    const int64_t lines = runs[0].groups * run_count;  // a line in the time of a group, which is about what memory can do
    // Of 8, 16 or 32 columns the largest tiles would leave a few, in which one product waits for the one before it.
    constexpr int LARGEST = SUMS / VECTORS, EVEN = LANES == 16 ? 16 / VECTORS : LARGEST;
    const bool is_even = x.columns % EVEN == 0 && x.columns % LARGEST != 0 && x.columns <= 64;
    for (int row = 0; row < x.rows; ++row) {
        const uint8_t* const from = x.data + row * x.row_step;
        const ByteOutput to = output.at(int64_t(row) * x.columns);
        if (is_even)
            multiply_row<VECTORS, EVEN>(from, x.step, x.columns, runs, run_count, w, to, ahead, lines);
        else
            multiply_row<VECTORS, LARGEST>(from, x.step, x.columns, runs, run_count, w, to, ahead, lines);
    }
}

// How the work on one image is cut into items: some rows and some panels of the outputs of one group.
struct ByteItems {
    int rows, chunks, splits;
    bool by_window, in_place;

    static int64_t bytes_of(const ByteConv& conv, const BytePlan& plan, int rows, int out_w, int count, bool by_window) {
        if (by_window) return int64_t(rows) * out_w * plan.taps() * count;
        return rows_read(conv, rows) * columns_read(conv, out_w) * count;
    }

    // Groups that share a vector find theirs in whole pixels.
    static int most_inputs(const ByteConv& conv) {
        return conv.chooses ? conv.most_chosen : conv.joined > 1 ? conv.in_channels : conv.in_channels / conv.groups;
    }

    // Whole rows are as good as one for tiles if neighbours are as far apart as in the image.
    static int shortest_row(const ByteConv& conv) {
#if defined(DGCONV_TILES)
        if (conv.stride_h == 1 && conv.stride_w == 1) return 4;
        if (!conv.chooses) return 13;
#else
        static_cast<void>(conv);
#endif
        return SHORT_ROW;
    }

    ByteItems(const ByteConv& conv, const BytePlan& plan, int in_h, int in_w, int out_h, int out_w, int threads) {
        const int count = most_inputs(conv);
        // Padding at the bottom or to the right may be more than at the top.
        const bool is_inside = int64_t(out_h - 1) * conv.stride_h < in_h && int64_t(out_w - 1) * conv.stride_w < in_w;
        in_place = plan.is_pointwise && !conv.chooses && conv.joined <= 1 && is_inside;
        by_window = !plan.is_pointwise && conv.joined <= 1 && out_w < shortest_row(conv);
        const int64_t one = bytes_of(conv, plan, 1, out_w, count, by_window);
        const int64_t next = bytes_of(conv, plan, 2, out_w, count, by_window) - one;
        const int64_t room = GATHERED_BYTES - one;
        rows = room <= 0 || !next ? 1 : room / next + 1 < out_h ? int(room / next) + 1 : out_h;
        const int wanted = threads == 1 ? 1 : divide_up(3 * threads, plan.units);
        chunks = larger(divide_up(out_h, rows), smaller(wanted, divide_up(out_h, by_window ? 2 : 1)));
        rows = divide_up(out_h, chunks);
        chunks = divide_up(out_h, rows);
        const int panels = divide_up(plan.vectors, MOST_PANEL);
        splits = threads == 1 ? 1 : smaller(panels, divide_up(wanted, chunks));
    }

    int64_t count(const BytePlan& plan) const { return int64_t(plan.units) * splits * chunks; }
};

constexpr int64_t SLACK = 256;  // bytes that may be read or written beyond the last

constexpr char NOTHING[64] = {};  // where there is no choice

inline int64_t conv_scratch_bytes(const ByteConv& conv, int32_t in_h, int32_t in_w, int32_t out_h, int32_t out_w) {
    if (conv.is_depthwise) return 0;
    if (folds(conv)) return conv_scratch_bytes(without_gates(conv), in_h, in_w, out_h, out_w);
    const BytePlan plan(conv);
    const ByteItems items(conv, plan, in_h, in_w, out_h, out_w, 1);
    const int count = ByteItems::most_inputs(conv);
    const int64_t bytes = items.in_place ? 0 : ByteItems::bytes_of(conv, plan, items.rows, out_w, count, items.by_window);
    return whole_lines(int64_t(sizeof(Run)) * plan.taps()) + whole_lines(bytes + SLACK);
}

inline int64_t packed_bytes(const ByteConv& conv) {
    if (conv.is_depthwise) return depthwise_packed_bytes(conv);
    if (folds(conv)) return packed_bytes(without_gates(conv));
    const BytePlan plan(conv);
#if defined(DGCONV_JOINS)
    if (conv.joined > 1) return joined_packed_bytes(conv);
#endif
    if (conv.chooses) return int64_t(conv.groups) * plan.taps() * conv.in_channels * plan.padded_outputs() + SLACK;
    return conv.groups * plan.weights_of(conv.in_channels / conv.groups) * int64_t(sizeof(Weight));
}

inline void pack_weights(const ByteConv& conv, const int8_t* weight, void* packed) {
    if (folds(conv)) return pack_weights(without_gates(conv), weight, packed);
    memset(packed, 0, packed_bytes(conv));
    if (conv.is_depthwise) return pack_depthwise(conv, weight, packed);
#if defined(DGCONV_JOINS)
    if (conv.joined > 1) return pack_joined(conv, weight, packed);
#endif
    const BytePlan plan(conv);
    const int inputs = conv.chooses ? conv.in_channels : conv.in_channels / conv.groups, taps = plan.taps();
    const int64_t groups = plan.groups_of(inputs), run_groups = groups / plan.runs;
    for (int o = 0; o < conv.out_channels; ++o) {
        const int group = o / plan.outputs, output = o % plan.outputs;
        for (int c = 0; c < inputs; ++c) {
            for (int tap = 0; tap < taps; ++tap) {
                const int8_t w = weight[(int64_t(o) * inputs + c) * taps + tap];
                if (conv.chooses) {
                    const int64_t row = (int64_t(group) * taps + tap) * inputs + c;
                    static_cast<int8_t*>(packed)[row * plan.padded_outputs() + output] = w;
                    continue;
                }
                const int run = tap / plan.run_taps, at = tap % plan.run_taps * inputs + c;
                const int64_t place = plan.place_of(output / LANES, run * run_groups + at / GROUP, groups);
                Weight* to = static_cast<Weight*>(packed) + group * plan.weights_of(inputs);
                to[place + output % LANES * GROUP + at % GROUP] = w;
            }
        }
    }
}

inline void convolve(const ByteConv& conv, const void* choices, const void* chosen, Pixels x, Pixels y,
                     const Pixels* residual, void* scratch, Ahead* ahead, int rank, int threads) {
    if (conv.is_depthwise) return depthwise(conv, x, y, residual, ahead, rank, threads);
    if (folds(conv)) {
        ByteConv plain = without_gates(conv);
        const Folded folded(conv, BytePlan(plain), const_cast<void*>(choices));
        plain.weight = folded.weights, plain.start = folded.start, plain.multiplier = folded.multiplier;
        return convolve(plain, nullptr, nullptr, x, y, residual, scratch, ahead, rank, threads);
    }
    const BytePlan plan(conv);
    const ByteItems items(conv, plan, x.height, x.width, y.height, y.width, threads);
    const int64_t choice_size = choice_bytes(conv), chosen_size = conv.chooses ? chosen_bytes(conv) : 0;
    Run* const runs = static_cast<Run*>(scratch);
    uint8_t* const buffer = static_cast<uint8_t*>(scratch) + whole_lines(int64_t(sizeof(Run)) * plan.taps());
    const Share share = share_of(items.count(plan), rank, threads);
    const int panels = divide_up(plan.vectors, MOST_PANEL);
#if defined(DGCONV_TILES)
    Tiles tiles;
#endif
    for (int64_t index = share.begin; index < share.end; ++index) {
        const int chunk = index % items.chunks, split = index / items.chunks % items.splits;
        const int unit = int(index / items.chunks / items.splits), group = unit * larger(conv.joined, 1);
        const int first_row = chunk * items.rows, rows = smaller(items.rows, y.height - first_row);
        const int inputs = conv.in_channels / conv.groups, first_output = group * plan.outputs;
        PixelReader reader{inputs, group * inputs, nullptr, conv.input_zero, conv.in_channels};
        ByteOutput output{conv.start + first_output, conv.multiplier + first_output, conv.bias + first_output, 1.0f,
                          conv.result, pixel_of(y, first_row, 0) + first_output,
                          residual ? pixel_of(*residual, first_row, 0) + first_output : nullptr, y.pixel_stride,
                          residual ? residual->pixel_stride : 0, conv.residual_scale, plan.outputs};
#if defined(DGCONV_JOINS)
        if (conv.joined > 1) {
            reader.first = 0, reader.count = conv.in_channels;
            output.count = smaller(conv.joined * plan.outputs, conv.out_channels - first_output);
            const Gathered whole = gather_rows(conv, reader, x, first_row, rows, y.width, buffer, runs);
            convolve_joined(conv, whole, unit, output, runs, ahead);
            continue;
        }
#endif
        const Weight* weights = static_cast<const Weight*>(conv.weight) + group * plan.weights_of(inputs);
        const Choice choice(conv, conv.chooses ? static_cast<const char*>(choices) + group * choice_size : NOTHING);
        if (conv.chooses) {
            const Chosen packed(conv, plan, static_cast<const char*>(chosen) + group * chosen_size);
            reader.count = choice.count, reader.choice = &choice;
            output.start = packed.start, output.unit = choice.unit;
            weights = packed.weights;
        }
        Gathered gathered;
        if (items.in_place) {
            const uint8_t* from = pixel_of(x, int64_t(first_row) * conv.stride_h, 0) + reader.first;
            const bool is_one_row = conv.stride_h == 1 && conv.stride_w == 1;
            gathered = {from, conv.stride_w * x.pixel_stride, conv.stride_h * int64_t(x.width) * x.pixel_stride,
                        is_one_row ? 1 : rows, is_one_row ? rows * y.width : y.width};
            runs[0] = {0, plan.run_groups(inputs)};
        } else if (items.by_window) {
            gathered = gather_windows(conv, reader, x, first_row, rows, y.width, buffer, runs);
        } else {
            gathered = gather_rows(conv, reader, x, first_row, rows, y.width, buffer, runs);
        }
        const int64_t groups = plan.groups_of(reader.count);
        const int first = panels * split / items.splits * MOST_PANEL;
        const int end = smaller(plan.vectors, panels * (split + 1) / items.splits * MOST_PANEL);
#if defined(DGCONV_TILES)
        const int step = plan.step_of(reader.count);
        if (suits_tiles(gathered, step)) {
            convolve_tiles(tiles, plan, gathered, runs, weights, step, first, end, output, ahead);
            continue;
        }
#endif
        for (int vector = first; vector < end;) {
            const int panel = plan.panel_at(vector);
            const ByteOutput part = output.from(vector * LANES);
            const Weight* w = weights + plan.place_of(vector, 0, groups);
            if (panel == 1) multiply_panel<1>(gathered, runs, plan.runs, w, part, ahead);
            if (panel == 2) multiply_panel<2>(gathered, runs, plan.runs, w, part, ahead);
            if constexpr (MOST_PANEL > 2)
                if (panel == MOST_PANEL) multiply_panel<MOST_PANEL>(gathered, runs, plan.runs, w, part, ahead);
            vector += panel;
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
