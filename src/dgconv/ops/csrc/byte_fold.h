// The gates of an image in the weights, weight' = (weight * factor + 2^14) / 2^15: a convolution whose heads choose
// becomes a plain one of all inputs. Pixels are read where they lie, and the outputs of narrow heads share vectors.
#pragma once

#include "byte_choice.h"

namespace dgconv::DGCONV_ISA {

// The same convolution once its gates are in its weights.
inline ByteConv without_gates(const ByteConv& conv) {
    ByteConv plain = conv;
    plain.groups = 1, plain.chooses = 0;
    return plain;
}

constexpr int64_t FACTORS_BEHIND = 64;  // bytes that are read behind the last factor

// What becomes of the gates of an image, in memory of `folded_bytes`.
struct Folded {
    int16_t* factors;   // [group of a run][head][byte of the group]; negative as the gate is
    float* units;       // [head], of a sum
    int32_t* start;     // [padded outputs]
    float* multiplier;  // [padded outputs]
    Weight* weights;    // as pack_weights has them
    int64_t bytes;

    Folded(const ByteConv& conv, const BytePlan& plan, void* memory) {
        char* const begin = static_cast<char*>(memory);
        char* at = begin;
        const auto take = [&](int64_t size) { return at += whole_lines(size), at - whole_lines(size); };
        const int64_t places = int64_t(plan.run_groups(conv.in_channels)) * GROUP;
        factors = reinterpret_cast<int16_t*>(take(places * conv.groups * int64_t(sizeof(int16_t)) + FACTORS_BEHIND));
        units = reinterpret_cast<float*>(take(int64_t(conv.groups) * int64_t(sizeof(float))));
        start = reinterpret_cast<int32_t*>(take(int64_t(plan.padded_outputs()) * int64_t(sizeof(int32_t))));
        multiplier = reinterpret_cast<float*>(take(int64_t(plan.padded_outputs()) * int64_t(sizeof(float))));
        weights = reinterpret_cast<Weight*>(take(plan.weights_of(conv.in_channels) * int64_t(sizeof(Weight))));
        bytes = at - begin;
    }
};

inline int64_t folded_bytes(const ByteConv& conv) {
    const BytePlan plan(without_gates(conv));
    alignas(64) char nowhere[64];
    return Folded(conv, plan, nowhere).bytes;
}

// The gates of a head: the factor of each place of a run.
inline void note_gates(const ByteConv& conv, int32_t head, const int32_t* channels, const float* gates, int32_t count,
                       void* memory) {
    const BytePlan plan(without_gates(conv));
    const Folded folded(conv, plan, memory);
    const GateScale scale(gates, count);
    const int64_t step = int64_t(conv.groups) * GROUP;
    int16_t* const own = folded.factors + int64_t(head) * GROUP;
    folded.units[head] = scale.unit;
    for (int group = 0; group < plan.run_groups(conv.in_channels); ++group) memset(own + group * step, 0, GROUP * 2);
    for (int32_t i = 0; i < count; ++i) {
        const int16_t size = factor_of(gates[i], scale.ratio), factor = gates[i] < 0 ? -size : size;
        int at = conv.positions ? conv.positions[channels[i]] : channels[i];
        for (int tap = 0; tap < plan.run_taps; ++tap, at += conv.in_channels)
            own[at / GROUP * step + at % GROUP] = factor;
    }
}

// Which heads the outputs of a vector belong to. Neighbours belong to one or to the next, so that what some lanes need
// of a group lies within as many heads as they are.
struct LanesOfHeads {
    int heads[LANES];
#if defined(__AVX512VNNI__)
    __m512i picks[2];  // of the first eight lanes, and of the others
#elif defined(__AVX2__)
    static constexpr int PICKS = GROUP / 2, PICKED = LANES / PICKS;
    __m256i picks[PICKS];
#endif

    LanesOfHeads() = default;
    LanesOfHeads(const ByteConv& conv, int vector) {
        const int width = conv.out_channels / conv.groups;
        for (int lane = 0; lane < LANES; ++lane)
            heads[lane] = smaller((vector * LANES + lane) / width, conv.groups - 1);
#if defined(__AVX512VNNI__)
        int64_t from[LANES];
        for (int lane = 0; lane < LANES; ++lane) from[lane] = heads[lane] - heads[lane / 8 * 8];
        for (int part = 0; part < 2; ++part) picks[part] = _mm512_loadu_si512(from + part * 8);
#elif defined(__AVX2__)
        int32_t from[PICKS * 8];  // in words of four bytes
        for (int i = 0; i < PICKS * 8; ++i) {
            const int lane = i / PICKS, first = lane / PICKED * PICKED;
            from[i] = (heads[lane] - heads[first]) * PICKS + i % PICKS;
        }
        for (int part = 0; part < PICKS; ++part) picks[part] = _mm256_loadu_si256((const __m256i*)(from + part * 8));
#endif
    }

    // A vector of weights, of one group; `factors` are those of its places.
    INLINE void fold(const Weight* from, const int16_t* factors, Weight* to) const {
#if defined(__AVX512VNNI__)
        const __m512i w = _mm512_loadu_si512(from);
        const __m512i low = _mm512_loadu_si512(factors + heads[0] * GROUP);
        const __m512i high = _mm512_loadu_si512(factors + heads[8] * GROUP);
        const __m512i a = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(w));
        const __m512i b = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(w, 1));
        const __m256i a2 = _mm512_cvtepi16_epi8(_mm512_mulhrs_epi16(a, _mm512_permutexvar_epi64(picks[0], low)));
        const __m256i b2 = _mm512_cvtepi16_epi8(_mm512_mulhrs_epi16(b, _mm512_permutexvar_epi64(picks[1], high)));
        _mm512_storeu_si512(to, _mm512_inserti64x4(_mm512_castsi256_si512(a2), b2, 1));
#elif defined(__AVX2__)
        __m256i folded[PICKS];
        UNROLL for (int part = 0; part < PICKS; ++part) {
            const __m256i near = _mm256_loadu_si256((const __m256i*)(factors + heads[part * PICKED] * GROUP));
            const __m256i own = _mm256_permutevar8x32_epi32(near, picks[part]);
            folded[part] = _mm256_mulhrs_epi16(load_words(from + part * 16), own);
        }
        store_words(folded, to);
#else
        for (int i = 0; i < LANES * GROUP; ++i)
            to[i] = Weight((from[i] * factors[heads[i / GROUP] * GROUP + i % GROUP] + (1 << 14)) >> 15);
#endif
    }

#if defined(__AVX2__) && !defined(__AVX512VNNI__)
  private:
    static INLINE __m256i load_words(const int8_t* from) {
        return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from));
    }
    static INLINE __m256i load_words(const int16_t* from) { return _mm256_loadu_si256((const __m256i*)from); }
    static INLINE void store_words(const __m256i* words, int16_t* to) { _mm256_storeu_si256((__m256i*)to, words[0]); }
    static INLINE void store_words(const __m256i* words, int8_t* to) {
        const __m256i packed = _mm256_packs_epi16(words[0], words[1]);  // quarter by quarter
        _mm256_storeu_si256((__m256i*)to, _mm256_permute4x64_epi64(packed, 0xd8));
    }
#endif
};

// Folds a panel of vectors; weights are read in the order in which they lie.
template <int VECTORS>
INLINE void fold_panel(const ByteConv& conv, const BytePlan& plan, const Folded& folded, int vector) {
    const int run_groups = plan.run_groups(conv.in_channels), width = conv.out_channels / conv.groups;
    const int64_t first = plan.place_of(vector, 0, plan.groups_of(conv.in_channels));
    const uint8_t ones[4] = {1, 1, 1, 1};
    const Weight* from = static_cast<const Weight*>(conv.weight) + first;
    Weight* to = folded.weights + first;
    IntVec sums[VECTORS] = {};
    LanesOfHeads lanes[VECTORS];
    for (int v = 0; v < VECTORS; ++v) lanes[v] = LanesOfHeads(conv, vector + v);
    for (int run = 0; run < plan.runs; ++run) {
        const int16_t* factors = folded.factors;
        for (int group = 0; group < run_groups; ++group, factors += conv.groups * GROUP) {
            UNROLL for (int v = 0; v < VECTORS; ++v, from += LANES * GROUP, to += LANES * GROUP) {
                lanes[v].fold(from, factors, to);
                sums[v] = dot(sums[v], spread(ones), load_weights(to));
            }
        }
    }
    for (int v = 0; v < VECTORS; ++v) {
        sums[v] *= -conv.input_zero;
        memcpy(folded.start + (vector + v) * LANES, &sums[v], sizeof sums[v]);
    }
    for (int output = vector * LANES; output < (vector + VECTORS) * LANES; ++output) {
        const bool is_there = output < conv.out_channels;
        folded.multiplier[output] = is_there ? conv.multiplier[output] * folded.units[output / width] : 0;
    }
}

// After the gates of all heads were noted: some panels of the outputs each.
inline void fold(const ByteConv& conv, void* memory, int rank, int threads) {
    const BytePlan plan(without_gates(conv));
    const Folded folded(conv, plan, memory);
    const int panels = divide_up(plan.vectors, MOST_PANEL);
    const Share share = share_of(panels, rank, threads);
    const int end = smaller(plan.vectors, int(share.end) * MOST_PANEL);
    for (int vector = int(share.begin) * MOST_PANEL; vector < end;) {
        const int panel = plan.panel_at(vector);
        if (panel == 1) fold_panel<1>(conv, plan, folded, vector);
        if (panel == 2) fold_panel<2>(conv, plan, folded, vector);
        if constexpr (MOST_PANEL > 2)
            if (panel == MOST_PANEL) fold_panel<MOST_PANEL>(conv, plan, folded, vector);
        vector += panel;
    }
}

}  // namespace dgconv::DGCONV_ISA
