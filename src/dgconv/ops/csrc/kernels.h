// What the native kernels are given and promise. Raw pointers only: no torch headers, no allocation, no globals.
//
// Activations are float32 planes, NCHW: a channel is one contiguous plane of height x width, channels follow each other,
// images are `image_stride` floats apart. So a part of a wider tensor (what a concatenation joins) is a view like any
// other, and choosing channels is choosing pointers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dgconv {

struct Planes {
    float* data;
    int64_t image_stride;
    int32_t channels, height, width;
};

// The first three are pairs of bounds, and alone may follow a norm. GELU_TANH is GELU by its approximation with tanh.
enum Activation : int32_t {
    IDENTITY = 0, RELU = 1, RELU6 = 2,
    SILU = 3, HARD_SWISH = 4, HARD_SIGMOID = 5, SIGMOID = 6, TANH = 7, GELU = 8, GELU_TANH = 9
};

// A convolution: y = act(conv(pre(x)) + bias + residual), pre(x) = in_act(x * in_scale[c] + in_shift[c]) inside the image,
// 0 in the padding.
//
// dynamic: `groups` are heads. Head h owns the output channels h, h+H, h+2H, ... and convolves the channels that the
//          selection lists, each multiplied by its gate.
// static:  group g owns a block of C'/G output channels and convolves its block of C/G inputs (dense: one group).
struct Conv {
    int32_t in_channels, out_channels;
    int32_t kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
    int32_t groups, dynamic;
    const float* weight;               // as pack_conv wrote it, for this instruction set
    const float *in_scale, *in_shift;  // [C], or both null
    int32_t in_activation;
    const float* bias;  // [C'], or null
    int32_t activation;
    int32_t interleaved;  // static: group g owns the output channels g, g+G, ... as a head does
    const float* beta;    // [C'] if each image computes its winners only, else null; see Winners
    int32_t few_pixels;   // packed for small planes; see conv_has_few_pixels
};

// Which channels each head of each image takes: entry (b, h) has counts[b * H + h] of them, ascending, at
// channels + (b * H + h) * C, their gates at gates + (b * H + h) * C, all 1 if there are none.
struct Selection {
    const int32_t* channels;
    const float* gates;  // or null
    const int32_t* counts;
};

// Which outputs each image computes, if a convolution of one group has a beta: laid out as the selection of one head, of
// output channels. A winner is act(gate * (conv + bias) + beta + residual), any other output act(residual).
typedef Selection Winners;

// Memory that some step reads, and how far a thread has come in fetching regions ahead of time.
struct Region {
    const float* data;
    int64_t floats;
};
struct Ahead {
    const Region* regions;
    int32_t rank, threads;  // each thread fetches a part of every region
    int32_t next, end;      // the regions to begin with
    const float* from;      // what is left of the one before, in cache lines
    int64_t lines;
};

// activation(x * scale[c] + shift[c]); nothing at all if scale is null.
struct Norm {
    const float *scale, *shift;  // [C]
    int32_t activation;
};

// A pooling window. The average counts the padding, as torch does by default.
struct Window {
    int32_t is_max, kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left;
};

// How planes are made larger or smaller: row r of the result is taken at r * ratio_h of the input or, between two rows and
// with corners that are not aligned, at (r + 1/2) * ratio_h - 1/2.
struct Resize {
    int32_t is_bilinear, aligns_corners;
    float ratio_h, ratio_w;
};

// The generator and gate of a dynamic convolution, p being the mean of each channel:
//   s = W2 relu(W1 p) + beta, with a last relu for the head-wise gate.
// Without W1, p is the mean of the magnitudes of `hidden` channels, and s = W2 p + beta scores others: outputs.
// head-wise: the `keep` greatest, the lowest index winning a tie, NaN ranking last and -0 equal to 0.
// global (signed): those with |s| >= threshold; NaN never passes.
// fixed: head h keeps the channels fixed[h], whatever their scores, and no others are scored: C of W2 and beta is `keep`.
struct Gate {
    int32_t channels, heads, hidden;
    const float *weight1, *weight2, *beta;  // [H, hidden, C]; [H, hidden, C], that is W2 transposed; [H, C]
    int32_t is_global, keep;
    float threshold;
    const int32_t* fixed;  // [H, keep], ascending (of bytes: by their positions), or null
};

inline int32_t scored_channels(const Gate& gate) { return gate.fixed ? gate.keep : gate.channels; }

}  // namespace dgconv
