// Fetching what later steps will read while this one computes: a network that fits no cache reads its weights from
// memory in every run, and memory can work beside the arithmetic.
#pragma once

#include "vec.h"

namespace dgconv::DGCONV_ISA {

constexpr int LINE = 16;  // floats

// Where a tile fetches from, PER_CHANNEL cache lines for each channel that it convolves: evenly, as a processor with too
// many requests under way drops the next.
struct Lines {
    static constexpr int PER_CHANNEL = 2;
    const float* next;
    int64_t step;

    INLINE void fetch() {
        UNROLL for (int line = 0; line < PER_CHANNEL; ++line) __builtin_prefetch(next + line * LINE, 0, 2);
        next += step;
    }
};

// For so many channels. The last lines of a region may be followed by others, no matter which; if none are left, it is
// always the same one, which costs next to nothing.
INLINE Lines take_lines(Ahead* ahead, int channels) {
    static const float nothing = 0;
    if (!ahead || (ahead->lines <= 0 && ahead->next >= ahead->end)) return {&nothing, 0};
    if (ahead->lines <= 0) {
        const Region& region = ahead->regions[ahead->next++];
        ahead->lines = region.floats / LINE / ahead->threads;
        ahead->from = region.data + ahead->lines * LINE * ahead->rank;
    }
    const float* from = ahead->from;
    const int64_t lines = int64_t(channels) * Lines::PER_CHANNEL;
    ahead->from += lines * LINE, ahead->lines -= lines;
    return {from, Lines::PER_CHANNEL * LINE};
}

}  // namespace dgconv::DGCONV_ISA
