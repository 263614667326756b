// What becomes of the sums of a convolution of bytes.
#pragma once

#include "byte_plan.h"

namespace dgconv::DGCONV_ISA {

// Where the outputs of a panel go, pixel by pixel, and what they need.
struct ByteOutput {
    const int32_t* start;
    const float *multiplier, *bias;
    float unit;
    ToByte result;
    uint8_t* y;
    const uint8_t* residual;  // or null
    int64_t y_step, residual_step;
    float residual_scale;
    int count;                // of outputs

    INLINE ByteOutput at(int64_t pixel) const {
        ByteOutput moved = *this;
        moved.y += pixel * y_step;
        if (residual) moved.residual += pixel * residual_step;
        return moved;
    }

    // From so many outputs on.
    INLINE ByteOutput from(int output) const {
        ByteOutput moved = *this;
        moved.start += output, moved.multiplier += output, moved.bias += output;
        moved.y += output, moved.count -= output;
        if (residual) moved.residual += output;
        return moved;
    }

    // What a pixel's sums, of so many vectors, become.
    template <int VECTORS>
    INLINE void put(int pixel, const IntVec (&sums)[VECTORS], const Vec (&multipliers)[VECTORS]) const {
        Vec v[VECTORS];
        UNROLL for (int i = 0; i < VECTORS; ++i) {
            v[i] = to_float(sums[i]) * multipliers[i] + load(bias + i * LANES);
            if (residual) {
                const uint8_t* added = residual + pixel * residual_step + i * LANES;
                v[i] += to_float(load_bytes(added, smaller(LANES, count - i * LANES))) * residual_scale;
            }
        }
        uint8_t* const to = y + pixel * y_step;
        if (count >= VECTORS * LANES) return store_as_bytes(to, v, result);
        UNROLL for (int i = 0; i < VECTORS; ++i) {
            store_bytes(to + i * LANES, to_byte(v[i], result), smaller(LANES, count - i * LANES));
        }
    }
};

}  // namespace dgconv::DGCONV_ISA
