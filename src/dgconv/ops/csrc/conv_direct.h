// Direct convolution: sums over channels and taps of gathered input times weight, in two forms that differ in what a
// vector holds.
#pragma once

#include "ahead.h"
#include "conv_gather.h"
#include "conv_output.h"
#include "conv_tile.h"

namespace dgconv::DGCONV_ISA {

// The part of the thread's scratch that each thing takes, in floats from its start.
struct DirectScratch {
    int64_t plane, gathered, weights, totals, block, taps, total;
    int block_stride;  // between the pixels of a block

    DirectScratch(const Conv& conv, const Plan& plan, const PaddedPlane& padded, const TapLayout& layout) {
        block_stride = round_up(plan.block, WIDTH);
        plane = 0;
        gathered = plane + padded.floats();
        weights = gathered + layout.channel * plan.inputs + 2 * PANEL;  // room to read past the end
        totals = weights + (plan.form == PIXEL_LANES && conv.dynamic ? int64_t(plan.block) * plan.inputs + PANEL : 0);
        block = totals + plan.block * WIDTH;
        taps = block + block_stride * (plan.form == OUTPUT_LANES ? int64_t(plan.rows) * layout.width : WIDTH);
        total = taps + plan.taps;
    }
};

// One factor of the product: channel `index` lies `channel` floats behind the one before or, if some are chosen, at
// their places.
struct Factor {
    const float* data;
    int64_t channel;
    const int32_t* chosen;

    INLINE const float* at(int index) const { return data + channel * (chosen ? chosen[index] : index); }
};

// What a tile of the product reads: pixels at each tap, weights [channel][tap][weights_of_tap].
struct Factors {
    Factor x, weight;
    const int32_t* tap_offsets;
    int taps, kept, weights_of_tap;
    const float* following;  // weights that come next, to be fetched now, or null
    Ahead* ahead;
};

INLINE Lines lines_of(const Factors& f) {
    if (f.following) return {f.following, Lines::PER_CHANNEL * LINE};
    return take_lines(f.ahead, f.kept);
}

// Outputs in the lanes: PIXELS pixels of VECTORS vectors of outputs, written to [pixels][stride]. Few of them are summed
// up in several parts: else each sum would wait for the one before.
template <int PIXELS, int VECTORS>
void output_tile(const Factors& f, int pixel, float* block, int stride) {
    constexpr int PARTS = PIXELS * VECTORS < 4 ? 4 : 1;
    Vec acc[PARTS][PIXELS][VECTORS] = {};
    Lines lines = lines_of(f);
    for (int first = 0; first < f.kept; first += PARTS) {
        UNROLL for (int part = 0; part < PARTS; ++part) {
            const int index = first + part;
            if (index == f.kept) break;
            const float *x = f.x.at(index) + pixel, *w = f.weight.at(index);
            lines.fetch();
            const int64_t ahead = f.weight.at(smaller(index + PARTS, f.kept - 1)) - w;
            for (int tap = 0; tap < f.taps; ++tap, w += VECTORS * WIDTH) {
                prefetch<VECTORS>(w + ahead);
                multiply_add<PIXELS, VECTORS, 1>(acc[part], x + f.tap_offsets[tap], w);
            }
        }
    }
    UNROLL for (int i = 0; i < PIXELS; ++i) {
        UNROLL for (int j = 0; j < VECTORS; ++j) {
            UNROLL for (int part = 1; part < PARTS; ++part) acc[0][i][j] += acc[part][i][j];
            store(block + i * stride + j * WIDTH, acc[0][i][j]);
        }
    }
}

// Pixels in the lanes: OUTPUTS outputs of VECTORS vectors of pixels, handed to `output` as `to` says.
struct PixelPlace {
    int output, pixel, pixels;
    float* totals;
};
template <int OUTPUTS, int VECTORS, bool IS_ONE_TAP>
void pixel_tile(const Factors& f, int x_pixel, int first_weight, const Output& output, const PixelPlace& to) {
    Vec acc[OUTPUTS][VECTORS] = {};
    Lines lines = lines_of(f);
    const Factor all_x = {f.x.data + x_pixel, f.x.channel, f.x.chosen};
    const Factor weight = {f.weight.data + first_weight, f.weight.channel, f.weight.chosen};
    const int kept = f.kept, taps = IS_ONE_TAP ? 1 : f.taps;
    if (IS_ONE_TAP && !all_x.chosen && !weight.chosen) {  // in equal steps, which the CPU foresees
        const float *x = all_x.data, *w = weight.data;
        for (int index = 0; index < kept; ++index, x += all_x.channel, w += weight.channel) {
            lines.fetch();
            multiply_add<OUTPUTS, VECTORS, 1>(acc, w, x);
        }
    } else {
        for (int index = 0; index < kept; ++index) {
            const float *x = all_x.at(index), *w = weight.at(index);
            prefetch<VECTORS>(all_x.at(smaller(index + 4, kept - 1)));
            lines.fetch();
            for (int tap = 0; tap < taps; ++tap, w += f.weights_of_tap) {
                multiply_add<OUTPUTS, VECTORS, 1>(acc, w, IS_ONE_TAP ? x : x + f.tap_offsets[tap]);
            }
        }
    }
    output.put_tile(to.output, to.pixel, acc, to.pixels, to.totals);
}

typedef void (*OutputTile)(const Factors&, int, float*, int);
typedef void (*PixelTile)(const Factors&, int, int, const Output&, const PixelPlace&);

// All sizes of a tile, so that any number of pixels or outputs is cut into nearly equal tiles.
template <size_t... size>
OutputTile output_tile_of(int pixels, int vectors, std::index_sequence<size...>) {
    static constexpr OutputTile one[] = {output_tile<size + 1, 1>...}, two[] = {output_tile<size / 2 + 1, 2>...};
    return vectors == 1 ? one[pixels - 1] : two[2 * (pixels - 1)];
}
template <int VECTORS, size_t... size>
PixelTile pixel_tile_of(int outputs, bool is_one_tap, std::index_sequence<size...>) {
    static constexpr PixelTile one_tap[] = {pixel_tile<size + 1, VECTORS, true>...},
                               tiles[] = {pixel_tile<size + 1, VECTORS, false>...};
    return is_one_tap ? one_tap[outputs - 1] : tiles[outputs - 1];
}
constexpr int MOST_VECTORS = 3;
// As many outputs as there are registers for.
constexpr int most_outputs(int vectors) { return vectors == 1 ? TILE : 2 * TILE / vectors; }
template <int VECTORS>
PixelTile pixel_tile_of(int outputs, bool is_one_tap) {
    return pixel_tile_of<VECTORS>(outputs, is_one_tap, std::make_index_sequence<most_outputs(VECTORS)>());
}
INLINE PixelTile pixel_tile_of(int outputs, int vectors, bool is_one_tap) {
    if (vectors == 1) return pixel_tile_of<1>(outputs, is_one_tap);
    return vectors == 2 ? pixel_tile_of<2>(outputs, is_one_tap) : pixel_tile_of<MOST_VECTORS>(outputs, is_one_tap);
}

// One item of a direct convolution.
class Direct {
  public:
    Direct(const Conv& conv, const Plan& plan, const Item& item, const Planes& x, int out_w, const Output& output,
           float* scratch, Ahead* ahead)
        : conv(conv), plan(plan), item(item), x(x), output(output), padded(conv, plan, x.width, out_w),
          layout(conv, plan, out_w), part(conv, plan, padded, layout), scratch(scratch) {
        f.ahead = ahead;
    }

    // What lies outside the image is set to 0 once, by the thread's first item, and never written again.
    void run(bool is_first) {
        if (is_first) memset(scratch + part.plane, 0, sizeof(float) * padded.floats());
        int32_t* taps = reinterpret_cast<int32_t*>(scratch + part.taps);
        for (int row = 0; row < conv.kernel_h; ++row) {
            for (int column = 0; column < conv.kernel_w; ++column) {
                taps[row * conv.kernel_w + column] = static_cast<int32_t>(layout.offset(conv, row, column));
            }
        }
        f.tap_offsets = taps;
        f.taps = plan.taps;
        f.kept = item.kept;
        if (plan.form == PIXEL_LANES && !conv.in_scale && is_flat(conv, item, x, layout.width)) {
            multiply_in_place();
            return;
        }
        gather(conv, padded, layout, item, x, scratch + part.plane, scratch + part.gathered);
        f.x = {scratch + part.gathered, layout.channel, nullptr};
        multiply(plan.form == OUTPUT_LANES ? 0 : item.pixels, nullptr);
    }

  private:
    // Weights of the panel that starts at output `first` of the item.
    void take_panel(int first, const float* scaled) {
        f.weights_of_tap = panel_width(plan, item.first_output + first);
        const int64_t channel = int64_t(plan.taps) * f.weights_of_tap;
        if (scaled) {
            f.weight = {scaled + int64_t(first) * item.kept, channel, nullptr};
        } else {
            f.weight = {panel_of(conv, plan, item.group, item.first_output + first), channel, item.channels};
        }
    }

    // The panel of outputs from `first` on, that was taken, for pixels from `begin` on. Of a narrow group it is read past
    // its end.
    void multiply_output_lanes(int first, int begin) {
        float* block = scratch + part.block;
        const int pixels = item.pixels - begin, vectors = divide_up(f.weights_of_tap, WIDTH);
        const int tiles = divide_up(pixels, vectors == 1 ? 2 * TILE : TILE);
        for (int tile = 0; tile < tiles; ++tile) {
            const int pixel = share(pixels, tiles, tile), end = share(pixels, tiles, tile + 1);
            const OutputTile run = output_tile_of(end - pixel, vectors, std::make_index_sequence<2 * TILE>());
            run(f, begin + pixel, block + int64_t(pixel) * part.block_stride + first, part.block_stride);
        }
    }
    void put_output_lanes(int begin) {
        const float* totals = scratch + part.totals;
        output.put_transposed(scratch + part.block, part.block_stride, item.outputs, begin, item.pixels, totals);
    }

    // How many vectors of pixels make the largest tile, its outputs being an equal part of all.
    static int vectors_at_once(int outputs, int pixels) {
        int best = 1, largest = 0;
        for (int vectors = 1; vectors <= smaller(MOST_VECTORS, divide_up(pixels, WIDTH)); ++vectors) {
            const int tiles = divide_up(outputs, most_outputs(vectors)), size = 64 * vectors * outputs / tiles;
            if (size > largest) best = vectors, largest = size;
        }
        return best;
    }

    // The same for pixels up to `end`. Outputs are outside the loop over pixels, so that few planes are written at a time.
    void multiply_pixel_lanes(int panel, int end) {
        const int outputs = smaller(PANEL, item.outputs - panel), at_once = vectors_at_once(outputs, end);
        const int tiles = divide_up(outputs, most_outputs(at_once));
        for (int tile = 0; tile < tiles; ++tile) {
            const int first = share(outputs, tiles, tile), last = share(outputs, tiles, tile + 1);
            float* totals = scratch + part.totals + (panel + first) * WIDTH;
            for (int pixel = 0; pixel < end; pixel += at_once * WIDTH) {
                const int vectors = smaller(at_once, divide_up(end - pixel, WIDTH));
                const PixelTile run = pixel_tile_of(last - first, vectors, f.taps == 1);
                run(f, pixel, first, output, {panel + first, pixel, end - pixel, totals});
                f.following = nullptr;  // is fetched once
            }
        }
    }

    // 1x1 without a norm reads the planes where they are; gates go into the weights, which are fewer. The last pixels,
    // too few for a vector, have outputs in the lanes instead.
    void multiply_in_place() {
        const float* scaled = item.gates ? scale_weights() : nullptr;
        const int64_t plane = int64_t(x.height) * x.width;
        const float* from = x.data + item.image * x.image_stride + item.first_channel * plane +
                            int64_t(item.first_row) * x.width;
        f.x = {from, plane, item.channels};
        multiply(item.pixels / WIDTH * WIDTH, scaled);
    }

    // With pixels in the lanes up to `middle`, and with outputs from there on: panel by panel, whose weights are then
    // still in the cache.
    void multiply(int middle, const float* scaled) {
        clear_totals();
        for (int panel = 0; panel < item.outputs; panel += PANEL) {
            take_panel(panel, scaled);
            if (f.taps == 1 && !scaled && !item.channels) f.following = f.weight.at(f.kept);
            if (middle > 0) multiply_pixel_lanes(panel, middle);
            if (middle < item.pixels) multiply_output_lanes(panel, middle);
        }
        middle < item.pixels ? put_output_lanes(middle) : put_totals();
    }

    // The weights of the kept channels, side by side, times their gates.
    const float* scale_weights() {
        constexpr int FETCH_AHEAD = 12;  // channels: memory may be that slow
        float* to = scratch + part.weights;
        for (int first = 0; first < item.outputs; first += PANEL) {
            take_panel(first, nullptr);
            for (int index = 0; index < item.kept; ++index, to += f.weights_of_tap) {
                const float* from = f.weight.at(index);
                prefetch<PANEL / WIDTH>(f.weight.at(smaller(index + FETCH_AHEAD, item.kept - 1)));
                const float gate = item.gates[index];
                for (int i = 0; i < f.weights_of_tap; i += WIDTH) store(to + i, load(from + i) * gate);
            }
        }
        return scratch + part.weights;
    }

    void clear_totals() { memset(scratch + part.totals, 0, sizeof(float) * item.outputs * WIDTH); }
    void put_totals() {
        if (!output.wants_sums()) return;
        for (int i = 0; i < item.outputs; ++i) output.put_sum(i, load(scratch + part.totals + i * WIDTH));
    }

    const Conv& conv;
    const Plan& plan;
    const Item& item;
    const Planes& x;
    const Output& output;
    const PaddedPlane padded;
    const TapLayout layout;
    const DirectScratch part;
    float* const scratch;
    Factors f{};
};

inline int64_t direct_scratch_floats(const Conv& conv, const Plan& plan, int in_w, int out_w) {
    return DirectScratch(conv, plan, PaddedPlane(conv, plan, in_w, out_w), TapLayout(conv, plan, out_w)).total;
}

// As in conv_plan.h; `plan.padded_outputs` beyond the group's are 0.
inline void pack_direct(const Conv& conv, const Plan& plan, const float* oihw, float* packed) {
    for (int group = 0; group < conv.groups; ++group) {
        const int first = first_output_of(plan, group);
        for (int panel = 0; panel < plan.padded_outputs; panel += PANEL) {
            const int width = panel_width(plan, panel);
            for (int channel = 0; channel < plan.inputs; ++channel) {
                for (int tap = 0; tap < plan.taps; ++tap) {
                    for (int lane = 0; lane < width; ++lane) {
                        const int output = panel + lane;
                        const int64_t from = int64_t(first + output * plan.step) * plan.inputs + channel;
                        *packed++ = output < plan.outputs ? oihw[from * plan.taps + tap] : 0;
                    }
                }
            }
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
