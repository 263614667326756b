// The product for outputs that lie anywhere: each has a row of weights of its own, and a vector holds pixels, or points
// of tiles, of one output.
#pragma once

#include "conv_plan.h"

namespace dgconv::DGCONV_ISA {

// The next TOGETHER floats, 1 or 4 or a whole vector, again and again.
template <int TOGETHER>
INLINE Vec repeat(const float* from) {
    if constexpr (TOGETHER == 1) return splat(*from);
    if constexpr (TOGETHER == WIDTH) return load(from);
#if DGCONV_VECTOR_FLOATS == 16
    return (Vec)_mm512_maskz_broadcast_f32x4(0xffff, _mm_loadu_ps(from));
#elif DGCONV_VECTOR_FLOATS == 8
    return (Vec)_mm256_broadcast_ps(reinterpret_cast<const __m128*>(from));
#else
    return load(from);
#endif
}

// One term of the sums: where its vectors lie, and its weights in the row of any output. In floats.
struct Term {
    int32_t x, weight;
};

struct WinnerFactors {
    const float *x, *weight;
    int64_t weight_row;  // of an output
    const Term* terms;
    int count;
    const float* gates;  // of the terms, or null
};

// OUTPUTS outputs of VECTORS vectors, written to rows `stride` floats apart.
template <int TOGETHER, bool GATED, int OUTPUTS, int VECTORS>
void winner_tile(const WinnerFactors& f, const int32_t* outputs, const float* x, float* to, int64_t stride) {
    const float* rows[OUTPUTS];
    UNROLL for (int i = 0; i < OUTPUTS; ++i) rows[i] = f.weight + outputs[i] * f.weight_row;
    Vec acc[OUTPUTS][VECTORS] = {};
    for (int t = 0; t < f.count; ++t) {
        const Term term = f.terms[t];
        Vec v[VECTORS];
        UNROLL for (int j = 0; j < VECTORS; ++j) v[j] = load(x + term.x + j * WIDTH);
        if constexpr (GATED) {
            const Vec gate = splat(f.gates[t]);
            UNROLL for (int j = 0; j < VECTORS; ++j) v[j] *= gate;
        }
        UNROLL for (int i = 0; i < OUTPUTS; ++i) {
            const Vec weight = repeat<TOGETHER>(rows[i] + term.weight);
            UNROLL for (int j = 0; j < VECTORS; ++j) acc[i][j] += v[j] * weight;
        }
    }
    UNROLL for (int i = 0; i < OUTPUTS; ++i) {
        UNROLL for (int j = 0; j < VECTORS; ++j) store(to + i * stride + j * WIDTH, acc[i][j]);
    }
}

typedef void (*WinnerTile)(const WinnerFactors&, const int32_t*, const float*, float*, int64_t);

// At most so many rows: each is a pointer, for which there are registers, too.
constexpr int MOST_WINNERS = REGISTERS == 32 ? 8 : 6;

template <int TOGETHER, bool GATED, size_t... size>
WinnerTile winner_tile_of(int outputs, int vectors, std::index_sequence<size...>) {
    static constexpr WinnerTile one[] = {winner_tile<TOGETHER, GATED, size + 1, 1>...},
                                two[] = {winner_tile<TOGETHER, GATED, size + 1, 2>...};
    return vectors == 1 ? one[outputs - 1] : two[outputs - 1];
}

// So many outputs and vectors, in nearly equal tiles; to [output][vector].
template <int TOGETHER, bool GATED = false>
void multiply_winners(const WinnerFactors& f, const int32_t* outputs, int count, int vectors, float* to) {
    const int tiles = divide_up(count, MOST_WINNERS);
    const int64_t stride = int64_t(vectors) * WIDTH;
    for (int tile = 0; tile < tiles; ++tile) {
        const int first = share(count, tiles, tile), end = share(count, tiles, tile + 1);
        for (int vector = 0; vector < vectors; vector += 2) {
            const auto sizes = std::make_index_sequence<MOST_WINNERS>();
            const WinnerTile run = winner_tile_of<TOGETHER, GATED>(end - first, smaller(2, vectors - vector), sizes);
            run(f, outputs + first, f.x + vector * WIDTH, to + first * stride + vector * WIDTH, stride);
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
