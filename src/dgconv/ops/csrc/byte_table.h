// The body of every byte_*.cpp: includes the kernels for bytes and fills the table named by DGCONV_ISA.
#pragma once

#include "byte_conv.h"
#include "byte_generate.h"
#include "byte_steps.h"

#define DGCONV_JOIN_(a, b) a##b
#define DGCONV_JOIN(a, b) DGCONV_JOIN_(a, b)

namespace dgconv {

extern const ByteKernels DGCONV_JOIN(DGCONV_ISA, _kernels) = {
    DGCONV_NAME,
    DGCONV_ISA::joined_groups,
    DGCONV_ISA::packed_bytes,
    DGCONV_ISA::pack_weights,
    DGCONV_ISA::choice_bytes,
    DGCONV_ISA::chosen_bytes,
    DGCONV_ISA::choose,
    DGCONV_ISA::pack_chosen,
    DGCONV_ISA::folded_bytes,
    DGCONV_ISA::note_gates,
    DGCONV_ISA::fold,
    DGCONV_ISA::conv_scratch_bytes,
    DGCONV_ISA::convolve,
    DGCONV_ISA::sum_pixels,
    DGCONV_ISA::means,
    DGCONV_ISA::generate,
    DGCONV_ISA::quantize,
    DGCONV_ISA::dequantize,
    DGCONV_ISA::rescale,
    DGCONV_ISA::pool,
    DGCONV_ISA::look_up,
    DGCONV_ISA::mean_row,
};

}  // namespace dgconv
