// Convolution of bytes in narrow groups, several of which share a vector of outputs: every lane takes the bytes of its own
// group. Computed one by one, each group would use a part of a vector and take the time of a whole one.
#pragma once

#include <algorithm>
#include <vector>

#include "byte_gather.h"
#include "byte_output.h"

namespace dgconv::DGCONV_ISA {

#if defined(__AVX512VBMI__)
#define DGCONV_JOINS 1
constexpr int REACH = 64;  // bytes out of which a vector is picked

// Where in a pixel a group finds its inputs, ascending.
inline std::vector<int> places_of_group(const ByteConv& conv, int group) {
    std::vector<int> places(conv.in_channels / conv.groups);
    for (int i = 0; i < int(places.size()); ++i) {
        const int channel = group * int(places.size()) + i;
        places[i] = conv.positions ? conv.positions[channel] : channel;
    }
    std::sort(places.begin(), places.end());
    return places;
}

// A unit is what shares a vector: groups that follow each other. Of each it takes GROUP inputs at a time.
struct JoinedPlan {
    int inputs, outputs;  // of a group
    int quads, units, taps;

    explicit JoinedPlan(const ByteConv& conv) {
        inputs = conv.in_channels / conv.groups, outputs = conv.out_channels / conv.groups;
        quads = divide_up(inputs, GROUP), units = divide_up(conv.groups, conv.joined);
        taps = conv.kernel_h * conv.kernel_w;
    }
    int64_t weights_bytes() const { return int64_t(taps) * quads * REACH; }
    int64_t unit_bytes() const { return weights_bytes() + quads * REACH + whole_lines(quads * int64_t(sizeof(int32_t))); }
};

// Of a unit: [quad][byte], which of REACH bytes it is; [quad], where these begin in a pixel; weights [tap][quad][lane][4].
struct JoinedWeights {
    uint8_t* places;
    int32_t* first;
    Weight* weights;

    JoinedWeights(const JoinedPlan& plan, const void* packed, int unit) {
        places = static_cast<uint8_t*>(const_cast<void*>(packed)) + unit * plan.unit_bytes();
        weights = reinterpret_cast<Weight*>(places + plan.quads * REACH);
        first = reinterpret_cast<int32_t*>(weights + plan.weights_bytes());
    }
};

// How many groups may share a vector: what they take at a time lies within REACH.
inline int32_t joined_groups(const ByteConv& conv) {
    if (conv.chooses || conv.is_depthwise || conv.groups == 1) return 1;
    std::vector<std::vector<int>> places;
    for (int group = 0; group < conv.groups; ++group) places.push_back(places_of_group(conv, group));
    for (int joined = smaller(LANES / (conv.out_channels / conv.groups), conv.groups); joined > 1; --joined) {
        bool fits = true;
        for (int group = 0; group < conv.groups && fits; group += joined) {
            for (size_t i = 0; i < places[0].size() && fits; i += GROUP) {
                int least = conv.in_channels, most = 0;
                for (int g = group; g < smaller(group + joined, conv.groups); ++g) {
                    least = smaller(least, places[g][i]);
                    most = larger(most, places[g][std::min(i + GROUP, places[g].size()) - 1]);
                }
                fits = most - least < REACH;
            }
        }
        if (fits) return joined;
    }
    return 1;
}

inline int64_t joined_packed_bytes(const ByteConv& conv) {
    const JoinedPlan plan(conv);
    return plan.units * plan.unit_bytes();
}

inline void pack_joined(const ByteConv& conv, const int8_t* weight, void* packed) {
    const JoinedPlan plan(conv);
    for (int unit = 0; unit < plan.units; ++unit) {
        const JoinedWeights to(plan, packed, unit);
        std::fill(to.first, to.first + plan.quads, conv.in_channels);
        const int begin = unit * conv.joined, end = smaller(begin + conv.joined, conv.groups);
        for (int group = begin; group < end; ++group) {
            const std::vector<int> places = places_of_group(conv, group);
            for (int i = 0; i < plan.inputs; i += GROUP) to.first[i / GROUP] = smaller(to.first[i / GROUP], places[i]);
        }
        for (int group = begin; group < end; ++group) {
            const std::vector<int> places = places_of_group(conv, group);
            for (int i = 0; i < plan.inputs; ++i) {
                const int channel = group * plan.inputs + i, place = conv.positions ? conv.positions[channel] : channel;
                const int at = int(std::lower_bound(places.begin(), places.end(), place) - places.begin());
                for (int output = 0; output < plan.outputs; ++output) {
                    const int lane = (group - begin) * plan.outputs + output;
                    const int64_t byte = lane * GROUP + at % GROUP;
                    to.places[at / GROUP * REACH + byte] = uint8_t(place - to.first[at / GROUP]);
                    const int8_t* w = weight + (int64_t(group * plan.outputs + output) * plan.inputs + i) * plan.taps;
                    for (int tap = 0; tap < plan.taps; ++tap)
                        to.weights[(int64_t(tap) * plan.quads + at / GROUP) * REACH + byte] = w[tap];
                }
            }
        }
    }
}

// PIXELS neighbours.
template <int PIXELS>
INLINE void multiply_joined(const JoinedPlan& plan, const JoinedWeights& packed, const uint8_t* x, int64_t step,
                            const Run* taps, const ByteOutput& output) {
    IntVec sums[PIXELS][1];
    UNROLL for (int p = 0; p < PIXELS; ++p) sums[p][0] = load(output.start);
    const Weight* w = packed.weights;
    for (int tap = 0; tap < plan.taps; ++tap) {
        for (int quad = 0; quad < plan.quads; ++quad, w += REACH) {
            const __m512i places = _mm512_loadu_si512(packed.places + quad * REACH), weights = load_weights(w);
            const uint8_t* const from = x + taps[tap].offset + packed.first[quad];
            UNROLL for (int p = 0; p < PIXELS; ++p) {
                const __m512i bytes = _mm512_permutexvar_epi8(places, _mm512_loadu_si512(from + p * step));
                sums[p][0] = dot(sums[p][0], bytes, weights);
            }
        }
    }
    const Vec multipliers[1] = {load(output.multiplier)};
    UNROLL for (int p = 0; p < PIXELS; ++p) output.put(p, sums[p], multipliers);
}

template <int PIXELS>
INLINE void multiply_joined_row(const JoinedPlan& plan, const JoinedWeights& packed, const uint8_t* x, int64_t step,
                                int count, const Run* taps, const ByteOutput& output) {
    int done = 0;
    for (; done + PIXELS <= count; done += PIXELS)
        multiply_joined<PIXELS>(plan, packed, x + done * step, step, taps, output.at(done));
    if constexpr (PIXELS > 1)
        if (done < count)
            multiply_joined_row<PIXELS / 2>(plan, packed, x + done * step, step, count - done, taps, output.at(done));
}

// Rows of whole pixels; `taps` is memory for where each tap finds its bytes.
inline void convolve_joined(const ByteConv& conv, const Gathered& x, int unit, const ByteOutput& output, Run* taps,
                            Ahead* ahead) {
    const JoinedPlan plan(conv);
    const int64_t row_bytes = x.row_step / conv.stride_h;
    const JoinedWeights packed(plan, conv.weight, unit);
    for (int tap = 0; tap < plan.taps; ++tap) {
        const int64_t row = tap / conv.kernel_w, column = tap % conv.kernel_w;
        taps[tap].offset = row * conv.dilation_h * row_bytes + column * conv.dilation_w * conv.in_channels;
    }
    for (int row = 0; row < x.rows; ++row) {
        fetch(ahead, int64_t(plan.quads) * plan.taps);
        multiply_joined_row<16>(plan, packed, x.data + row * x.row_step, x.step, x.columns, taps,
                                output.at(int64_t(row) * x.columns));
    }
}
#else
inline int32_t joined_groups(const ByteConv&) { return 1; }
#endif

}  // namespace dgconv::DGCONV_ISA
