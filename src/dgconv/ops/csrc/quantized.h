// What the kernels for 8-bit values are given and promise; see kernels.h for those for floats.
//
// A value is pixels, NHWC: the channels of a pixel lie together, one unsigned byte each, and stand for
// scale * (byte - zero). Weights are signed bytes, sums are exact in 32 bits, and what becomes of a sum is computed in
// float32, one rounded operation after the other (these units are compiled without fused multiply-add). So every
// instruction set and any number of threads give the same bits. deploy/run/integer_steps.py says the same in Python.
#pragma once

#include "kernels.h"

namespace dgconv {

struct Pixels {
    uint8_t* data;
    int64_t image_stride, pixel_stride;  // bytes
    int32_t channels, height, width;
};

// How a result v becomes a byte: v is clamped to [low, high], rounded to the nearest integer, ties to even, and `zero`
// is added. NaN becomes `low`. An activation is a narrower clamp.
struct ToByte {
    float low, high;
    int32_t zero;
};

// The weights of a generator as bytes: W2 (scale * relu(W1 p)) + beta; the rest is in the Gate.
struct ByteGenerator {
    const int8_t *weight1, *weight2;  // [H, hidden, C]; [H, hidden, C], that is W2 transposed; or null: floats of the Gate
    const float* scale;               // [H, hidden]
};

// A convolution of bytes: v = sum * multiplier[o] + bias[o] + residual * residual_scale, sum being that of
// weight * (x - input_zero), 0 in the padding.
//
// Outputs come in groups, which lie one behind the other: the order of channels within a value is whatever suits its
// writer. Each group reads a block of the inputs, or those of its Choice.
struct ByteConv {
    int32_t in_channels, out_channels;
    int32_t kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
    int32_t groups;
    int32_t chooses;            // 0: blocks of inputs; 1: choices made beforehand; 2: the gate of each image chooses; 3: it
                                //   does, and its gates go into the weights
    int32_t most_chosen;        // channels of a choice, at most
    int32_t is_depthwise;
    int32_t joined;             // groups that share a vector, as joined_groups said; or 1
    const void* weight;         // as pack_weights wrote it, for this instruction set
    const int32_t* start;       // [C']: what sums begin with, -input_zero times the sum of the weights; not if it chooses
    const float *multiplier, *bias;  // [C'], and as many more as fill a vector
    float residual_scale;
    int32_t input_zero;
    ToByte result;
    float input_scale;          // for the means that a gate looks at
    const int32_t* positions;   // [C]: where each channel, as the gate and joined groups count, lies in a pixel; null: there
    const void* choices;        // chooses == 1: [groups], choice_bytes each, and below their weights
    ByteGenerator generator;    // of a gate
};

inline bool has_gate(const ByteConv& conv) { return conv.chooses >= 2; }
inline bool folds(const ByteConv& conv) { return conv.chooses == 3; }

struct ByteKernels {
    const char* name;

    // How many narrow groups of blocks may share a vector.
    int32_t (*joined_groups)(const ByteConv&);
    // Weights [C', inputs of a group, kh, kw] in the order in which the channels lie, or of joined groups in their own.
    int64_t (*packed_bytes)(const ByteConv&);
    void (*pack_weights)(const ByteConv&, const int8_t* weight, void* packed);
    // The channels that a group reads of an image, and their weights, packed; bytes for one group.
    int64_t (*choice_bytes)(const ByteConv&);
    int64_t (*chosen_bytes)(const ByteConv&);
    // Notes a choice: `channels` as a gate counts them, ascending, and their gates, or null.
    void (*choose)(const ByteConv&, const int32_t* channels, const float* gates, int32_t count, void* choice);
    // Packs the weights of a choice unless they are packed already: `chosen` begins with what it was made for.
    void (*pack_chosen)(const ByteConv&, int32_t group, const void* choice, void* chosen);

    // Of gates that go into the weights: room for what becomes of them, which `conv` takes as `choices`; the gates of a head,
    // channels as in `choose`; and then, once all heads are there, the weights.
    int64_t (*folded_bytes)(const ByteConv&);
    void (*note_gates)(const ByteConv&, int32_t head, const int32_t* channels, const float* gates, int32_t count,
                       void* folded);
    void (*fold)(const ByteConv&, void* folded, int rank, int threads);

    int64_t (*conv_scratch_bytes)(const ByteConv&, int32_t in_h, int32_t in_w, int32_t out_h, int32_t out_w);
    // One image. `choices` and `chosen`: of all groups, or null.
    void (*conv)(const ByteConv&, const void* choices, const void* chosen, Pixels x, Pixels y, const Pixels* residual,
                 void* scratch, Ahead* ahead, int rank, int threads);

    // sums[part * C + c], parts rows of the image each; [parts] are whatever `parts` says.
    void (*sum_pixels)(Pixels x, int32_t parts, int32_t* sums, int rank, int threads);
    // means[c] in the order of the gate.
    void (*means)(const ByteConv&, int32_t parts, const int32_t* sums, int64_t pixels, float* means);

    // saliency [H, C] of one image; `hidden` has room for the units of a head.
    void (*generate)(const Gate&, const ByteGenerator&, const float* means, float* saliency, float* hidden, int rank,
                     int threads);

    // From planes, and to planes; `positions` as above. v = x * scale: to bytes; x = (byte - zero) * scale: to floats.
    void (*quantize)(const float* planes, Pixels y, const int32_t* positions, float scale, ToByte, int rank, int threads);
    void (*dequantize)(Pixels x, float* planes, const int32_t* positions, float scale, int32_t zero, int rank,
                       int threads);
    // v = x[from[c]] * scale[c] + shift[c] + other * other_scale; from may be null.
    void (*rescale)(Pixels x, const int32_t* from, const float* scale, const float* shift, const Pixels* other,
                    float other_scale, Pixels y, ToByte, int rank, int threads);
    void (*pool)(int32_t is_max, int32_t kernel_h, int32_t kernel_w, int32_t stride_h, int32_t stride_w,
                 int32_t pad_top, int32_t pad_left, int32_t zero, Pixels x, Pixels y, int rank, int threads);
    // y = table[x], of 256 bytes.
    void (*look_up)(const uint8_t* table, Pixels x, Pixels y, int rank, int threads);
    // row[order[c]] = (mean of the bytes c - zero) * scale.
    void (*mean_row)(Pixels x, const int32_t* order, float scale, int32_t zero, float* row, int rank, int threads);
};

extern const ByteKernels byte_avx512_amx_kernels, byte_avx512_vbmi2_kernels, byte_avx512_vnni_kernels,
    byte_avx_vnni_kernels, byte_avx2_kernels, byte_portable_kernels;

const ByteKernels& byte_kernels();

constexpr int32_t SUM_PARTS = 8;  // into which the rows of an image are cut at most, to be added up by several threads
constexpr int64_t MOST_SUMMED_BYTES = INT32_MAX / 255;  // bytes that are added up in 32 bits

}  // namespace dgconv
