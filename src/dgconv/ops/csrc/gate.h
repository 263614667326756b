// Which channels each head of each image keeps: means of the channels, their saliency, and the choice.
//
// generate and select cut the (image, head) items into the same shares: whoever has generated a share can select from
// it at once.
#pragma once

#include <cstring>

#include "planes.h"

namespace dgconv::DGCONV_ISA {

// sums[b, c] = sum over the plane of norm(x[b, c]), or of its magnitude, divided by `divisor`. Rows of sums are
// `stride` apart.
inline void sum_planes(const Norm& norm, bool of_magnitudes, int batch, Planes x, float divisor, float* sums,
                       int64_t stride, int rank, int threads) {
    const int64_t pixels = int64_t(x.height) * x.width;
    for_each_plane(batch, x, rank, threads, [&](int64_t image, int64_t channel) {
        const float* plane = plane_of(x, image, channel);
        with_norm(norm, channel, [&](auto pixel) {
            const auto magnitude = [&](auto v) {
                v = pixel(v);
                return v < 0.0f ? -v : v;
            };
            const float sum = of_magnitudes ? sum_row(plane, pixels, magnitude) : sum_row(plane, pixels, pixel);
            sums[image * stride + channel] = sum / divisor;
        });
    });
}

// saliency += the weighted sum of ROWS rows of W2 transposed.
template <int ROWS>
INLINE void add_rows(const float* const* rows, const float* factors, int64_t channels, float* saliency) {
    int64_t c = 0;
    for (; c + WIDTH <= channels; c += WIDTH) {
        Vec sum = load(saliency + c);
        for (int r = 0; r < ROWS; ++r) sum += load(rows[r] + c) * factors[r];
        store(saliency + c, sum);
    }
    for (; c < channels; ++c)
        for (int r = 0; r < ROWS; ++r) saliency[c] += rows[r][c] * factors[r];
}

// W1 p. The rows of W2 that its positive units will read are fetched from memory beside it.
INLINE void find_hidden(const Gate& gate, int64_t head, const float* means, float* hidden) {
    const int64_t channels = gate.channels, scored = scored_channels(gate), first = head * gate.hidden;
    const float *row = gate.weight1 + first * channels, *later = gate.weight2 + first * scored, *fetched = row;
    for (int64_t unit = 0; unit < gate.hidden; ++unit, row += channels, later += scored) {
        hidden[unit] = dot(row, means, channels, fetched);
        fetched = hidden[unit] > 0 ? later : row;
    }
}

// Units that the relu set to zero add nothing: half of W2 is not even read.
INLINE void score_channels(const Gate& gate, int64_t head, const float* hidden, float* saliency) {
    const int64_t channels = scored_channels(gate);
    std::memcpy(saliency, gate.beta + head * channels, channels * sizeof(float));
    constexpr int AT_ONCE = 16;  // memory answers faster if it is asked for many rows
    const float* rows[AT_ONCE];
    float factors[AT_ONCE];
    int waiting = 0;
    for (int64_t unit = 0; unit < gate.hidden; ++unit) {
        if (hidden[unit] <= 0) continue;  // NaN goes on
        rows[waiting] = gate.weight2 + (head * gate.hidden + unit) * channels;
        factors[waiting++] = hidden[unit];
        if (waiting == AT_ONCE) add_rows<AT_ONCE>(rows, factors, channels, saliency), waiting = 0;
    }
    int i = 0;
    for (; i + 4 <= waiting; i += 4) add_rows<4>(rows + i, factors + i, channels, saliency);
    for (; i < waiting; ++i) add_rows<1>(rows + i, factors + i, channels, saliency);
    if (!gate.is_global)
        for (int64_t c = 0; c < channels; ++c) saliency[c] = activated<RELU>(saliency[c]);
}

// For generate: the means and the hidden units. For select: the keys, in whole vectors.
inline int64_t gate_scratch_floats(const Gate& gate) {
    return gate.channels + (gate.hidden > WIDTH ? gate.hidden : WIDTH);
}

// saliency [B, H, scored channels] from sums [B, pooled channels, parts] over planes of `pixels`.
inline void generate(const Gate& gate, int batch, const float* sums, int parts, float pixels, float* saliency,
                     float* scratch, int rank, int threads) {
    const int64_t channels = gate.channels, scored = scored_channels(gate), pooled = gate.weight1 ? channels : gate.hidden;
    float *means = scratch, *hidden = gate.weight1 ? scratch + channels : means;
    int64_t image_of_means = -1;
    const Share share = share_of(int64_t(batch) * gate.heads, rank, threads);
    for (int64_t item = share.begin; item < share.end; ++item) {
        const int64_t image = item / gate.heads, head = item % gate.heads;
        if (image != image_of_means) {
            const float* image_sums = sums + image * pooled * parts;
            for (int64_t c = 0; c < pooled; ++c) means[c] = sum_row(image_sums + c * parts, parts, NoNorm{}) / pixels;
            image_of_means = image;
        }
        if (gate.weight1) find_hidden(gate, head, means, hidden);
        score_channels(gate, head, hidden, saliency + item * scored);
    }
}

// Fills the last vector of keys with some that are below any other.
INLINE void end_keys(int32_t* keys, int32_t channels) {
    for (int32_t c = channels; c % WIDTH; ++c) keys[c] = INT32_MIN;
}

// Integers in the order of the saliencies: -0 equals 0, NaN equals -Inf.
INLINE void order_keys(const float* saliency, int32_t channels, int32_t* keys) {
    for (int32_t c = 0; c < channels; ++c) {
        const float score = saliency[c] == saliency[c] ? saliency[c] + 0.0f : -__builtin_inff();
        int32_t bits;
        std::memcpy(&bits, &score, sizeof bits);
        keys[c] = bits ^ ((bits >> 31) & INT32_MAX);
    }
    end_keys(keys, channels);
}

INLINE int32_t count_at_least(int32_t border, const int32_t* keys, int32_t channels) {
    IntVec count = {};
    for (int32_t c = 0; c < channels; c += WIDTH) {
        IntVec some;
        std::memcpy(&some, keys + c, sizeof some);
        count -= some >= border;  // true is -1
    }
    return sum_lanes(count);
}

// Channels with a greater key pass, and those with an equal one up to channel `last`.
struct Border {
    int32_t key, last;
};

// The greatest border that at least `keep` keys reach. Between two borders, of which one is reached by too many and one
// by too few, it is guessed in proportion, and halved in between where a guess is far off.
INLINE Border find_border(const int32_t* keys, int32_t channels, int32_t keep) {
    if (keep >= channels) return {INT32_MIN, channels - 1};
    int32_t least = keys[0], greatest = keys[0];
    for (int32_t c = 1; c < channels; ++c) {
        least = keys[c] < least ? keys[c] : least;
        greatest = keys[c] > greatest ? keys[c] : greatest;
    }
    int64_t low = least, high = int64_t(greatest) + 1;
    int64_t reach_low = channels, reach_high = 0;
    for (bool guess = true; high - low > 1; guess = !guess) {
        const int64_t share = guess ? (high - low) * (reach_low - keep) / (reach_low - reach_high) : (high - low) / 2;
        const int64_t candidate = low + (share < 1 ? 1 : share < high - low ? share : high - low - 1);
        const int32_t reaching = count_at_least(int32_t(candidate), keys, channels);
        if (reaching == keep) return {int32_t(candidate), channels - 1};
        if (reaching > keep) {
            low = candidate, reach_low = reaching;
        } else {
            high = candidate, reach_high = reaching;
        }
    }
    const int32_t key = int32_t(low);
    int32_t last = -1;
    for (int64_t ties = keep - reach_high; ties > 0; ties -= keys[last] == key) ++last;
    return {key, last};
}

// Writes the channels that pass, ascending, and their saliencies; returns how many.
INLINE int32_t write_kept(const int32_t* keys, Border border, const float* scores, int32_t channels, int32_t* kept,
                          float* gates) {
    int32_t count = 0;
#if DGCONV_VECTOR_FLOATS == 16
    __m512i channel = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (int32_t c = 0; c < channels; c += WIDTH) {
        const __m512i key = _mm512_loadu_si512(keys + c), at_border = _mm512_set1_epi32(border.key);
        const __mmask16 ties = _mm512_cmpeq_epi32_mask(key, at_border) &
                               _mm512_cmple_epi32_mask(channel, _mm512_set1_epi32(border.last));
        const __mmask16 passes = _mm512_cmpgt_epi32_mask(key, at_border) | ties;
        const int passing = __builtin_popcount(passes);
        const __mmask16 places = (1u << passing) - 1;
        const __m512 score = _mm512_maskz_loadu_ps(passes, scores + c);
        _mm512_mask_storeu_epi32(kept + count, places, _mm512_maskz_compress_epi32(passes, channel));
        _mm512_mask_storeu_ps(gates + count, places, _mm512_maskz_compress_ps(passes, score));
        count += passing;
        channel = _mm512_add_epi32(channel, _mm512_set1_epi32(WIDTH));
    }
#else
    for (int32_t c = 0; c < channels; ++c) {  // written always, counted if it passes: no branch
        kept[count] = c;
        gates[count] = scores[c];
        count += (keys[c] > border.key) | ((keys[c] == border.key) & (c <= border.last));
    }
#endif
    return count;
}

// The channels of each (image, head), ascending, and their gates, laid out as Selection says.
inline void select(const Gate& gate, int batch, const float* saliency, int32_t* kept, float* gates, int32_t* counts,
                   float* scratch, int rank, int threads) {
    const int32_t channels = gate.channels;
    int32_t* keys = reinterpret_cast<int32_t*>(scratch);
    const Share share = share_of(int64_t(batch) * gate.heads, rank, threads);
    for (int64_t item = share.begin; item < share.end; ++item) {
        if (gate.fixed) {
            const int32_t* const choice = gate.fixed + item % gate.heads * gate.keep;
            std::memcpy(kept + item * channels, choice, gate.keep * sizeof *choice);
            std::memcpy(gates + item * channels, saliency + item * gate.keep, gate.keep * sizeof *gates);
            counts[item] = gate.keep;
            continue;
        }
        const float* scores = saliency + item * channels;
        Border border{1, channels - 1};
        if (gate.is_global) {
            for (int32_t c = 0; c < channels; ++c) keys[c] = __builtin_fabsf(scores[c]) >= gate.threshold;
            end_keys(keys, channels);
        } else {
            order_keys(scores, channels, keys);
            border = find_border(keys, channels, gate.keep);
        }
        counts[item] = write_kept(keys, border, scores, channels, kept + item * channels, gates + item * channels);
    }
}

}  // namespace dgconv::DGCONV_ISA
