// How a convolution is cut into items of work, and where packed weights lie. All of it follows from shapes alone, never
// from the number of threads, so that results do not depend on it.
#pragma once

#include "vec.h"

namespace dgconv::DGCONV_ISA {

// With 2 vectors of one factor of a product in registers, how many scalars of the other fit beside; with 1 vector,
// twice as many.
constexpr int TILE = REGISTERS == 32 ? 14 : 6;

// Which way a convolution is computed.
enum Form {
    OUTPUT_LANES,      // a vector holds outputs of one pixel: wide groups
    PIXEL_LANES,       // a vector holds pixels of one output: narrow groups, and 1x1 over many pixels
    WINOGRAD,          // 3x3, stride 1: fewer multiplications on transformed tiles
    DEPTHWISE,         // a vector holds channels, each of which has a kernel of its own
    WINNERS,           // each image has outputs of its own: a vector holds pixels of one of them
    TILE_LANES,        // by Winograd's method, a vector holding tiles: winners, and narrow groups
};

constexpr INLINE int smaller(int a, int b) { return a < b ? a : b; }
INLINE int larger(int a, int b) { return a > b ? a : b; }
INLINE int divide_up(int a, int b) { return (a + b - 1) / b; }
INLINE int round_up(int a, int b) { return divide_up(a, b) * b; }
// Where part `index` of `parts` nearly equal ones begins.
INLINE int share(int64_t total, int64_t parts, int64_t index) { return static_cast<int>(total * index / parts); }

// Outputs of one group are packed in panels of two vectors, so that a tile of the product reads its weights in order:
// [group][panel][channel][tap][output of the panel]. The last panel may be one vector; a narrow group is one panel as
// wide as itself.
constexpr int PANEL = 2 * WIDTH;

struct Plan {
    Form form;
    int inputs, outputs;  // of a group; a head may read any channel
    int padded_outputs;   // as packed
    int step;             // between the outputs of a group: they are interleaved, or a block
    int taps;             // weights of one input and output, as packed
    int tile;             // WINOGRAD: outputs of a tile are tile x tile
    int rows, chunks;     // output rows of an item (the last has fewer)
    int block, blocks;    // outputs of an item (the last has fewer)
    int groups;           // that an item is one of, or 1: it has those of all heads, which share the transformed input
};

inline bool is_pointwise(const Conv& conv) {
    return conv.kernel_h == 1 && conv.kernel_w == 1 && conv.stride_h == 1 && conv.stride_w == 1 && !conv.pad_top &&
           !conv.pad_left;
}

// By Winograd's method, if there are enough inputs and outputs to pay for the transforms. With outputs in the lanes each
// head transforms what it reads; with tiles in the lanes all heads share what is transformed.
inline bool suits_winograd(const Conv& conv, const Plan& plan, bool has_tile_lanes) {
    const bool suits = conv.kernel_h == 3 && conv.kernel_w == 3 && conv.stride_h == 1 && conv.stride_w == 1 &&
                       conv.dilation_h == 1 && conv.dilation_w == 1;
    if (has_tile_lanes) return suits && plan.inputs >= 8 && (plan.outputs >= 4 || conv.beta);
    return suits && divide_up(conv.in_channels, conv.groups) >= 8;
}

// If the channels fill at least half a vector.
inline bool suits_depthwise(const Conv& conv, const Plan& plan) {
    return !conv.dynamic && plan.inputs == 1 && plan.outputs == 1 && 2 * conv.groups >= WIDTH &&
           conv.kernel_h == conv.kernel_w && (conv.kernel_h == 3 || conv.kernel_h == 5 || conv.kernel_h == 7) &&
           conv.stride_h == conv.stride_w && conv.stride_h <= 2 && conv.dilation_h == 1 && conv.dilation_w == 1;
}

// Everything that packed weights depend on.
inline Plan plan_weights(const Conv& conv) {
    Plan plan{};
    plan.inputs = conv.dynamic ? conv.in_channels : conv.in_channels / conv.groups;
    plan.outputs = conv.out_channels / conv.groups;
    plan.step = plan.outputs > 1 && (conv.dynamic || conv.interleaved) ? conv.groups : 1;
    const bool is_narrow = 2 * plan.outputs <= WIDTH;
    plan.form = is_narrow ? PIXEL_LANES : OUTPUT_LANES;
    plan.padded_outputs = is_narrow ? plan.outputs : round_up(plan.outputs, WIDTH);
    plan.taps = conv.kernel_h * conv.kernel_w;
    if (suits_depthwise(conv, plan)) plan.form = DEPTHWISE;
    if (conv.beta) plan.form = WINNERS, plan.padded_outputs = plan.outputs;
    const bool has_tile_lanes = conv.beta || is_narrow;
    if (suits_winograd(conv, plan, has_tile_lanes) && (has_tile_lanes || !conv.few_pixels)) {
        // Larger tiles multiply less, but their weights are four times the kernel's: too much to read for a few pixels,
        // and the widest layers of a network are those with the fewest pixels.
        plan.form = has_tile_lanes ? TILE_LANES : WINOGRAD;
        plan.tile = has_tile_lanes || int64_t(plan.inputs) * conv.out_channels <= 256 * 256 ? 4 : 2;
        plan.taps = (plan.tile + 2) * (plan.tile + 2);
    }
    return plan;
}

// Whether weights by Winograd's method, 4 or 16/9 times as many as there are, take longer to read than it takes to do
// without. Those must then be packed with few_pixels.
inline bool conv_has_few_pixels(const Conv& conv, int32_t out_h, int32_t out_w) {
    const Plan plan = plan_weights(conv);
    return plan.form == WINOGRAD && int64_t(out_h) * out_w <= (plan.tile == 4 ? 36 : 25);
}

inline Plan make_plan(const Conv& conv, int out_h, int out_w) {
    Plan plan = plan_weights(conv);
    // With outputs in the lanes results must be transposed, which short sums do not pay for, and lanes may be empty.
    const int terms = divide_up(conv.in_channels, conv.groups) * plan.taps;
    const int64_t pixels = int64_t(out_h) * out_w;
    const bool has_many_pixels = pixels >= 16 * WIDTH;
    if (plan.form == OUTPUT_LANES && has_many_pixels && (terms <= 128 || plan.outputs % WIDTH)) plan.form = PIXEL_LANES;
    // 1x1 without a norm can read the planes where they are, if pixels are in the lanes.
    const bool is_in_place = is_pointwise(conv) && !conv.in_scale && pixels >= 3 * WIDTH;
    if (plan.form == OUTPUT_LANES && is_in_place) plan.form = PIXEL_LANES;

    // The input of an item, as gathered, should stay in the second-level cache.
    int rows, unit = 1;
    if (plan.form == WINOGRAD) {
        unit = plan.tile;
        rows = larger(1, 2 * TILE / divide_up(out_w, plan.tile)) * plan.tile;
    } else if (plan.form == TILE_LANES) {
        unit = plan.tile;
        rows = larger(1, 2 * WIDTH / divide_up(out_w, plan.tile)) * plan.tile;
    } else if (plan.form == DEPTHWISE) {
        rows = larger(4, 3072 / (out_w * conv.stride_h * conv.stride_w));
    } else {
        const int64_t row = int64_t(out_w) * conv.kernel_w * divide_up(conv.in_channels, conv.groups);
        rows = smaller(divide_up(448, out_w), larger(divide_up(196, out_w), (int)((1 << 15) / row)));
        // As many rows as fill whole vectors of pixels.
        const int whole = 2 * WIDTH / smaller(2 * WIDTH, out_w & -out_w);
        if (plan.form != OUTPUT_LANES && whole <= rows) unit = whole, rows = rows / unit * unit;
    }
    plan.chunks = divide_up(out_h, rows);
    plan.rows = round_up(divide_up(out_h, plan.chunks), unit);
    plan.chunks = divide_up(out_h, plan.rows);

    // Where an item gathers much for few multiplications, it has more outputs.
    const bool gathers_much = plan.form == OUTPUT_LANES && plan.taps == 1 && conv.stride_w > 1;
    plan.blocks = divide_up(plan.outputs, (gathers_much ? 8 : 4) * PANEL);
    plan.block = smaller(plan.padded_outputs, round_up(divide_up(plan.outputs, plan.blocks), PANEL));
    plan.blocks = divide_up(plan.outputs, plan.block);
    plan.groups = plan.form == TILE_LANES && conv.dynamic ? 1 : conv.groups;
    return plan;
}

// The output channel that is the first of a group.
INLINE int first_output_of(const Plan& plan, int group) { return plan.step == 1 ? group * plan.outputs : group; }

inline int64_t group_floats(const Plan& plan) { return int64_t(plan.padded_outputs) * plan.inputs * plan.taps; }

// Width of the panel that starts at this output (a multiple of PANEL).
INLINE int panel_width(const Plan& plan, int first_output) {
    return smaller(PANEL, plan.padded_outputs - first_output);
}

INLINE const float* panel_of(const Conv& conv, const Plan& plan, int group, int first_output) {
    return conv.weight + group * group_floats(plan) + int64_t(first_output) * plan.inputs * plan.taps;
}

// One share of the work: some rows of some outputs of one group of one image.
struct Item {
    int image, group, chunk;
    int first_row, rows, pixels;
    int full_rows;             // of an item that is not the last
    int first_output, outputs;
    int first_channel;         // of the group
    int kept;                  // channels to convolve
    const int32_t* channels;   // which, or null: the group's own, in order
    const float* gates;        // their factors, or null

    INLINE int channel(int index) const { return channels ? channels[index] : index; }
};

// How items are numbered decides what a thread, whose share are neighbours, finds in its cache. Where a 1x1 convolution
// reads the planes in place and all weights fit there, those of the same pixels follow each other: from step to step a
// thread then meets the part of the image that it has written itself. Else it is those with the same weights.
struct ItemOrder {
    int groups, blocks, batch, chunks;
    bool by_pixels;

    ItemOrder(const Conv& conv, const Plan& plan, int batch)
        : groups(plan.groups), blocks(plan.blocks), batch(batch), chunks(plan.chunks) {
        constexpr int MANY = 4, FITTING = 1 << 16;  // chunks, for equal shares; floats, for the second-level cache
        const bool is_in_place = is_pointwise(conv) && !conv.in_scale;
        by_pixels = is_in_place && plan.chunks >= MANY && conv.groups * group_floats(plan) <= FITTING;
    }

    int64_t count() const { return int64_t(groups) * blocks * batch * chunks; }

    struct Place {
        int group, block, image, chunk;
    };
    INLINE Place place_of(int index) const {
        const auto next = [&index](int values) {
            const int value = index % values;
            index /= values;
            return value;
        };
        Place place;
        if (by_pixels) {
            place.block = next(blocks), place.group = next(groups), place.chunk = next(chunks), place.image = index;
        } else {
            place.chunk = next(chunks), place.image = next(batch), place.block = next(blocks), place.group = index;
        }
        return place;
    }
};

inline Item make_item(const Conv& conv, const Plan& plan, const Selection* selection, int batch, int out_h, int out_w,
                      int index) {
    const ItemOrder::Place place = ItemOrder(conv, plan, batch).place_of(index);
    Item item{};
    item.image = place.image;
    item.group = place.group;
    item.chunk = place.chunk;
    item.first_output = place.block * plan.block;
    item.first_row = item.chunk * plan.rows;
    item.full_rows = plan.rows;
    item.rows = smaller(plan.rows, out_h - item.first_row);
    item.pixels = item.rows * out_w;
    item.outputs = smaller(plan.block, plan.outputs - item.first_output);
    item.first_channel = conv.dynamic ? 0 : item.group * plan.inputs;
    item.kept = plan.inputs;
    if (conv.dynamic && plan.groups == conv.groups) {
        const int entry = item.image * conv.groups + item.group;
        item.kept = selection->counts[entry];
        item.channels = selection->channels + int64_t(entry) * conv.in_channels;
        item.gates = selection->gates ? selection->gates + int64_t(entry) * conv.in_channels : nullptr;
    }
    return item;
}

INLINE bool are_equal(const int32_t* values, int count) {
    int differing = 0;
    for (int i = 1; i < count; ++i) differing += values[i] != values[0];
    return differing == 0;
}

// The items of thread `rank`. Heads may keep different numbers of channels: a share is an equal part of the work, not
// of the items.
struct ItemShare {
    int begin, end;

    ItemShare(const Conv& conv, const Plan& plan, const Selection* selection, int batch, int rank, int threads) {
        const ItemOrder order(conv, plan, batch);
        const int count = static_cast<int>(order.count());
        begin = share(count, threads, rank), end = share(count, threads, rank + 1);
        const bool is_of_one_head = conv.dynamic && plan.groups == conv.groups;
        if (!is_of_one_head || threads == 1 || are_equal(selection->counts, batch * conv.groups)) return;
        const auto cost = [&](int index) {
            constexpr int OUTPUT_COST = 4;  // of finishing an item, in channels
            const ItemOrder::Place place = order.place_of(index);
            return int64_t(selection->counts[place.image * conv.groups + place.group] + OUTPUT_COST);
        };
        int64_t total = 0, before = 0;
        for (int index = 0; index < count; ++index) total += cost(index);
        begin = end = 0;
        for (int index = 0; index < count; ++index) {
            const int64_t own = cost(index), middle = 2 * before + own;  // of the item, times 2: it decides
            begin += middle * threads < 2 * total * rank;
            end += middle * threads < 2 * total * (rank + 1);
            before += own;
        }
    }
};

}  // namespace dgconv::DGCONV_ISA
