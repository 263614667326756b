// The first of two joined convolutions: makes rows of the image that lies between them, a vector of channels at a time.
#pragma once

#include "ahead.h"
#include "conv_depthwise.h"
#include "conv_gather.h"
#include "conv_tile.h"

namespace dgconv::DGCONV_ISA {

// What a tile reads and how it finishes. A term is one tap of one channel.
struct RowFactors {
    const int64_t* terms;  // where each lies, from a pixel's first; the last one PREFETCH_TERMS times more
    int term_count;
    const float* weight;
    int weight_step;
    const float* bias;  // a vector
    Bounds bounds;
    Ahead* ahead;
};
constexpr int PREFETCH_TERMS = 4;

// PIXELS neighbours, which lie STEP floats apart in the input.
template <int PIXELS, int STEP>
void row_tile(const RowFactors& f, const float* x, RowPlace& place) {
    Vec acc[PIXELS][1];
    UNROLL for (int i = 0; i < PIXELS; ++i) acc[i][0] = load(f.bias);
    Lines lines = take_lines(f.ahead, f.term_count);
    const float* w = f.weight;
    for (int term = 0; term < f.term_count; ++term, w += f.weight_step) {
        prefetch<1>(x + f.terms[term + PREFETCH_TERMS]);
        lines.fetch();
        multiply_add<PIXELS, 1, STEP>(acc, x + f.terms[term], w);
    }
    RowPlace p = place;
    const Bounds bounds = f.bounds;
    UNROLL for (int i = 0; i < PIXELS; ++i) p.put(bounds(acc[i][0]));
    place = p;
}

typedef void (*RowTile)(const RowFactors&, const float*, RowPlace&);
constexpr int ROW_TILE = TILE;  // pixels
template <size_t... size>
RowTile row_tile_of(int pixels, int step, std::index_sequence<size...>) {
    static constexpr RowTile near[] = {row_tile<size + 1, 1>...}, far[] = {row_tile<size + 1, 2>...};
    return step == 1 ? near[pixels - 1] : far[pixels - 1];
}

// Makes rows of `between`. 1x1 reads the input where it lies; any other kernel a padded copy of the rows it needs, of
// which `at_once` are made at a time at most.
class ExpandRows {
  public:
    ExpandRows(const Conv& conv, const Planes& x, const Planes& between, int at_once, float* scratch)
        : conv(conv), x(x), between(between), packed(plan_weights(conv)), at_once(at_once),
          padded(conv, plan_of(at_once), x.width, between.width), terms(reinterpret_cast<int64_t*>(scratch)) {
        const int floats_of_terms = 2 * (term_count() + PREFETCH_TERMS);
        copy = scratch + round_up(floats_of_terms, WIDTH);
        end = copy + (is_pointwise(conv) ? 0 : conv.in_channels * padded.floats());
    }

    int64_t scratch_floats() const { return end - reinterpret_cast<float*>(terms); }

    // Once for each thread: what lies outside the image is set to 0 and never written again.
    void begin_thread() const {
        memset(copy, 0, sizeof(float) * (end - copy));
        int64_t* to = terms;
        for (int channel = 0; channel < conv.in_channels; ++channel) {
            for (int row = 0; row < conv.kernel_h; ++row) {
                for (int column = 0; column < conv.kernel_w; ++column) *to++ = offset_of(channel, row, column);
            }
        }
        for (int i = 0; i < PREFETCH_TERMS; ++i, ++to) *to = to[-1];
    }

    // Some rows of the item's channels, to rows of pixels that are `pitch` floats apart.
    void make(const Item& item, int first_row, int rows, float* to, int64_t pitch, Ahead* ahead) const {
        const int panel = item.group / PANEL * PANEL;
        float bias[WIDTH] = {};
        for (int lane = 0; lane < item.outputs && conv.bias; ++lane) bias[lane] = conv.bias[item.group + lane];
        const RowFactors f{terms, term_count(), panel_of(conv, packed, 0, panel) + item.group - panel,
                           panel_width(packed, panel), bias, bounds_of(conv.activation), ahead};
        const int width = between.width;
        RowPlace place{to, width, width, pitch - int64_t(width) * WIDTH};
        if (is_pointwise(conv)) {
            make_pixels(f, x.data + item.image * x.image_stride + int64_t(first_row) * width, rows * width, place);
        } else {
            copy_rows(item, first_row, rows);
            for (int row = 0; row < rows; ++row) {
                make_pixels(f, copy + int64_t(row) * conv.stride_h * padded.pitch, width, place);
            }
        }
        if (is_bounds(conv.activation)) return;
        for (int row = 0; row < rows; ++row) activate_all(to + row * pitch, int64_t(width) * WIDTH, conv.activation);
    }

  private:
    static Plan plan_of(int rows) {
        Plan plan{};
        plan.rows = rows;
        return plan;
    }

    int term_count() const { return conv.in_channels * conv.kernel_h * conv.kernel_w; }

    int64_t offset_of(int channel, int row, int column) const {
        if (is_pointwise(conv)) return int64_t(channel) * x.height * x.width;
        return channel * padded.floats() + int64_t(row) * conv.dilation_h * padded.pitch + column * conv.dilation_w;
    }

    void make_pixels(const RowFactors& f, const float* from, int pixels, RowPlace& place) const {
        const int tiles = divide_up(pixels, ROW_TILE);
        for (int tile = 0; tile < tiles; ++tile) {
            const int pixel = share(pixels, tiles, tile), count = share(pixels, tiles, tile + 1) - pixel;
            const RowTile run = row_tile_of(count, conv.stride_w, std::make_index_sequence<ROW_TILE>());
            run(f, from + int64_t(pixel) * conv.stride_w, place);
        }
    }

    void copy_rows(const Item& item, int first_row, int rows) const {
        Item part{};
        part.first_row = first_row, part.rows = rows, part.full_rows = at_once;
        for (int channel = 0; channel < conv.in_channels; ++channel) {
            const float* plane = x.data + item.image * x.image_stride + int64_t(channel) * x.height * x.width;
            padded.fill(conv, part, x, plane, Prepare(conv, part, 0, channel), copy + channel * padded.floats());
        }
    }

    const Conv& conv;
    const Planes &x, &between;
    const Plan packed;
    const int at_once;
    const PaddedPlane padded;
    int64_t* const terms;
    float *copy, *end;
};

}  // namespace dgconv::DGCONV_ISA
