// The kernels of one instruction set. Each isa_*.cpp compiles the same headers with its own flags and fills one table.
#pragma once

#include "kernels.h"

namespace dgconv {

// A kernel is called by every thread with its rank and does its share of the work; `scratch` is the thread's own.
// Results do not depend on the number of threads.
struct Kernels {
    const char* name;

    int64_t (*conv_packed_floats)(const Conv&);
    void (*pack_conv)(const Conv&, const float* oihw, float* packed);
    int64_t (*conv_scratch_floats)(const Conv&, int32_t in_h, int32_t in_w, int32_t out_h, int32_t out_w);
    // `pooled` receives sums of the outputs, [B, C', parts]: their total over the parts is the sum of a plane.
    int32_t (*conv_pool_parts)(const Conv&, int32_t out_h, int32_t out_w);
    bool (*conv_has_few_pixels)(const Conv&, int32_t out_h, int32_t out_w);
    void (*conv)(const Conv&, const Selection*, const Winners*, int32_t batch, Planes x, Planes y,
                 const Planes* residual, float* pooled, float* scratch, Ahead* ahead, int rank, int threads);
    bool (*can_expand)(const Conv& first, const Conv& then);
    // A convolution and then a depthwise one; sums as in conv of the latter. `between` has the shape of what lies
    // between them, and no data.
    int64_t (*expand_scratch_floats)(const Conv& first, const Conv& then, Planes x, Planes between, int32_t out_h,
                                     int32_t out_w);
    void (*expand)(const Conv& first, const Conv& then, int32_t batch, Planes x, Planes between, Planes y,
                   float* pooled, float* scratch, Ahead* ahead, int rank, int threads);

    // sums[b * stride + c] = sum over the plane of norm(x), or of its magnitude, divided.
    void (*sum_planes)(const Norm&, bool of_magnitudes, int batch, Planes x, float divisor, float* sums,
                       int64_t stride, int rank, int threads);
    int64_t (*gate_scratch_floats)(const Gate&);
    // saliency [B, H, C] from sums [B, pooled channels, parts] over planes of `pixels`; then the choice, laid out as in
    // Selection. A thread selects from what it generated itself: no barrier is needed in between.
    void (*generate)(const Gate&, int batch, const float* sums, int parts, float pixels, float* saliency,
                     float* scratch, int rank, int threads);
    void (*select)(const Gate&, int batch, const float* saliency, int32_t* channels, float* gates, int32_t* counts,
                   float* scratch, int rank, int threads);

    int64_t (*pool_scratch_floats)(const Window&, const Planes& x, const Planes& y);
    void (*pool)(const Window&, const Norm&, int batch, Planes x, Planes y, float* scratch, int rank, int threads);
    void (*elementwise)(const Norm&, int32_t activation, int batch, Planes x, const int32_t* order, const Planes* factor,
                        const Planes* other, Planes y, int rank, int threads);
    void (*linear)(const void* weight, const float* scale, const float* bias, int32_t activation, int batch, Planes x,
                   Planes y, int rank, int threads);
    // Each pixel by the mean and the variance of its channels, then the norm's scale and shift.
    void (*layer_norm)(const Norm&, float epsilon, int batch, Planes x, Planes y, int rank, int threads);
    int64_t (*resize_scratch_floats)(const Planes& x, const Planes& y);
    void (*resize)(const Resize&, int batch, Planes x, Planes y, float* scratch, int rank, int threads);
    void (*pad)(int32_t top, int32_t left, int batch, Planes x, Planes y, int rank, int threads);

    // Training; see sparse_conv.h. Each call is one piece of the work: pieces may be done at the same time.
    int64_t (*sparse_scratch_floats)(const Conv&, int64_t most_kept, int32_t out_h, int32_t out_w);
    void (*sparse_pack)(const Conv&, int64_t head, int64_t first, int64_t last, const float* weight, float* rows);
    void (*sparse_unpack)(const Conv&, int64_t head, int64_t first, int64_t last, const float* rows, float* weight);
    void (*sparse_forward)(const Conv&, const Selection&, int64_t most_kept, int64_t image, int64_t head,
                           const Planes& x, const Planes& y, const float* rows, float* scratch);
    void (*sparse_backward_input)(const Conv&, const Selection&, int64_t most_kept, int64_t image, const Planes& grad,
                                  const Planes& x, const Planes& grad_x, const float* rows, float* grad_gates,
                                  float* scratch);
    void (*sparse_backward_weight)(const Conv&, const Selection&, int64_t most_kept, int64_t batch, int64_t head,
                                   int64_t part, int64_t parts, const Planes& grad, const Planes& x, float* rows,
                                   float* scratch);
};

// The same training in bfloat16, where a CPU multiplies it; see sparse_tiles.h. Planes are of bfloat16.
struct TileKernels {
    bool is_there;

    int64_t (*scratch_bytes)(const Conv&, int64_t most_kept, const Planes& x, const Planes& y);
    void (*transpose)(int64_t rows, int64_t columns, const uint16_t* from, uint16_t* to);
    int64_t (*rows_words)(const Conv&);
    void (*pack_rows)(const Conv&, int64_t head, const uint16_t* weight, uint16_t* rows);
    void (*unpack_sums)(const Conv&, int64_t head, const float* sums, uint16_t* weight);
    void (*forward)(const Conv&, const Selection&, int64_t image, int64_t head, const Planes& x, const Planes& y,
                    const uint16_t* rows, bool by_tap, char* scratch);
    void (*backward_input)(const Conv&, const Selection&, int64_t most_kept, int64_t image, const Planes& grad,
                           const Planes& x, const Planes& grad_x, const uint16_t* rows, bool by_tap,
                           float* grad_gates, char* scratch);
    void (*backward_weight)(const Conv&, const Selection&, int64_t most_kept, int64_t batch, int64_t head,
                            int64_t part, int64_t parts, const Planes& grad, const Planes& x, float* sums,
                            bool by_tap, char* scratch);
    void (*means)(int64_t channels, int64_t pixels, bool by_pixel, const uint16_t* x, float* means);
};

extern const Kernels avx512_kernels, avx2_kernels, portable_kernels;
extern const TileKernels sparse_amx_kernels, sparse_bf16_kernels;

// The table in use: the best the CPU has, unless dgconv_select_isa chose another.
const Kernels& kernels();

}  // namespace dgconv
