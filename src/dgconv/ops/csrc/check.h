// What the kernels, which look at nothing, may be given. Asked where sizes are made and where a program is laid out,
// never while one runs.
#pragma once

#include "program.h"

namespace dgconv {

// Whether a convolution has numbers with which no size, offset or count overflows. Its pointers are not looked at.
bool is_sound(const Conv&);
bool is_sound(const ByteConv&);
bool is_sound(const Gate&, int64_t batch);
// Whether the sizes on both sides of a step are sane, and its scratch is a number.
bool has_sound_sizes(const Step&);

}  // namespace dgconv

extern "C" {
// 0 if a program touches nothing beyond its input, its output and its arena; else the number of the first step that may,
// counted from 1, times 256, plus the reason. `floats` are those of the input and the output for all images.
int64_t dgconv_check_program(const dgconv::Program*, int64_t input_floats, int64_t output_floats);
// A reason in words.
const char* dgconv_refusal(int32_t reason);
}
