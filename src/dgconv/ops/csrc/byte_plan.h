// How a convolution of bytes is cut, and where its weights lie.
//
// Of what a result is the sum of, the bytes that lie one behind the other in memory are a run: the channels of one tap,
// or of all taps of a row. A run is taken GROUP bytes at a time; its last group may have some of weight zero. By tiles it
// is taken several groups at a time, in steps of one length, and its last groups may be of weight zero.
#pragma once

#include "byte_vec.h"

namespace dgconv::DGCONV_ISA {

constexpr int32_t MOST_BYTE_CHANNELS = 1 << 14;
constexpr int MOST_PANEL = LANES == 16 ? 4 : 2;  // vectors of outputs that are computed at once
#if defined(DGCONV_TILES)
constexpr int MOST_STEP = 16;  // groups that are taken at a time
#else
constexpr int MOST_STEP = 1;
#endif
constexpr int64_t GATHERED_BYTES = 64 << 10;     // of an item's input, for the first- or second-level cache

struct BytePlan {
    int units;                // groups, or several that share a vector
    int outputs, vectors;     // of a group
    int runs, run_taps;       // run_taps of the taps make a run
    bool is_pointwise;

    explicit BytePlan(const ByteConv& conv) {
        units = conv.joined > 1 ? divide_up(conv.groups, conv.joined) : conv.groups;
        outputs = conv.out_channels / conv.groups;
        vectors = divide_up(outputs, LANES);
        const bool are_joined = conv.dilation_w == 1;
        run_taps = are_joined ? conv.kernel_w : 1;
        runs = conv.kernel_h * conv.kernel_w / run_taps;
        is_pointwise = conv.kernel_h == 1 && conv.kernel_w == 1 && !conv.pad_top && !conv.pad_left;
    }

    int taps() const { return runs * run_taps; }
    int padded_outputs() const { return vectors * LANES; }
    // Of so many channels: steps of a run, their groups, and the groups of a run and of all runs.
    int steps_of(int channels) const { return divide_up(divide_up(run_taps * channels, GROUP), MOST_STEP); }
    int step_of(int channels) const {
        return divide_up(divide_up(run_taps * channels, GROUP), larger(steps_of(channels), 1));
    }
    int run_groups(int channels) const { return steps_of(channels) * step_of(channels); }
    int64_t groups_of(int channels) const { return int64_t(runs) * run_groups(channels); }
    int64_t weights_of(int channels) const { return groups_of(channels) * GROUP * padded_outputs(); }

    // Outputs come in panels of MOST_PANEL vectors, and at the end fewer: [panel][group][vector][lane][byte of the group]
    INLINE int panel_at(int vector) const {
        const int left = vectors - vector;
        return left >= MOST_PANEL ? MOST_PANEL : left >= 2 ? 2 : 1;
    }
    INLINE int first_of_panel(int vector) const {
        int first = 0;
        while (first + panel_at(first) <= vector) first += panel_at(first);
        return first;
    }
    INLINE int64_t place_of(int vector, int64_t group, int64_t groups) const {
        const int first = first_of_panel(vector);
        return ((first * groups) + group * panel_at(first) + (vector - first)) * LANES * GROUP;
    }
};

}  // namespace dgconv::DGCONV_ISA
