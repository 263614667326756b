// Collects the input of one item for the direct forms: the channels to convolve, normalized, gated and padded, laid out
// so that each tap of the kernel reads its pixels one after the other.
#pragma once

#include "conv_plan.h"

namespace dgconv::DGCONV_ISA {

// What is done to a channel of the input on the way.
struct Prepare {
    float scale, shift, gate;
    bool has_norm;
    int32_t activation;

    Prepare(const Conv& conv, const Item& item, int index, int channel)
        : scale(1), shift(0), gate(item.gates ? item.gates[index] : 1), has_norm(conv.in_scale), activation(IDENTITY) {
        if (has_norm) {
            scale = conv.in_scale[channel];
            shift = conv.in_shift[channel];
            activation = conv.in_activation;
        }
    }

    INLINE Vec operator()(Vec v) const { return has_norm ? activate(v * scale + shift, activation) * gate : v * gate; }

    INLINE void copy(const float* from, float* to, int count) const {
        int i = 0;
        for (; i + WIDTH <= count; i += WIDTH) store(to + i, (*this)(load(from + i)));
        if (i < count) store_first(to + i, (*this)(load_first(from + i, count - i)), count - i);
    }

    // The same with zeros behind, up to a whole vector: what follows may read it at once, not after a partial store.
    INLINE void copy_whole(const float* from, float* to, int count) const {
        for (int i = 0; i < count; i += WIDTH) {
            const int rest = smaller(WIDTH, count - i);
            const Vec v = rest == WIDTH ? load(from + i) : load_first(from + i, rest);
            store(to + i, rest == WIDTH ? (*this)(v) : first_lanes((*this)(v), rest));
        }
    }
};

// The rows of one channel that an item needs, with their padding.
struct PaddedPlane {
    int rows, pitch;

    PaddedPlane(const Conv& conv, const Plan& plan, int in_w, int out_w) {
        rows = (plan.rows - 1) * conv.stride_h + (conv.kernel_h - 1) * conv.dilation_h + 1;
        const int reach = (out_w - 1) * conv.stride_w + (conv.kernel_w - 1) * conv.dilation_w + 1;
        // May be read past the end. Rows begin where cache lines do.
        pitch = round_up(larger(reach, conv.pad_left + in_w) + 2 * WIDTH, WIDTH);
    }

    int64_t floats() const { return int64_t(rows + 1) * pitch; }

    // Columns outside the image are never written: the caller sets all to 0 once.
    INLINE void fill(const Conv& conv, const Item& item, const Planes& x, const float* plane, const Prepare& prepare,
                     float* to) const {
        const int first = item.first_row * conv.stride_h - conv.pad_top;
        const int needed = rows - (item.full_rows - item.rows) * conv.stride_h;
        for (int row = 0; row < needed; ++row, to += pitch) {
            const int y = first + row;
            if (y >= 0 && y < x.height) {
                prepare.copy_whole(plane + int64_t(y) * x.width, to + conv.pad_left, x.width);
            } else {
                for (int i = 0; i < conv.pad_left + x.width; i += WIDTH) store(to + i, Vec{});
            }
        }
    }
};

// For one channel there is a copy for each column of the kernel, shifted by it: [kernel column][row phase][row][out_w].
// Then pixel p of the item (rows flattened) lies p floats behind where pixel 0 lies, for every tap and any stride: a
// tile may cross rows. Rows are shared by the kernel's rows; a vertical stride separates them by phase.
struct TapLayout {
    int phases, rows;  // rows of one phase
    int width;
    int64_t copy, channel;  // floats of one kernel column and phase, of one channel

    TapLayout(const Conv& conv, const Plan& plan, int out_w) : width(out_w) {
        const int reach = (conv.kernel_h - 1) * conv.dilation_h;
        phases = smaller(conv.stride_h, reach + 1);
        rows = plan.rows + reach / conv.stride_h;
        copy = int64_t(rows) * width + WIDTH;  // a vector may be written or read past the end
        channel = copy * phases * conv.kernel_w;
    }

    int64_t offset(const Conv& conv, int kernel_row, int kernel_column) const {
        const int row = kernel_row * conv.dilation_h;
        return (int64_t(kernel_column) * phases + row % conv.stride_h) * copy + int64_t(row / conv.stride_h) * width;
    }
};

// Every `stride`th float; may read and write a vector past the end.
INLINE void copy_strided(const float* from, float* to, int count, int stride) {
    if (stride == 1) {
        for (int i = 0; i < count; i += WIDTH) store(to + i, load(from + i));
    } else if (stride == 2) {
        for (int i = 0; i < count; i += WIDTH) {
            store(to + i, shuffle<Even>(load(from + 2 * i), load(from + 2 * i + WIDTH)));
        }
    } else {
        for (int i = 0; i < count; ++i) to[i] = from[int64_t(i) * stride];
    }
}

// Without padding or stride, channels are copied as they lie.
inline bool is_flat(const Conv& conv, const Item& item, const Planes& x, int out_w) {
    return is_pointwise(conv) && x.width == out_w && item.first_row + item.rows <= x.height;
}

// A kernel of one pixel without padding: of each channel only the pixels that it reads.
INLINE bool picks_pixels(const Conv& conv, const Item& item, const Planes& x, int out_w) {
    return conv.kernel_h == 1 && conv.kernel_w == 1 && !conv.pad_top && !conv.pad_left && conv.stride_w == 2 &&
           (item.first_row + item.rows - 1) * conv.stride_h < x.height && (out_w - 1) * conv.stride_w < x.width;
}

// Every second pixel of some rows; none is read that is not there.
INLINE void pick_pixels(const Conv& conv, const Item& item, const Prepare& prepare, const float* from, int width,
                        int out_w, float* to) {
    from += int64_t(item.first_row) * conv.stride_h * width;
    for (int row = 0; row < item.rows; ++row, from += int64_t(conv.stride_h) * width, to += out_w) {
        for (int i = 0; i < out_w; i += WIDTH) {
            const int reach = smaller(2 * WIDTH, 2 * (out_w - i) - 1);
            const Vec near = reach < WIDTH ? load_first(from + 2 * i, reach) : load(from + 2 * i);
            const Vec far = reach <= WIDTH       ? Vec{}
                            : reach < 2 * WIDTH ? load_first(from + 2 * i + WIDTH, reach - WIDTH)
                                                : load(from + 2 * i + WIDTH);
            store(to + i, prepare(shuffle<Even>(near, far)));
        }
    }
}

inline void gather(const Conv& conv, const PaddedPlane& padded, const TapLayout& layout, const Item& item,
                   const Planes& x, float* plane, float* gathered) {
    const bool flat = is_flat(conv, item, x, layout.width), picks = picks_pixels(conv, item, x, layout.width);
    const int last_row = (conv.kernel_h - 1) * conv.dilation_h + (item.rows - 1) * conv.stride_h;
    for (int index = 0; index < item.kept; ++index, gathered += layout.channel) {
        const int channel = item.first_channel + item.channel(index);
        const Prepare prepare(conv, item, index, channel);
        const float* from = x.data + item.image * x.image_stride + int64_t(channel) * x.height * x.width;
        if (flat) {
            prepare.copy(from + int64_t(item.first_row) * x.width, gathered, item.pixels);
            continue;
        }
        if (picks) {
            pick_pixels(conv, item, prepare, from, x.width, layout.width, gathered);
            continue;
        }
        padded.fill(conv, item, x, from, prepare, plane);
        for (int column = 0; column < conv.kernel_w; ++column) {
            for (int phase = 0; phase < layout.phases; ++phase) {
                const float* row = plane + int64_t(phase) * padded.pitch + column * conv.dilation_w;
                float* to = gathered + (int64_t(column) * layout.phases + phase) * layout.copy;
                for (int y = phase; y <= last_row; y += conv.stride_h) {
                    copy_strided(row, to, layout.width, conv.stride_w);
                    row += int64_t(conv.stride_h) * padded.pitch;
                    to += layout.width;
                }
            }
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
