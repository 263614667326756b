// Fetching what later steps will read while this one computes: a network that fits no cache reads its weights from
// memory in every run, and memory can work beside the arithmetic.
#pragma once

#include "vec.h"

namespace dgconv::DGCONV_ISA {

// Where a tile fetches from, a cache line for each channel that it convolves: evenly, as a processor with too many
// requests under way drops the next.
struct Lines {
    const float* next;
    int64_t step;

    INLINE void fetch() {
        __builtin_prefetch(next, 0, 2);
        next += step;
    }
};

// For so many channels. The last lines of a region may be followed by others, no matter which; if none are left, it is
// always the same one, which costs next to nothing.
INLINE Lines take_lines(Ahead* ahead, int channels) {
    constexpr int LINE = 16;  // floats
    static const float nothing = 0;
    if (!ahead || (ahead->lines <= 0 && ahead->next >= ahead->end)) return {&nothing, 0};
    if (ahead->lines <= 0) {
        const Region& region = ahead->regions[ahead->next++];
        ahead->lines = region.floats / LINE / ahead->threads;
        ahead->from = region.data + ahead->lines * LINE * ahead->rank;
    }
    const float* from = ahead->from;
    ahead->from += int64_t(channels) * LINE, ahead->lines -= channels;
    return {from, LINE};
}

}  // namespace dgconv::DGCONV_ISA
