// The innermost loops: a tile of the product, held in registers from the first channel to the last.
#pragma once

#include "conv_plan.h"

namespace dgconv::DGCONV_ISA {

// Kept channels are scattered over the weights, where no hardware foresees the next one.
template <int VECTORS>
INLINE void prefetch(const float* vectors) {
    UNROLL for (int j = 0; j < VECTORS * WIDTH; j += 16) __builtin_prefetch(vectors + j);
}

// Adds to acc[a][v] the product of scalar a and vector v. Scalars lie SCALAR_STEP floats apart.
template <int SCALARS, int VECTORS, int SCALAR_STEP>
INLINE void multiply_add(Vec (&acc)[SCALARS][VECTORS], const float* scalars, const float* vectors) {
    Vec v[VECTORS];
    UNROLL for (int j = 0; j < VECTORS; ++j) v[j] = load(vectors + j * WIDTH);
    UNROLL for (int i = 0; i < SCALARS; ++i) {
        UNROLL for (int j = 0; j < VECTORS; ++j) acc[i][j] += v[j] * scalars[i * SCALAR_STEP];
    }
}

}  // namespace dgconv::DGCONV_ISA
