// A convolution and the depthwise one that reads it, a vector of channels at a time: what lies between them, the bulk
// of such a network's values, never leaves the cache of the thread that computes it.
#pragma once

#include "conv_depthwise.h"
#include "expand_rows.h"

namespace dgconv::DGCONV_ISA {

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
