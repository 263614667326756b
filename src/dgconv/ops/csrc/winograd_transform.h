// The transforms of Winograd's minimal filtering for 3x3 kernels: y = A [(G w G') * (B x B')] A', in which a tile of
// (OUT + 2)^2 inputs gives OUT^2 outputs with (OUT + 2)^2 multiplications instead of 9 OUT^2.
//
// A polynomial product is found from its values at some points. OUT = 2 uses 0, 1, -1 and infinity; OUT = 4 uses 0,
// +-3/4, +-3/2 and infinity, which err four times less than the usual +-1, +-2 (1.9e-6 of the greatest output over 128
// channels) and are exact in binary.
#pragma once

#include "vec.h"

namespace dgconv::DGCONV_ISA {

template <int OUT>
struct Transform;

template <>
struct Transform<2> {
    static constexpr double G[4][3] = {{1, 0, 0}, {.5, .5, .5}, {.5, -.5, .5}, {0, 0, 1}};

    static INLINE void input(Vec (&d)[4]) {
        const Vec d1 = d[1], d2 = d[2];
        d[0] = d[0] - d2;
        d[1] = d1 + d2;
        d[2] = d2 - d1;
        d[3] = d[3] - d1;
    }

    static INLINE void output(const Vec (&m)[4], Vec (&y)[2]) {
        const Vec even = m[1] + m[2], odd = m[1] - m[2];
        y[0] = m[0] + even;
        y[1] = odd + m[3];
    }
};

template <>
struct Transform<4> {
    static constexpr float P = .75f, Q = 1.5f, PP = P * P, QQ = Q * Q;
    // Row of a point p: 1, p, p^2 over the product of its distances to the other points.
    static constexpr double NP = 2 * PP * (PP - QQ), NQ = 2 * QQ * (QQ - PP);
    static constexpr double G[6][3] = {
        {1. / (PP * QQ), 0, 0},    {1 / NP, P / NP, PP / NP},   {1 / NP, -P / NP, PP / NP},
        {1 / NQ, Q / NQ, QQ / NQ}, {1 / NQ, -Q / NQ, QQ / NQ}, {0, 0, 1},
    };

    static INLINE void input(Vec (&d)[6]) {
        const Vec d1 = d[1], d2 = d[2], d3 = d[3], d4 = d[4];
        const Vec even_p = d4 - QQ * d2, odd_p = d3 - QQ * d1;
        const Vec even_q = d4 - PP * d2, odd_q = d3 - PP * d1;
        d[0] = (PP * QQ) * d[0] + (d4 - (PP + QQ) * d2);
        d[1] = even_p + P * odd_p;
        d[2] = even_p - P * odd_p;
        d[3] = even_q + Q * odd_q;
        d[4] = even_q - Q * odd_q;
        d[5] = (PP * QQ) * d1 + (d[5] - (PP + QQ) * d3);
    }

    static INLINE void output(const Vec (&m)[6], Vec (&y)[4]) {
        const Vec even_p = m[1] + m[2], odd_p = m[1] - m[2];
        const Vec even_q = m[3] + m[4], odd_q = m[3] - m[4];
        y[0] = m[0] + even_p + even_q;
        y[1] = P * odd_p + Q * odd_q;
        y[2] = PP * even_p + QQ * even_q;
        y[3] = (P * PP) * odd_p + (Q * QQ) * odd_q + m[5];
    }
};

// G w G' for one 3x3 kernel.
template <int OUT>
inline void transform_kernel(const float* w, float* u, int64_t step) {
    constexpr int IN = OUT + 2;
    const auto& G = Transform<OUT>::G;
    for (int i = 0; i < IN; ++i) {
        for (int j = 0; j < IN; ++j) {
            double total = 0;
            for (int a = 0; a < 3; ++a) {
                for (int b = 0; b < 3; ++b) total += G[i][a] * w[a * 3 + b] * G[j][b];
            }
            u[(i * IN + j) * step] = static_cast<float>(total);
        }
    }
}

// B x B' for a tile of vectors whose rows are `row` floats apart; point (i, j) goes to out + (i * IN + j) * step.
template <int OUT>
INLINE void transform_input(const float* tile, int64_t row, float* out, int64_t step) {
    constexpr int IN = OUT + 2;
    Vec columns[IN][IN];
    UNROLL for (int j = 0; j < IN; ++j) {
        Vec d[IN];
        UNROLL for (int i = 0; i < IN; ++i) d[i] = load(tile + i * row + j * WIDTH);
        Transform<OUT>::input(d);
        UNROLL for (int i = 0; i < IN; ++i) columns[i][j] = d[i];
    }
    UNROLL for (int i = 0; i < IN; ++i) {
        Transform<OUT>::input(columns[i]);
        UNROLL for (int j = 0; j < IN; ++j) store(out + (i * IN + j) * step, columns[i][j]);
    }
}

// A m A' for the points that `get` has.
template <int OUT, class Get>
INLINE void transform_output(Get get, Vec (&y)[OUT][OUT]) {
    constexpr int IN = OUT + 2;
    Vec columns[OUT][IN];
    UNROLL for (int j = 0; j < IN; ++j) {
        Vec m[IN], column[OUT];
        UNROLL for (int i = 0; i < IN; ++i) m[i] = get(i * IN + j);
        Transform<OUT>::output(m, column);
        UNROLL for (int i = 0; i < OUT; ++i) columns[i][j] = column[i];
    }
    UNROLL for (int i = 0; i < OUT; ++i) Transform<OUT>::output(columns[i], y[i]);
}

}  // namespace dgconv::DGCONV_ISA
