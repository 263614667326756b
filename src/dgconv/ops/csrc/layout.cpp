// Where each field of each shared struct lies: dgconv/ops/structs.py compares it with its own idea when the library is
// loaded, so that a field that was added, moved or changed on one side alone is found before anything is computed.
#include <cstddef>

#include "program.h"

#define DGCONV_EXPORT extern "C" __attribute__((visibility("default")))
#define STRUCT(type) {#type, 0, sizeof(type)}
#define FIELD(type, name) {#type "." #name, offsetof(type, name), sizeof(type::name)}

using namespace dgconv;

namespace {

struct Entry {
    const char* name;
    int64_t offset, bytes;
};

const Entry entries[] = {
    STRUCT(Planes), FIELD(Planes, data), FIELD(Planes, image_stride), FIELD(Planes, channels), FIELD(Planes, height),
    FIELD(Planes, width),

    STRUCT(Conv), FIELD(Conv, in_channels), FIELD(Conv, out_channels), FIELD(Conv, kernel_h), FIELD(Conv, kernel_w),
    FIELD(Conv, stride_h), FIELD(Conv, stride_w), FIELD(Conv, pad_top), FIELD(Conv, pad_left),
    FIELD(Conv, dilation_h), FIELD(Conv, dilation_w), FIELD(Conv, groups), FIELD(Conv, dynamic), FIELD(Conv, weight),
    FIELD(Conv, in_scale), FIELD(Conv, in_shift), FIELD(Conv, in_activation), FIELD(Conv, bias),
    FIELD(Conv, activation), FIELD(Conv, interleaved), FIELD(Conv, beta),
    FIELD(Conv, few_pixels),

    STRUCT(Selection), FIELD(Selection, channels), FIELD(Selection, gates), FIELD(Selection, counts),

    STRUCT(Region), FIELD(Region, data), FIELD(Region, floats),

    STRUCT(Norm), FIELD(Norm, scale), FIELD(Norm, shift), FIELD(Norm, activation),

    STRUCT(Window), FIELD(Window, is_max), FIELD(Window, kernel_h), FIELD(Window, kernel_w), FIELD(Window, stride_h),
    FIELD(Window, stride_w), FIELD(Window, pad_top), FIELD(Window, pad_left),

    STRUCT(Resize), FIELD(Resize, is_bilinear), FIELD(Resize, aligns_corners), FIELD(Resize, ratio_h),
    FIELD(Resize, ratio_w),

    STRUCT(Gate), FIELD(Gate, channels), FIELD(Gate, heads), FIELD(Gate, hidden), FIELD(Gate, weight1),
    FIELD(Gate, weight2), FIELD(Gate, beta), FIELD(Gate, is_global), FIELD(Gate, keep), FIELD(Gate, threshold),
    FIELD(Gate, fixed),

    STRUCT(View), FIELD(View, offset), FIELD(View, image_stride), FIELD(View, place), FIELD(View, channels),
    FIELD(View, height), FIELD(View, width),

    STRUCT(ByteView), FIELD(ByteView, offset), FIELD(ByteView, image_stride), FIELD(ByteView, pixel_stride),
    FIELD(ByteView, place), FIELD(ByteView, channels), FIELD(ByteView, height), FIELD(ByteView, width),

    STRUCT(ToByte), FIELD(ToByte, low), FIELD(ToByte, high), FIELD(ToByte, zero),

    STRUCT(ByteConv), FIELD(ByteConv, in_channels), FIELD(ByteConv, out_channels), FIELD(ByteConv, kernel_h),
    FIELD(ByteConv, kernel_w), FIELD(ByteConv, stride_h), FIELD(ByteConv, stride_w), FIELD(ByteConv, pad_top),
    FIELD(ByteConv, pad_left), FIELD(ByteConv, dilation_h), FIELD(ByteConv, dilation_w), FIELD(ByteConv, groups),
    FIELD(ByteConv, chooses), FIELD(ByteConv, most_chosen), FIELD(ByteConv, is_depthwise), FIELD(ByteConv, joined),
    FIELD(ByteConv, weight),
    FIELD(ByteConv, start), FIELD(ByteConv, multiplier), FIELD(ByteConv, bias), FIELD(ByteConv, residual_scale),
    FIELD(ByteConv, input_zero), FIELD(ByteConv, result), FIELD(ByteConv, input_scale), FIELD(ByteConv, positions),
    FIELD(ByteConv, choices), FIELD(ByteConv, generator),

    STRUCT(ByteGenerator), FIELD(ByteGenerator, weight1), FIELD(ByteGenerator, weight2), FIELD(ByteGenerator, scale),

    STRUCT(Step), FIELD(Step, kind), FIELD(Step, activation), FIELD(Step, input), FIELD(Step, output),
    FIELD(Step, other), FIELD(Step, factor), FIELD(Step, conv), FIELD(Step, expansion), FIELD(Step, gate), FIELD(Step, fixed),
    FIELD(Step, before), FIELD(Step, window), FIELD(Step, resize), FIELD(Step, epsilon), FIELD(Step, weight),
    FIELD(Step, scale), FIELD(Step, bias), FIELD(Step, order),
    FIELD(Step, output_sums), FIELD(Step, input_sums), FIELD(Step, input_parts), FIELD(Step, regions_end),
    FIELD(Step, gate_memory), FIELD(Step, input_winners),
    FIELD(Step, byte_input), FIELD(Step, byte_output), FIELD(Step, byte_other), FIELD(Step, bytes),
    FIELD(Step, choices), FIELD(Step, chosen),

    STRUCT(Program), FIELD(Program, steps), FIELD(Program, step_count), FIELD(Program, batch),
    FIELD(Program, regions), FIELD(Program, region_count), FIELD(Program, scratch), FIELD(Program, scratch_floats),
    FIELD(Program, chosen_bytes),
};

}  // namespace

DGCONV_EXPORT int32_t dgconv_layout(const Entry** first) {
    *first = entries;
    return sizeof(entries) / sizeof(Entry);
}
