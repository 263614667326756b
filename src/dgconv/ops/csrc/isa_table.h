// The body of every isa_*.cpp: includes all kernels and fills the table named by DGCONV_ISA.
//
// Kernels live in the namespace of their instruction set and use no templates of the standard library: an inline
// function shared by two units could be taken from the one with the wider instructions.
#pragma once

#include "table.h"
// one kernel header a line
#include "conv.h"
#include "gate.h"
#include "elementwise.h"
#include "layer_norm.h"
#include "pool.h"
#include "resize.h"
#include "sparse_conv.h"

#define DGCONV_JOIN_(a, b) a##b
#define DGCONV_JOIN(a, b) DGCONV_JOIN_(a, b)
#define DGCONV_TEXT_(a) #a
#define DGCONV_TEXT(a) DGCONV_TEXT_(a)

namespace dgconv {

extern const Kernels DGCONV_JOIN(DGCONV_ISA, _kernels) = {
    DGCONV_TEXT(DGCONV_ISA),
    // one kernel a line, in the order of the table
    DGCONV_ISA::conv_packed_floats,
    DGCONV_ISA::pack_conv,
    DGCONV_ISA::conv_scratch_floats,
    DGCONV_ISA::conv_pool_parts,
    DGCONV_ISA::conv_has_few_pixels,
    DGCONV_ISA::conv,
    DGCONV_ISA::can_expand,
    DGCONV_ISA::expand_scratch_floats,
    DGCONV_ISA::expand,
    DGCONV_ISA::sum_planes,
    DGCONV_ISA::gate_scratch_floats,
    DGCONV_ISA::generate,
    DGCONV_ISA::select,
    DGCONV_ISA::pool_scratch_floats,
    DGCONV_ISA::pool,
    DGCONV_ISA::elementwise,
    DGCONV_ISA::linear,
    DGCONV_ISA::layer_norm,
    DGCONV_ISA::resize_scratch_floats,
    DGCONV_ISA::resize,
    DGCONV_ISA::pad,
    DGCONV_ISA::sparse_scratch_floats,
    DGCONV_ISA::sparse_pack,
    DGCONV_ISA::sparse_unpack,
    DGCONV_ISA::sparse_forward,
    DGCONV_ISA::sparse_backward_input,
    DGCONV_ISA::sparse_backward_weight,
};

}  // namespace dgconv
