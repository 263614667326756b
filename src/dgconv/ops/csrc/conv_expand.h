// A convolution and the depthwise one that reads it, a vector of channels at a time: what lies between them, the bulk
// of such a network's values, never leaves the cache of the thread that computes it.
#pragma once

#include "conv_depthwise.h"
#include "expand_rows.h"

namespace dgconv::DGCONV_ISA {

// Whether the two can be joined: the first plain, wide enough to fill vectors, and either 1x1 or of few channels, as the
// first of a network is.
inline bool can_expand(const Conv& first, const Conv& then) {
    const bool is_plain = !first.dynamic && !first.beta && !first.in_scale && !first.interleaved && first.groups == 1;
    const bool is_of_few = first.in_channels <= 4 && first.stride_h == first.stride_w && first.stride_h <= 2 &&
                           first.dilation_h == 1 && first.dilation_w == 1;
    const bool is_wide = first.out_channels >= 16 && plan_weights(first).form == OUTPUT_LANES;
    const bool is_depthwise = plan_weights(then).form == DEPTHWISE && !then.in_scale && !then.interleaved;
    return is_plain && (is_pointwise(first) || is_of_few) && is_wide && is_depthwise &&
           then.in_channels == first.out_channels;
}

// Of `x` and `between` only the shapes matter.
inline int64_t expand_scratch_floats(const Conv& first, const Conv& then, Planes x, Planes between, int out_h,
                                     int out_w) {
    const Plan plan = make_plan(then, out_h, out_w);
    const ExpandRows rows(first, x, between, rows_read(then, plan), nullptr);
    return Depthwise<ExpandRows>(then, plan, between, out_w, rows, nullptr).scratch_floats();
}

inline void expand(const Conv& first, const Conv& then, int32_t batch, Planes x, Planes between, Planes y,
                   float* pooled, float* scratch, Ahead* ahead, int rank, int threads) {
    const Plan plan = make_plan(then, y.height, y.width);
    const ExpandRows rows(first, x, between, rows_read(then, plan), scratch);
    const Depthwise<ExpandRows> run(then, plan, between, y.width, rows, scratch);
    run.run(batch, y, nullptr, pooled, ahead, rank, threads);
}

}  // namespace dgconv::DGCONV_ISA
