// AVX2 and FMA: 8 floats a vector, 16 vectors in registers.
#if defined(__AVX2__)
#define DGCONV_ISA avx2
#define DGCONV_VECTOR_FLOATS 8
#define DGCONV_REGISTERS 16
#include "isa_table.h"
#endif
