// Which channels a group reads, and their weights: of a gate's choice, or one that was made beforehand.
#pragma once

#include "byte_plan.h"

namespace dgconv::DGCONV_ISA {

constexpr int32_t FULL_GATE = 32767;                  // what the greatest gate of a group becomes
constexpr float FULL_GATE_UNIT = 32768.0f / 32767.0f;  // by which the product with it is too small

#if defined(__AVX2__) && !defined(__AVX512VBMI2__)
#define DGCONV_SHUFFLES 1
constexpr int SHUFFLED = 16;  // channels: what one instruction moves
// What is read of so many channels of a pixel, from `first` on.
struct alignas(16) Shuffle {
    uint8_t places[SHUFFLED];
    int32_t first, count;
};
#endif

// A choice, in memory of `choice_bytes`. A gated byte is zero + (byte - zero) * factor / 2^15, rounded; sums of them
// count `unit` times as much. A gate's sign goes to the weights.
struct Choice {
    int32_t count;
    float unit;
    int32_t is_gated;
    int32_t* channels;  // [count], in the order of a pixel; ~c for a negative gate
    int16_t* factors;   // [count], and then some from the first on: of another pixel, if a vector holds several
    uint64_t* masks;    // of every 64 channels, which are in it
#if defined(DGCONV_SHUFFLES)
    int32_t shuffle_count;
    Shuffle* shuffles;  // of channels some of which are in it
#endif

    Choice(const ByteConv& conv, void* memory) : Choice(conv, static_cast<const void*>(memory)) {}
    Choice(const ByteConv& conv, const void* memory) {
        char* at = static_cast<char*>(const_cast<void*>(memory));
        memcpy(&count, at, 4), memcpy(&unit, at + 4, 4), memcpy(&is_gated, at + 8, 4);
        channels = reinterpret_cast<int32_t*>(at + 64);
        masks = reinterpret_cast<uint64_t*>(at + 64 + whole_lines(int64_t(conv.in_channels) * 4));
        factors = reinterpret_cast<int16_t*>(masks + mask_count(conv));
#if defined(DGCONV_SHUFFLES)
        memcpy(&shuffle_count, at + 12, 4);
        shuffles = reinterpret_cast<Shuffle*>(at + bytes_before_shuffles(conv));
#endif
    }
    static int mask_count(const ByteConv& conv) { return round_up(divide_up(conv.in_channels, 64), 8); }
    static int64_t bytes_before_shuffles(const ByteConv& conv) {
        return 64 + whole_lines(int64_t(conv.in_channels) * 4) + int64_t(mask_count(conv)) * 8 +
               whole_lines(int64_t(conv.in_channels) * 2 + 64);
    }
    static int64_t bytes(const ByteConv& conv) {
#if defined(DGCONV_SHUFFLES)
        return bytes_before_shuffles(conv) + whole_lines(divide_up(conv.in_channels, SHUFFLED) * int64_t(sizeof(Shuffle)));
#else
        return bytes_before_shuffles(conv);
#endif
    }
};

#if defined(DGCONV_SHUFFLES)
inline int32_t write_shuffles(const Choice& choice, int channels) {
    Shuffle* to = choice.shuffles;
    for (int first = 0; first < channels; first += SHUFFLED) {
        uint32_t mask = uint32_t(choice.masks[first / 64] >> first % 64) & 0xffff;
        if (!mask) continue;
        to->first = first, to->count = __builtin_popcount(mask);
        for (uint8_t* place = to->places; mask; mask &= mask - 1) *place++ = uint8_t(__builtin_ctz(mask));
        ++to;
    }
    return int32_t(to - choice.shuffles);
}
#endif

inline int64_t choice_bytes(const ByteConv& conv) { return Choice::bytes(conv); }

inline int16_t factor_of(float gate, float ratio) {
    return int16_t(to_byte((gate < 0 ? -gate : gate) * ratio, {0, float(FULL_GATE), 0}));
}

// Of channels that are in order, which their choice has already.
inline void write_factors(const Choice& choice, const float* gates, float ratio) {
    for (int32_t i = 0; i < choice.count; ++i) choice.factors[i] = factor_of(gates ? gates[i] : 1, ratio);
    for (int32_t i = 0; gates && i < choice.count; ++i) choice.channels[i] ^= -int32_t(gates[i] < 0);
}

// Of any others, whose places the masks have.
inline void put_in_order(const ByteConv& conv, const Choice& choice, const int32_t* channels, const float* gates,
                         float ratio) {
    // How many of a choice come before a channel is its place in it.
    int32_t before[MOST_BYTE_CHANNELS / 64];
    for (int32_t block = 0, all = 0; block < divide_up(conv.in_channels, 64); ++block) {
        before[block] = all;
        all += __builtin_popcountll(choice.masks[block]);
    }
    for (int32_t i = 0; i < choice.count; ++i) {
        const int32_t place = conv.positions ? conv.positions[channels[i]] : channels[i];
        const uint64_t below = choice.masks[place / 64] & ((uint64_t(1) << place % 64) - 1);
        const int32_t at = before[place / 64] + __builtin_popcountll(below);
        const float gate = gates ? gates[i] : 1;
        choice.channels[at] = gate < 0 ? ~place : place;
        choice.factors[at] = factor_of(gate, ratio);
    }
}

// From the gates of a group to factors, by what they are multiplied; and what sums then count.
struct GateScale {
    float ratio = 0, unit = 1;

    GateScale(const float* gates, int32_t count) {
        float greatest = 0;
        for (int32_t i = 0; gates && i < count; ++i) {
            const float size = gates[i] < 0 ? -gates[i] : gates[i];
            greatest = size > greatest ? size : greatest;
        }
        if (greatest > 0 && greatest <= 3e38f) ratio = float(FULL_GATE) / greatest;
        if (gates) unit = ratio > 0 ? greatest * FULL_GATE_UNIT : 0;
    }
};

inline void choose(const ByteConv& conv, const int32_t* channels, const float* gates, int32_t count, void* memory) {
    const auto [ratio, unit] = GateScale(gates, count);
    const int32_t is_gated = gates != nullptr;
    memcpy(memory, &count, 4), memcpy(static_cast<char*>(memory) + 4, &unit, 4);
    memcpy(static_cast<char*>(memory) + 8, &is_gated, 4);
    const Choice choice(conv, memory);
    memset(choice.masks, 0, sizeof(uint64_t) * Choice::mask_count(conv));
    bool are_in_order = true;
    for (int32_t i = 0, last = -1; i < count; ++i) {
        const int32_t place = conv.positions ? conv.positions[channels[i]] : channels[i];
        choice.masks[place / 64] |= uint64_t(1) << place % 64;
        are_in_order &= place > last;
        choice.channels[i] = last = place;
    }
    if (are_in_order)
        write_factors(choice, gates, ratio);
    else
        put_in_order(conv, choice, channels, gates, ratio);
    for (int i = 0; i < 32; ++i) choice.factors[count + i] = count ? choice.factors[i] : 0;
#if defined(DGCONV_SHUFFLES)
    const int32_t shuffles = write_shuffles(choice, conv.in_channels);
    memcpy(static_cast<char*>(memory) + 12, &shuffles, 4);
#endif
}

// The weights of a choice, behind what they were made for: memory that is all zeros was made for nothing.
struct Chosen {
    int32_t* made_for;  // the number of channels and 1, then they
    int32_t* start;     // [padded outputs]
    Weight* weights;

    Chosen(const ByteConv& conv, const BytePlan& plan, void* memory) : Chosen(conv, plan, (const void*)memory) {}
    Chosen(const ByteConv& conv, const BytePlan& plan, const void* memory) {
        char* at = static_cast<char*>(const_cast<void*>(memory));
        made_for = reinterpret_cast<int32_t*>(at);
        at += whole_lines(int64_t(conv.most_chosen + 1) * 4);
        start = reinterpret_cast<int32_t*>(at);
        weights = reinterpret_cast<Weight*>(at + whole_lines(int64_t(plan.padded_outputs()) * 4));
    }
};

inline int64_t chosen_bytes(const ByteConv& conv) {
    const BytePlan plan(conv);
    return whole_lines(int64_t(conv.most_chosen + 1) * 4) + whole_lines(int64_t(plan.padded_outputs()) * 4) +
           whole_lines(plan.weights_of(conv.most_chosen) * int64_t(sizeof(Weight)));
}

// Rows of LANES weights, GROUP of them or fewer, to weights that `dot` takes.
INLINE void interleave(const int8_t* const* rows, const bool* is_negative, Weight* to) {
#if defined(__AVX2__)
    if constexpr (GROUP == 4) {
        __m128i r[4];
        UNROLL for (int k = 0; k < 4; ++k) {
            r[k] = _mm_setzero_si128();
            if (!rows[k]) continue;
            r[k] = LANES == 16 ? _mm_loadu_si128((const __m128i*)rows[k]) : _mm_loadl_epi64((const __m128i*)rows[k]);
            if (is_negative[k]) r[k] = _mm_sub_epi8(_mm_setzero_si128(), r[k]);
        }
        const __m128i ab = _mm_unpacklo_epi8(r[0], r[1]), cd = _mm_unpacklo_epi8(r[2], r[3]);
        __m128i* const q = (__m128i*)to;
        _mm_storeu_si128(q, _mm_unpacklo_epi16(ab, cd));
        _mm_storeu_si128(q + 1, _mm_unpackhi_epi16(ab, cd));
        if constexpr (LANES == 16) {
            const __m128i ab2 = _mm_unpackhi_epi8(r[0], r[1]), cd2 = _mm_unpackhi_epi8(r[2], r[3]);
            _mm_storeu_si128(q + 2, _mm_unpacklo_epi16(ab2, cd2));
            _mm_storeu_si128(q + 3, _mm_unpackhi_epi16(ab2, cd2));
        }
        return;
    }
#endif
    for (int lane = 0; lane < LANES; ++lane) {
        for (int k = 0; k < GROUP; ++k) {
            const Weight w = rows[k] ? rows[k][lane] : 0;
            to[lane * GROUP + k] = is_negative[k] ? -w : w;
        }
    }
}

#if defined(__AVX512VNNI__)
// The same for four vectors of outputs.
INLINE void interleave_panel(const int8_t* const* rows, const bool* is_negative, int first, Weight* to) {
    __m512i r[4];
    UNROLL for (int k = 0; k < 4; ++k) {
        r[k] = rows[k] ? _mm512_loadu_si512(rows[k] + first) : _mm512_setzero_si512();
        if (is_negative[k]) r[k] = _mm512_sub_epi8(_mm512_setzero_si512(), r[k]);
    }
    const __m512i ab = _mm512_unpacklo_epi8(r[0], r[1]), cd = _mm512_unpacklo_epi8(r[2], r[3]);
    const __m512i ab2 = _mm512_unpackhi_epi8(r[0], r[1]), cd2 = _mm512_unpackhi_epi8(r[2], r[3]);
    const __m512i a = _mm512_unpacklo_epi16(ab, cd), b = _mm512_unpackhi_epi16(ab, cd);
    const __m512i c = _mm512_unpacklo_epi16(ab2, cd2), d = _mm512_unpackhi_epi16(ab2, cd2);
    // Quarter i of these is quarter 0, 1, 2, 3 of vector i.
    const __m512i low = _mm512_shuffle_i32x4(a, b, 0x44), high = _mm512_shuffle_i32x4(a, b, 0xee);
    const __m512i low2 = _mm512_shuffle_i32x4(c, d, 0x44), high2 = _mm512_shuffle_i32x4(c, d, 0xee);
    _mm512_storeu_si512(to, _mm512_shuffle_i32x4(low, low2, 0x88));
    _mm512_storeu_si512(to + 64, _mm512_shuffle_i32x4(low, low2, 0xdd));
    _mm512_storeu_si512(to + 128, _mm512_shuffle_i32x4(high, high2, 0x88));
    _mm512_storeu_si512(to + 192, _mm512_shuffle_i32x4(high, high2, 0xdd));
}
#endif

// The weights of all choices lie in rows of outputs: [group][tap][channel][padded output].
INLINE const int8_t* row_of(const ByteConv& conv, const BytePlan& plan, int group, int tap, int channel) {
    const int64_t row = (int64_t(group) * plan.taps() + tap) * conv.in_channels + channel;
    return static_cast<const int8_t*>(conv.weight) + row * plan.padded_outputs();
}

constexpr int ROWS_AHEAD = 16;  // that are asked of memory before they are read

// The rows of a choice, tap by tap.
struct RowCursor {
    const ByteConv& conv;
    const BytePlan& plan;
    const Choice& choice;
    int group, tap, index = 0;

    RowCursor(const ByteConv& conv, const BytePlan& plan, const Choice& choice, int group, int tap)
        : conv(conv), plan(plan), choice(choice), group(group), tap(tap) {}
    INLINE bool is_negative() const { return choice.channels[index] < 0; }
    INLINE const int8_t* row() const {
        const int32_t code = choice.channels[index];
        return row_of(conv, plan, group, tap, code < 0 ? ~code : code);
    }
    INLINE void fetch() const {
        const int8_t* const first = row();
        for (int o = 0; o < plan.padded_outputs(); o += 64) __builtin_prefetch(first + o);
    }
    INLINE void advance() {
        if (++index == choice.count) index = 0, ++tap;
    }
};

inline void pack_chosen(const ByteConv& conv, int32_t group, const void* choice_memory, void* memory) {
    const BytePlan plan(conv);
    const Choice choice(conv, choice_memory);
    const Chosen chosen(conv, plan, memory);
    const int64_t key_bytes = int64_t(choice.count) * 4;
    if (chosen.made_for[0] == choice.count + 1 && !memcmp(chosen.made_for + 1, choice.channels, key_bytes)) return;
    chosen.made_for[0] = choice.count + 1;
    memcpy(chosen.made_for + 1, choice.channels, key_bytes);
    memset(chosen.start, 0, sizeof(int32_t) * plan.padded_outputs());
    const int64_t groups = plan.groups_of(choice.count);
    int64_t done = 0;
    for (int run = 0; run < plan.runs; ++run) {
        const int first_tap = run * plan.run_taps, length = plan.run_taps * choice.count;
        RowCursor next(conv, plan, choice, group, first_tap), ahead = next;
        for (int i = 0; i < smaller(length, ROWS_AHEAD); ++i) ahead.fetch(), ahead.advance();
        const int padded = plan.run_groups(choice.count) * GROUP;
        for (int first = 0; first < padded; first += GROUP, ++done) {
            const int8_t* rows[GROUP] = {};
            bool is_negative[GROUP] = {};
            for (int k = 0; k < GROUP && first + k < length; ++k, next.advance()) {
                rows[k] = next.row(), is_negative[k] = next.is_negative();
                if (first + k + ROWS_AHEAD < length) ahead.fetch(), ahead.advance();
                if (!conv.input_zero) continue;
                const int32_t times = is_negative[k] ? conv.input_zero : -conv.input_zero;
                for (int o = 0; o < plan.padded_outputs(); ++o) chosen.start[o] += times * rows[k][o];
            }
            for (int vector = 0; vector < plan.vectors;) {
                const int panel = plan.panel_at(vector);
                Weight* const to = chosen.weights + plan.place_of(vector, done, groups);
#if defined(__AVX512VNNI__)
                if (panel == 4) {
                    interleave_panel(rows, is_negative, vector * LANES, to);
                    vector += panel;
                    continue;
                }
#endif
                for (int v = 0; v < panel; ++v) {
                    const int8_t* at[GROUP];
                    for (int k = 0; k < GROUP; ++k) at[k] = rows[k] ? rows[k] + (vector + v) * LANES : nullptr;
                    interleave(at, is_negative, to + v * LANES * GROUP);
                }
                vector += panel;
            }
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
