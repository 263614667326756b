// Convolution of which each image computes some outputs only: its winners. Here is the direct form, and how both forms
// finish their outputs; conv_winograd_tiles.h has the other one.
#pragma once

#include "conv_gather.h"
#include "conv_output.h"
#include "conv_winners_tile.h"

namespace dgconv::DGCONV_ISA {

// Of the winners of its image an item computes a share; of the outputs of its block it writes those that lost. Without
// winners it computes all of its outputs, which are few.
class ChosenOutputs {
  public:
    ChosenOutputs(const Conv& conv, const Plan& plan, const Item& item, const Winners* winners, const Output& output)
        : conv(conv), item(item), output(output) {
        channels = ALL;
        count = item.outputs;
        if (!winners) return;
        const int64_t image = int64_t(item.image) * conv.out_channels;
        all = winners->channels + image;
        all_end = all + winners->counts[item.image];
        const int block = item.first_output / plan.block;
        const int first = share(all_end - all, plan.blocks, block);
        count = share(all_end - all, plan.blocks, block + 1) - first;
        channels = all + first;
        boosts = winners->gates + image + first;
    }

    const int32_t* channels;  // the item's share, ascending
    int count;

    // Finishes winner `index`, whose results are rows of so many pixels; row r begins at row(r).
    template <class Row>
    void put_chosen(int index, int rows, int pixels, Row row) const {
        const int channel = channels[index];
        const float boost = boosts ? boosts[index] : 1;
        PlaneOutput plane = output.plane_of(channel - item.first_output);
        if (boosts) plane.bias = boost * plane.bias + conv.beta[channel];
        Vec total{};
        for (int r = 0; r < rows; ++r) {
            const float* from = row(r);
            total += put(plane, r * pixels, pixels, [&](int pixel) { return load(from + pixel) * boost; });
        }
        put_sum(channel, total);
    }

    void put_rest() const {
        if (!boosts) return;
        const int32_t* winner = all;
        for (int channel = item.first_output; channel < item.first_output + item.outputs; ++channel) {
            while (winner < all_end && *winner < channel) ++winner;
            if (winner < all_end && *winner == channel) continue;
            PlaneOutput plane = output.plane_of(channel - item.first_output);
            plane.bias = 0;
            put_sum(channel, put(plane, 0, item.pixels, [](int) { return Vec{}; }));
        }
    }

  private:
    template <class Get>
    static INLINE Vec put(const PlaneOutput& plane, int first, int pixels, Get get) {
        Vec total{};
        int pixel = 0;
        for (; pixel + WIDTH <= pixels; pixel += WIDTH) total += plane.put(first + pixel, get(pixel), WIDTH);
        if (pixel < pixels) total += plane.put(first + pixel, get(pixel), pixels - pixel);
        return total;
    }

    void put_sum(int channel, Vec total) const {
        if (output.wants_sums()) output.put_sum(channel - item.first_output, total);
    }

    const Conv& conv;
    const Item& item;
    const Output& output;
    const int32_t *all = nullptr, *all_end = nullptr;  // winners of the image
    const float* boosts = nullptr;
    static constexpr int32_t ALL[] = {0, 1, 2, 3, 4, 5, 6, 7};
    static_assert(WIDTH / 2 <= 8, "as many as a narrow group may have");
};

// The direct form, in its parts of the thread's scratch: a padded plane; the input as gathered; results,
// [winner][pixel]; the terms of the sums.
struct WinnersDirect {
    const Conv& conv;
    const PaddedPlane padded;
    const TapLayout layout;
    int64_t gathered, results, terms, total;

    WinnersDirect(const Conv& conv, const Plan& plan, int in_w, int out_w)
        : conv(conv), padded(conv, plan, in_w, out_w), layout(conv, plan, out_w) {
        gathered = padded.floats();
        results = gathered + layout.channel * plan.inputs + 2 * WIDTH;  // room to read past the end
        terms = results + int64_t(plan.block) * round_up(plan.rows * out_w, WIDTH);
        total = terms + 2 * int64_t(plan.inputs) * plan.taps;
    }

    // What lies outside the image is set to 0 once, by the thread's first item, and never written again.
    void run(const Plan& plan, const Item& item, const Planes& x, const ChosenOutputs& output, float* scratch,
             bool is_first) const {
        if (is_first) memset(scratch, 0, sizeof(float) * padded.floats());
        gather(conv, padded, layout, item, x, scratch, scratch + gathered);
        Term* const all = reinterpret_cast<Term*>(scratch + terms);
        Term* term = all;
        for (int index = 0; index < item.kept; ++index) {
            for (int tap = 0; tap < plan.taps; ++tap, ++term) {
                const int64_t place = layout.offset(conv, tap / conv.kernel_w, tap % conv.kernel_w);
                term->x = static_cast<int32_t>(index * layout.channel + place);
                term->weight = item.channel(index) * plan.taps + tap;
            }
        }
        const WinnerFactors f = {scratch + gathered, conv.weight, int64_t(plan.inputs) * plan.taps, all,
                                 item.kept * plan.taps, nullptr};
        const int vectors = divide_up(item.pixels, WIDTH);
        multiply_winners<1>(f, output.channels, output.count, vectors, scratch + results);
        for (int i = 0; i < output.count; ++i) {
            const float* from = scratch + results + int64_t(i) * vectors * WIDTH;
            output.put_chosen(i, 1, item.pixels, [&](int) { return from; });
        }
        output.put_rest();
    }
};

// A row for each output, [channel][tap], as they are.
inline void pack_winners(const Plan& plan, const float* oihw, float* packed) {
    memcpy(packed, oihw, sizeof(float) * group_floats(plan));
}

}  // namespace dgconv::DGCONV_ISA
