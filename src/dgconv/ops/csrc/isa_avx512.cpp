// AVX-512: 16 floats a vector, 32 vectors in registers.
#if defined(__AVX512F__)
#define DGCONV_ISA avx512
#define DGCONV_VECTOR_FLOATS 16
#define DGCONV_REGISTERS 32
#include "isa_table.h"
#endif
