// A prepared network as plain data: a list of steps over views of one block of memory, the arena.
//
// Python writes it once for each input shape (dgconv/ops/structs.py mirrors these structs); the executor in
// program.cpp only reads it, so any number of threads may run one program at once, each with its own arena.
#pragma once

#include "kernels.h"
#include "quantized.h"

namespace dgconv {

enum Place : int32_t { NOWHERE = 0, ARENA = 1, INPUT = 2, OUTPUT = 3 };

// Planes whose address is known only when the program runs. `offset` is in floats from the start of `place`.
struct View {
    int64_t offset, image_stride;
    int32_t place, channels, height, width;
};

// Pixels of the arena. `offset` is in bytes.
struct ByteView {
    int64_t offset, image_stride, pixel_stride;
    int32_t place, channels, height, width;
};

// DYNAMIC_CONV: its gate chooses inputs. WINNERS_CONV: its gate chooses outputs.
enum StepKind : int32_t {
    CONV = 0, DYNAMIC_CONV = 1, POOL = 2, GLOBAL_POOL = 3, LINEAR = 4, ELEMENTWISE = 5, EXPAND = 6, WINNERS_CONV = 7,
    LAYER_NORM = 8, RESIZE = 9, PAD = 10,
    QUANTIZE = 11, DEQUANTIZE = 12, BYTE_CONV = 13, BYTE_POOL = 14, BYTE_MEAN = 15, RESCALE = 16,
    BYTE_TABLE = 17
};

// One fused operation; which fields matter depends on the kind. Offsets are into the arena, in floats, -1 for none.
struct Step {
    int32_t kind;
    int32_t activation;          // ELEMENTWISE, LINEAR
    View input, output, other;   // other: the residual; what ELEMENTWISE adds; of EXPAND the shape between the two
    View factor;                 // ELEMENTWISE: a row that multiplies the channels of the input, or NOWHERE
    Conv conv;                   // CONV, DYNAMIC_CONV, WINNERS_CONV; EXPAND: the depthwise one
    Conv expansion;              // EXPAND: the one that comes first
    Gate gate;                   // DYNAMIC_CONV, WINNERS_CONV
    Selection fixed;             // DYNAMIC_CONV: what it reads, if that is known beforehand; else nulls, the gate decides
    Norm before;                 // what has a gate (for its means; as in conv), POOL, GLOBAL_POOL, ELEMENTWISE,
                                 //   LAYER_NORM
    Window window;               // POOL; of PAD what lies above and to the left
    Resize resize;               // RESIZE
    float epsilon;               // LAYER_NORM
    const void* weight;          // LINEAR: floats [C', C], or if there is a scale signed bytes
    const float *scale, *bias;   // ... [C'] or null
    const int32_t* order;        // ELEMENTWISE: channels of the input, one for each of the output; null for the same
    int64_t output_sums;         // convolutions: where to leave partial sums of the output, for a later gate
    int64_t input_sums;          // what has a gate: the sums [B, C, input_parts] that the step before left; if there are
    int32_t input_parts;         //   none, it sums up its input itself
    int32_t regions_end;         // what this step and those before it read ends with this region of the program
    int64_t gate_memory;         // what has a gate: room for what it decides by, dgconv_gate_floats of them
    int64_t input_winners;       // WINNERS_CONV, dynamic: gate_memory of the step whose winners are all that it reads
    ByteView byte_input, byte_output, byte_other;  // what has bytes in the place of input, output, other
    ByteConv bytes;              // BYTE_CONV. QUANTIZE, DEQUANTIZE, BYTE_MEAN: input_scale, input_zero, result, positions;
                                 //   RESCALE: multiplier, bias, residual_scale, result, positions; BYTE_POOL: input_zero;
                                 //   BYTE_TABLE: weight, 256 bytes.
                                 //   The positions of BYTE_MEAN are the channels at each place
    int64_t choices;             // BYTE_CONV with a gate: room for sums and choices, dgconv_choice_floats of them
    int64_t chosen;              // ... and bytes from the start of what is kept from run to run, for its weights
};

struct Program {
    const Step* steps;
    int32_t step_count, batch;
    const Region* regions;  // of weights, in the order in which the steps read them
    int32_t region_count;
    int64_t scratch, scratch_floats;  // in the arena, one after the other for each thread
    int64_t chosen_bytes;             // kept from run to run; all zeros before the first
};

// What the time of a step is spent on. `seconds` of dgconv_run is [steps, STAGES].
enum Stage : int32_t { POOLING = 0, GENERATING = 1, SELECTING = 2, COMPUTING = 3, STAGES = 4 };

}  // namespace dgconv

extern "C" {
// Floats of arena that the gate of a dynamic convolution needs at Step::gate_memory; -1 where its numbers are unsound.
int64_t dgconv_gate_floats(const dgconv::Gate*, int32_t batch);
// Floats of scratch that each thread needs for a step; -1 where its numbers are unsound.
int64_t dgconv_scratch_floats(const dgconv::Step*);
// Runs the program. The result does not depend on the number of threads. `seconds` may be null. Returns the seconds it
// took, where one thread would have been faster than several that were waiting for each other; otherwise 0.
// `chosen` has chosen_bytes, for this run alone; it may be null if there are none.
double dgconv_run(const dgconv::Program*, const float* x, float* y, float* arena, void* chosen, int32_t threads,
                  double* seconds);
// Floats of arena for Step::choices; -1 where its numbers are unsound.
int64_t dgconv_choice_floats(const dgconv::ByteConv*);

// The two halves of a gate by themselves, on one thread: saliency [B, H, C] of channel means [B, C], and the choice.
int64_t dgconv_gate_scratch_floats(const dgconv::Gate*);
void dgconv_generate(const dgconv::Gate*, int32_t batch, const float* means, float* saliency, float* scratch);
void dgconv_select(const dgconv::Gate*, int32_t batch, const float* saliency, int32_t* channels, float* gates,
                   int32_t* counts, float* scratch);
}
