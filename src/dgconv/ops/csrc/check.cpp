// Refuses what the kernels would not survive. Python writes programs that pass; a file may have told it to write one
// that does not, and a mistake there must not become a wild address here.
#include "check.h"

#include "table.h"

#define DGCONV_EXPORT extern "C" __attribute__((visibility("default")))

namespace dgconv {
namespace {

constexpr int64_t MOST_CHANNELS = 1 << 24, MOST_SIDE = 1 << 24, MOST_TAPS = 1 << 24, MOST_REACH = 1 << 20;
constexpr int64_t MOST_STRIDE = 1 << 16, MOST_FLOATS = INT32_MAX;  // of a value, of packed weights, of scratch
constexpr int64_t MOST_EXTRA = 1 << 16;                            // rows or columns of padding below or to the right

// A product or sum of sizes, none of them negative; TOO_LARGE once it is beyond any memory.
struct Size {
    static constexpr int64_t TOO_LARGE = int64_t(1) << 60;
    int64_t value;

    explicit Size(int64_t value) : value(value < 0 ? TOO_LARGE : value) {}
    Size operator*(int64_t factor) const {
        int64_t product;
        return Size(factor < 0 || __builtin_mul_overflow(value, factor, &product) || product > TOO_LARGE ? TOO_LARGE
                                                                                                        : product);
    }
    Size operator+(int64_t more) const {
        int64_t sum;
        return Size(more < 0 || __builtin_add_overflow(value, more, &sum) || sum > TOO_LARGE ? TOO_LARGE : sum);
    }
    bool is_at_most(int64_t most) const { return value <= most; }
};

bool is_within(int64_t value, int64_t least, int64_t most) { return least <= value && value <= most; }

bool is_activation(int32_t activation) { return is_within(activation, IDENTITY, GELU_TANH); }
bool may_follow_norm(int32_t activation) { return is_within(activation, IDENTITY, RELU6); }

bool is_one_direction(int64_t kernel, int64_t stride, int64_t pad, int64_t dilation) {
    return is_within(kernel, 1, MOST_REACH) && is_within(stride, 1, MOST_STRIDE) && is_within(pad, 0, MOST_REACH) &&
           is_within(dilation, 1, MOST_REACH) && (kernel - 1) * dilation < MOST_REACH;
}

bool is_shape(const View& view) {
    return is_within(view.channels, 0, MOST_CHANNELS) && is_within(view.height, 0, MOST_SIDE) &&
           is_within(view.width, 0, MOST_SIDE) &&
           (Size(view.channels) * view.height * view.width).is_at_most(MOST_FLOATS);
}

// Bytes in the place of floats.
constexpr int64_t MOST_BYTE_CHANNELS = 1 << 14, MOST_TERMS = 1 << 16;  // of a sum in 32 bits
constexpr int64_t MOST_DEPTHWISE_TAPS = 121;
constexpr int64_t BYTE_SLACK = 64;                                     // that kernels may read beyond the last

bool is_shape(const ByteView& view) {
    return is_within(view.channels, 0, MOST_BYTE_CHANNELS) && is_within(view.height, 0, MOST_SIDE) &&
           is_within(view.width, 0, MOST_SIDE) &&
           (Size(view.channels) * view.height * view.width).is_at_most(MOST_FLOATS);
}

bool is_same_shape(const ByteView& a, const ByteView& b) {
    return a.channels == b.channels && a.height == b.height && a.width == b.width;
}

bool is_byte(int32_t value) { return is_within(value, 0, 255); }

// Whether every result, zero added, is a byte. NaN is refused.
bool is_sound(const ToByte& to) {
    return is_byte(to.zero) && to.low + float(to.zero) >= 0 && to.low <= to.high && to.high + float(to.zero) <= 255;
}

int64_t floats_of(const View& view) { return int64_t(view.channels) * view.height * view.width; }

// Whether windows over so many pixels give so many results. Some may reach into padding at the end that no struct tells.
bool gives(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation, int64_t extra) {
    const int64_t covered = in + 2 * pad, reach = (kernel - 1) * dilation + 1;
    if (in < 1 || out < 1) return false;
    const int64_t least = covered < reach ? 1 : (covered - reach) / stride + 1;
    const int64_t most = covered + extra < reach ? 0 : (covered + extra - reach) / stride + 1;
    return is_within(out, least, most);
}

bool gives(const ByteConv& conv, const ByteView& x, const ByteView& y) {
    return x.channels == conv.in_channels && y.channels == conv.out_channels &&
           gives(x.height, y.height, conv.kernel_h, conv.stride_h, conv.pad_top, conv.dilation_h, MOST_EXTRA) &&
           gives(x.width, y.width, conv.kernel_w, conv.stride_w, conv.pad_left, conv.dilation_w, MOST_EXTRA);
}

bool gives(const Conv& conv, const View& x, const View& y, int64_t extra) {
    return x.channels == conv.in_channels && y.channels == conv.out_channels &&
           gives(x.height, y.height, conv.kernel_h, conv.stride_h, conv.pad_top, conv.dilation_h, extra) &&
           gives(x.width, y.width, conv.kernel_w, conv.stride_w, conv.pad_left, conv.dilation_w, extra);
}

bool is_same_shape(const View& a, const View& b) {
    return a.channels == b.channels && a.height == b.height && a.width == b.width;
}

bool is_row(const View& view) { return view.height == 1 && view.width == 1; }

bool has_both_or_none(const float* scale, const float* shift, int32_t activation) {
    return !scale == !shift && may_follow_norm(activation);
}

bool is_sound(const Window& window) {
    return is_one_direction(window.kernel_h, window.stride_h, window.pad_top, 1) &&
           is_one_direction(window.kernel_w, window.stride_w, window.pad_left, 1) &&
           2 * window.pad_top <= window.kernel_h && 2 * window.pad_left <= window.kernel_w &&
           int64_t(window.kernel_h) * window.kernel_w <= MOST_FLOATS;
}

// What the gathered input of an item may take at most, however it is cut: with this in bounds, no sum of sizes in the
// plans overflows.
bool has_sound_scratch(const Conv& conv, const View& x, const View& y) {
    const int64_t reach = int64_t(conv.kernel_h) * conv.dilation_h, phases = reach < conv.stride_h ? reach : conv.stride_h;
    const int64_t rows = int64_t(y.height) + reach + 64, width = int64_t(y.width) + 64;
    const int64_t pitch = int64_t(x.width) + conv.pad_left + int64_t(y.width) * conv.stride_w +
                          int64_t(conv.kernel_w) * conv.dilation_w + 64;
    const Size gathered = Size(rows) * width * phases * (int64_t(conv.kernel_w) + 36) * (int64_t(conv.in_channels) + 64);
    const Size padded = Size(rows) * conv.stride_h * pitch * 64;
    const Size products = Size(rows) * width * (int64_t(conv.out_channels) + 64) * 64;
    return gathered.is_at_most(Size::TOO_LARGE / 4) && padded.is_at_most(Size::TOO_LARGE / 4) &&
           products.is_at_most(Size::TOO_LARGE / 4);
}

// Of each part of the rows.
bool has_sound_sums(const ByteView& x) { return (int64_t(x.height) / SUM_PARTS + 1) * x.width <= MOST_SUMMED_BYTES; }

// The input of an item, row by row or window by window.
bool has_sound_scratch(const ByteConv& conv, const ByteView& y) {
    const int64_t rows = int64_t(y.height) * conv.stride_h + int64_t(conv.kernel_h) * conv.dilation_h;
    const int64_t columns = int64_t(y.width) * conv.stride_w + int64_t(conv.kernel_w) * conv.dilation_w;
    const Size by_row = Size(rows) * columns * conv.in_channels;
    const Size by_window = Size(y.height) * y.width * conv.kernel_h * conv.kernel_w * conv.in_channels;
    return by_row.is_at_most(Size::TOO_LARGE / 4) && by_window.is_at_most(Size::TOO_LARGE / 4);
}

enum Reason : int32_t {
    SOUND, KIND, SIZES, SHAPES, PLACE, OVERLAP, POINTER, GATE, SELECTION, ORDER, SUMS, SCRATCH, PROGRAM, REASONS
};

const char* const WORDS[REASONS] = {
    "nothing",
    "there is no such kind of step",
    "a number is out of range",
    "the sizes of what it reads and writes do not fit each other",
    "a value lies outside of its memory",
    "it writes over what it reads",
    "weights are missing",
    "its gate does not fit it",
    "its selection names channels that are not there",
    "its order names channels that are not there",
    "its sums lie outside of their memory",
    "it needs more scratch memory than there is",
    "the program itself has a number out of range",
};

// What one step may touch.
class Check {
  public:
    Check(const Program& program, int64_t input_floats, int64_t output_floats)
        : program(program), room{0, program.scratch, input_floats, output_floats} {}

    Reason step(const Step& step) const {
        if (!is_within(step.kind, CONV, BYTE_TABLE)) return KIND;
        if (!has_sound_sizes(step)) return SIZES;
        if (step.kind >= QUANTIZE) return of_bytes(step);
        const bool has_other = step.kind != EXPAND && step.other.place != NOWHERE;
        if (!is_in_place(step.input) || !is_in_place(step.output) || (has_other && !is_in_place(step.other))) {
            return PLACE;
        }
        if (step.output.place == INPUT) return PLACE;
        if (overlap(step.input, step.output) || (has_other && overlap(step.other, step.output))) return OVERLAP;
        if (has_other && !is_same_shape(step.other, step.output)) return SHAPES;
        if (step.kind == ELEMENTWISE && step.factor.place != NOWHERE) {
            if (!is_in_place(step.factor) || overlap(step.factor, step.output)) return PLACE;
            if (!is_row(step.factor) || step.factor.channels != step.output.channels) return SHAPES;
        }
        if (!has_both_or_none(step.before.scale, step.before.shift, step.before.activation)) return POINTER;
        if (const Reason reason = by_kind(step)) return reason;
        const int64_t scratch = dgconv_scratch_floats(&step);
        return is_within(scratch, 0, program.scratch_floats) ? SOUND : SCRATCH;
    }

  private:
    const Program& program;
    const int64_t room[4];

    // The items of a step, of which each writes some float, are counted with 32 bits.
    bool is_in_place(const View& view) const {
        if (!is_within(view.place, ARENA, OUTPUT) || view.offset < 0 || view.image_stride < floats_of(view)) return false;
        if (!(Size(program.batch) * floats_of(view)).is_at_most(MOST_FLOATS)) return false;
        return (Size(view.image_stride) * (program.batch - 1) + view.offset + floats_of(view))
            .is_at_most(room[view.place]);
    }

    bool is_in_arena(int64_t offset, Size floats) const {
        return offset >= 0 && (floats + offset).is_at_most(room[ARENA]);
    }

    // Channels of one buffer lie between each other's images: where the strides are equal, an image tells for all.
    bool overlap(const View& a, const View& b) const {
        if (a.place != b.place || !floats_of(a) || !floats_of(b)) return false;
        const int64_t images = a.image_stride == b.image_stride ? 0 : program.batch - 1;
        return a.offset < b.offset + images * b.image_stride + floats_of(b) &&
               b.offset < a.offset + images * a.image_stride + floats_of(a);
    }

    bool is_in_place(const ByteView& view) const {
        const bool is_sane = view.place == ARENA && view.offset >= 0 && view.pixel_stride >= view.channels;
        const Size image = Size(view.height) * view.width * view.pixel_stride;
        if (!is_sane || !image.is_at_most(view.image_stride) || !image.is_at_most(MOST_FLOATS)) return false;
        return (Size(view.image_stride) * program.batch).is_at_most(Size::TOO_LARGE / 2) &&
               (Size(view.offset) + bytes_behind(view) + BYTE_SLACK).is_at_most(room[ARENA] * 4);
    }

    // From the first byte of a view to behind its last.
    int64_t bytes_behind(const ByteView& view) const {
        const int64_t pixels = int64_t(view.height) * view.width;
        return pixels ? view.image_stride * (program.batch - 1) + (pixels - 1) * view.pixel_stride + view.channels : 0;
    }

    // Channels of one buffer lie between each other's pixels.
    bool overlap(const ByteView& a, const ByteView& b) const {
        const int64_t ahead = b.offset - a.offset;
        if (a.pixel_stride == b.pixel_stride && a.image_stride == b.image_stride) {
            if (ahead >= a.channels && ahead + b.channels <= a.pixel_stride) return false;
            if (-ahead >= b.channels && -ahead + a.channels <= a.pixel_stride) return false;
        }
        return ahead < bytes_behind(a) && -ahead < bytes_behind(b);
    }

    static bool are_positions(const int32_t* positions, int64_t count, int64_t most) {
        for (int64_t c = 0; positions && c < count; ++c)
            if (!is_within(positions[c], 0, most - 1)) return false;
        return true;
    }

    Reason of_bytes(const Step& step) const {
        const ByteView &x = step.byte_input, &y = step.byte_output;
        const bool reads_floats = step.kind == QUANTIZE, writes_floats = step.kind == DEQUANTIZE || step.kind == BYTE_MEAN;
        const bool has_other = step.byte_other.place != NOWHERE;
        if (reads_floats ? !is_in_place(step.input) : !is_in_place(x)) return PLACE;
        if (writes_floats ? !is_in_place(step.output) || step.output.place == INPUT : !is_in_place(y)) return PLACE;
        if (has_other && (!is_in_place(step.byte_other) || !is_same_shape(step.byte_other, y))) return SHAPES;
        if (!reads_floats && !writes_floats && overlap(x, y)) return OVERLAP;
        if (has_other && overlap(step.byte_other, y)) return OVERLAP;
        const ByteConv& bytes = step.bytes;
        if (!is_byte(bytes.input_zero) || !is_sound(bytes.result)) return SIZES;
        switch (step.kind) {
            case QUANTIZE: {
                const View& from = step.input;
                const bool is_same = from.channels == y.channels && from.height == y.height && from.width == y.width;
                return !is_same ? SHAPES : are_positions(bytes.positions, y.channels, y.channels) ? SOUND : ORDER;
            }
            case DEQUANTIZE: {
                const View& to = step.output;
                const bool is_same = to.channels == x.channels && to.height == x.height && to.width == x.width;
                return !is_same ? SHAPES : are_positions(bytes.positions, x.channels, x.channels) ? SOUND : ORDER;
            }
            case BYTE_MEAN:
                if (step.output.channels != x.channels || !is_row(step.output) || !x.height || !x.width) return SHAPES;
                return are_positions(bytes.positions, x.channels, x.channels) ? SOUND : ORDER;
            case RESCALE:
                if (x.height != y.height || x.width != y.width) return SHAPES;
                if (!bytes.positions && x.channels != y.channels) return SHAPES;
                if (!bytes.multiplier || !bytes.bias) return POINTER;
                return are_positions(bytes.positions, y.channels, x.channels) ? SOUND : ORDER;
            case BYTE_TABLE:
                if (x.channels != y.channels || x.height != y.height || x.width != y.width) return SHAPES;
                return bytes.weight ? SOUND : POINTER;
            case BYTE_POOL: {
                const Window& window = step.window;
                const bool fits = x.channels == y.channels &&
                                  gives(x.height, y.height, window.kernel_h, window.stride_h, window.pad_top, 1, 0) &&
                                  gives(x.width, y.width, window.kernel_w, window.stride_w, window.pad_left, 1, 0);
                return fits ? SOUND : SHAPES;
            }
        }
        return byte_convolution(step, bytes);
    }

    Reason byte_convolution(const Step& step, const ByteConv& conv) const {
        if (!gives(conv, step.byte_input, step.byte_output)) return SHAPES;
        if (!conv.weight || !conv.multiplier || !conv.bias || (!conv.start && !conv.chooses)) return POINTER;
        if ((conv.chooses == 1) != !!conv.choices) return POINTER;
        if (!are_positions(conv.positions, conv.in_channels, conv.in_channels)) return ORDER;
        if (conv.joined > 1 && conv.joined != byte_kernels().joined_groups(conv)) return ORDER;
        const int64_t scratch = dgconv_scratch_floats(&step);
        if (!is_within(scratch, 0, program.scratch_floats)) return SCRATCH;
        if (!has_gate(conv)) return SOUND;
        const Gate& gate = step.gate;
        if (gate.channels != conv.in_channels || gate.heads != conv.groups) return GATE;
        const ByteGenerator& bytes = conv.generator;
        const bool has_bytes = bytes.weight1 && bytes.weight2 && bytes.scale, has_floats = gate.weight1 && gate.weight2;
        if (!gate.beta || !(bytes.weight1 ? has_bytes : has_floats)) return POINTER;
        const int64_t most = gate.is_global ? conv.in_channels : gate.keep;
        if (!is_within(most, 0, conv.most_chosen) || !has_sound_choice(gate, conv.positions)) return GATE;
        if (!is_in_arena(step.gate_memory, Size(dgconv_gate_floats(&gate, 1)))) return GATE;
        if (!is_in_arena(step.choices, Size(dgconv_choice_floats(&conv)))) return GATE;
        if (folds(conv)) return SOUND;
        const Size chosen = Size(conv.groups) * byte_kernels().chosen_bytes(conv);
        return step.chosen >= 0 && (chosen + step.chosen).is_at_most(program.chosen_bytes) ? SOUND : GATE;
    }

    Reason by_kind(const Step& step) const {
        const View &x = step.input, &y = step.output;
        switch (step.kind) {
            case CONV:
                return convolution(step, step.conv);
            case DYNAMIC_CONV:
                if (const Reason reason = convolution(step, step.conv)) return reason;
                if (!step.conv.dynamic) return GATE;
                return step.fixed.channels ? selection(step) : gate(step, step.conv.in_channels, step.conv.groups);
            case WINNERS_CONV:
                if (const Reason reason = convolution(step, step.conv)) return reason;
                if (!step.conv.beta || step.conv.groups != 1) return GATE;
                if (step.conv.dynamic && !is_in_arena(step.input_winners, gate_memory(x.channels, 1))) return GATE;
                return gate(step, step.conv.out_channels, 1);
            case EXPAND:
                return expansion(step);
            case POOL:
                return is_pooled(step) ? SOUND : SHAPES;
            case GLOBAL_POOL:
                return x.channels == y.channels && is_row(y) ? SOUND : SHAPES;
            case LINEAR:
                if (!is_row(x) || !is_row(y)) return SHAPES;
                if (!is_activation(step.activation)) return KIND;
                return step.weight || !floats_of(y) ? SOUND : POINTER;
            case LAYER_NORM:
                return !is_same_shape(x, y) || !x.channels ? SHAPES : step.before.scale ? SOUND : POINTER;
            case RESIZE:
                return x.channels == y.channels && floats_of(x) && floats_of(y) ? SOUND : SHAPES;
            case PAD: {
                const int64_t top = step.window.pad_top, left = step.window.pad_left;
                const bool fits = x.channels == y.channels && top + x.height <= y.height && left + x.width <= y.width;
                return fits ? SOUND : SHAPES;
            }
        }
        if (!is_same_shape(x, y)) return SHAPES;
        for (int32_t channel = 0; step.order && channel < y.channels; ++channel) {
            if (!is_within(step.order[channel], 0, x.channels - 1)) return ORDER;
        }
        return is_activation(step.activation) ? SOUND : KIND;
    }

    static bool is_pooled(const Step& step) {
        const View &x = step.input, &y = step.output;
        const Window& window = step.window;
        return x.channels == y.channels && gives(x.height, y.height, window.kernel_h, window.stride_h, window.pad_top, 1, 0) &&
               gives(x.width, y.width, window.kernel_w, window.stride_w, window.pad_left, 1, 0);
    }

    // The convolution that writes the output.
    Reason convolution(const Step& step, const Conv& conv) const {
        const View& x = step.kind == EXPAND ? step.other : step.input;
        if (!gives(conv, x, step.output, MOST_EXTRA)) return SHAPES;
        if (!conv.weight || !has_both_or_none(conv.in_scale, conv.in_shift, conv.in_activation)) return POINTER;
        if (conv.dynamic && step.kind != DYNAMIC_CONV && step.kind != WINNERS_CONV) return GATE;
        if (conv.beta && step.kind != WINNERS_CONV) return GATE;
        if (step.output_sums < 0) return SOUND;
        const int32_t parts = kernels().conv_pool_parts(conv, step.output.height, step.output.width);
        return is_in_arena(step.output_sums, Size(program.batch) * conv.out_channels * parts) ? SOUND : SUMS;
    }

    Reason expansion(const Step& step) const {
        const Conv& first = step.expansion;
        const bool is_one_pixel = first.kernel_h == 1 && first.kernel_w == 1;
        if (!kernels().can_expand(first, step.conv)) return GATE;
        if (!gives(first, step.input, step.other, is_one_pixel ? 0 : MOST_EXTRA)) return SHAPES;
        return first.weight ? convolution(step, step.conv) : POINTER;
    }

    // At least what whoever reads the winners of a step finds there.
    Size gate_memory(int64_t channels, int64_t heads) const { return Size(program.batch) * heads * channels * 3; }

    Reason gate(const Step& step, int32_t channels, int32_t heads) const {
        const Gate& gate = step.gate;
        const int32_t pooled = gate.weight1 ? gate.channels : gate.hidden;
        if (gate.channels != channels || gate.heads != heads || pooled != step.input.channels) return GATE;
        if ((step.kind == DYNAMIC_CONV) != !!gate.weight1) return GATE;
        if (!gate.weight2 || !gate.beta) return POINTER;
        if (!gate.is_global && !is_within(gate.keep, 0, channels)) return GATE;
        if (!has_sound_choice(gate, nullptr)) return GATE;
        if (!is_in_arena(step.gate_memory, Size(dgconv_gate_floats(&gate, program.batch)))) return GATE;
        if (step.input_sums < 0) return SOUND;
        const bool has_sums = is_within(step.input_parts, 1, MOST_SIDE) &&
                              is_in_arena(step.input_sums, Size(program.batch) * pooled * step.input_parts);
        return has_sums ? SOUND : SUMS;
    }

    // Of a gate whose `keep` is up to its channels; in the order of positions, if there are any.
    static bool has_sound_choice(const Gate& gate, const int32_t* positions) {
        if (gate.fixed && gate.is_global) return false;
        for (int32_t head = 0; gate.fixed && head < gate.heads; ++head) {
            if (!are_ascending(gate.fixed + int64_t(head) * gate.keep, gate.keep, gate.channels, positions)) return false;
        }
        return true;
    }

    static bool are_ascending(const int32_t* chosen, int32_t count, int64_t channels,
                              const int32_t* positions = nullptr) {
        int64_t last = -1;
        for (int32_t i = 0; i < count; ++i) {
            if (!is_within(chosen[i], 0, channels - 1)) return false;
            const int64_t place = positions ? positions[chosen[i]] : chosen[i];
            if (place <= last) return false;
            last = place;
        }
        return true;
    }

    Reason selection(const Step& step) const {
        const int64_t entries = int64_t(program.batch) * step.conv.groups, channels = step.conv.in_channels;
        if (!step.fixed.counts) return POINTER;
        for (int64_t entry = 0; entry < entries; ++entry) {
            const int32_t* chosen = step.fixed.channels + entry * channels;
            const int32_t count = step.fixed.counts[entry];
            if (!is_within(count, 0, channels) || !are_ascending(chosen, count, channels)) return SELECTION;
        }
        return SOUND;
    }
};

}  // namespace

bool is_sound(const Conv& conv) {
    if (!is_within(conv.in_channels, 1, MOST_CHANNELS) || !is_within(conv.out_channels, 1, MOST_CHANNELS)) return false;
    if (!is_within(conv.groups, 1, conv.out_channels) || conv.out_channels % conv.groups) return false;
    if (!is_within(conv.dynamic, 0, 1) || !is_within(conv.interleaved, 0, 1)) return false;
    if (!is_within(conv.few_pixels, 0, 1)) return false;
    if (!conv.dynamic && conv.in_channels % conv.groups) return false;
    if (conv.beta && conv.groups != 1) return false;
    if (!is_one_direction(conv.kernel_h, conv.stride_h, conv.pad_top, conv.dilation_h)) return false;
    if (!is_one_direction(conv.kernel_w, conv.stride_w, conv.pad_left, conv.dilation_w)) return false;
    // Winners may be written by another item than the one that finishes their block.
    if (!is_activation(conv.activation) || (conv.beta && !may_follow_norm(conv.activation))) return false;
    if (!may_follow_norm(conv.in_activation)) return false;
    const int64_t inputs = conv.dynamic ? conv.in_channels : conv.in_channels / conv.groups;
    const Size terms = Size(inputs) * conv.kernel_h * conv.kernel_w;
    // Of a kernel of 3x3, Winograd's method makes one of 6x6; a few outputs may become a whole vector of them.
    return int64_t(conv.kernel_h) * conv.kernel_w <= MOST_TAPS && (terms * 4).is_at_most(MOST_FLOATS / 16) &&
           (terms * conv.out_channels * 8 + 64 * 64).is_at_most(MOST_FLOATS);
}

bool is_sound(const ByteConv& conv) {
    if (!is_within(conv.in_channels, 1, MOST_BYTE_CHANNELS) || !is_within(conv.out_channels, 1, MOST_BYTE_CHANNELS)) return false;
    if (!is_within(conv.groups, 1, conv.out_channels) || conv.out_channels % conv.groups) return false;
    if (!is_within(conv.chooses, 0, 3) || !is_within(conv.is_depthwise, 0, 1)) return false;
    if (!is_within(conv.joined, 1, conv.chooses || conv.is_depthwise ? 1 : conv.groups)) return false;
    if (conv.chooses ? !is_within(conv.most_chosen, 0, conv.in_channels) : conv.in_channels % conv.groups != 0) return false;
    const bool is_depthwise = conv.groups == conv.in_channels && conv.groups == conv.out_channels && !conv.chooses;
    if (conv.is_depthwise && !(is_depthwise && int64_t(conv.kernel_h) * conv.kernel_w <= MOST_DEPTHWISE_TAPS)) return false;
    if (!is_one_direction(conv.kernel_h, conv.stride_h, conv.pad_top, conv.dilation_h)) return false;
    if (!is_one_direction(conv.kernel_w, conv.stride_w, conv.pad_left, conv.dilation_w)) return false;
    const int64_t inputs = conv.chooses ? conv.in_channels : conv.in_channels / conv.groups;
    const Size terms = Size(inputs) * conv.kernel_h * conv.kernel_w;
    return terms.is_at_most(MOST_TERMS) && ((terms + 64) * (int64_t(conv.out_channels) + conv.groups * 16) * 4).is_at_most(MOST_FLOATS);
}

bool is_sound(const Gate& gate, int64_t batch) {
    const bool has_sizes = is_within(gate.channels, 1, MOST_CHANNELS) && is_within(gate.heads, 1, MOST_CHANNELS) &&
                           is_within(gate.hidden, gate.weight2 ? 1 : 0, MOST_CHANNELS) && batch >= 1;
    return has_sizes && (Size(batch) * gate.heads * gate.channels).is_at_most(MOST_FLOATS) &&
           (Size(batch) * gate.hidden).is_at_most(MOST_FLOATS) &&
           (Size(gate.heads) * gate.hidden * gate.channels).is_at_most(MOST_FLOATS);
}

bool has_sound_sizes(const Step& step) {
    const View &x = step.input, &y = step.output;
    if (!is_shape(x) || !is_shape(y) || !is_shape(step.other) || !is_shape(step.factor)) return false;
    const ByteView &from = step.byte_input, &to = step.byte_output;
    if (!is_shape(from) || !is_shape(to) || !is_shape(step.byte_other)) return false;
    switch (step.kind) {
        case BYTE_CONV:
            return is_sound(step.bytes) && has_sound_scratch(step.bytes, to) &&
                   (!has_gate(step.bytes) || (is_sound(step.gate, 1) && has_sound_sums(from)));
        case BYTE_POOL:
            return is_sound(step.window) && int64_t(step.window.kernel_h) * step.window.kernel_w <= MOST_SUMMED_BYTES;
        case POOL:
            return is_sound(step.window) &&
                   (Size(y.width) * step.window.stride_w + step.window.kernel_w).is_at_most(MOST_FLOATS);
        case PAD:
            return is_within(step.window.pad_top, 0, MOST_REACH) && is_within(step.window.pad_left, 0, MOST_REACH);
        case EXPAND:
            return is_sound(step.expansion) && is_sound(step.conv) && has_sound_scratch(step.expansion, x, step.other) &&
                   has_sound_scratch(step.conv, step.other, y);
        case DYNAMIC_CONV:
        case WINNERS_CONV:
            return is_sound(step.conv) && has_sound_scratch(step.conv, x, y) && is_sound(step.gate, 1);
        case CONV:
            return is_sound(step.conv) && has_sound_scratch(step.conv, x, y);
    }
    return true;
}

}  // namespace dgconv

using namespace dgconv;

DGCONV_EXPORT int64_t dgconv_check_program(const Program* program, int64_t input_floats, int64_t output_floats) {
    const bool is_sane = program->step_count >= 0 && program->batch >= 1 && program->scratch >= 0 &&
                         program->scratch_floats >= 0 && program->region_count >= 0 && input_floats >= 0 &&
                         output_floats >= 0;
    if (!is_sane) return PROGRAM;
    const Check check(*program, input_floats, output_floats);
    for (int64_t index = 0; index < program->step_count; ++index) {
        const Step& step = program->steps[index];
        const bool has_regions = is_within(step.regions_end, 0, program->region_count);
        const Reason reason = has_regions ? check.step(step) : PROGRAM;
        if (reason) return (index + 1) * 256 + reason;
    }
    return SOUND;
}

DGCONV_EXPORT const char* dgconv_refusal(int32_t reason) {
    return WORDS[is_within(reason, 0, REASONS - 1) ? reason : PROGRAM];
}
