// AVX-512 with byte products (VNNI) and VBMI2, which packs the chosen bytes of a pixel in one instruction.
#if defined(__AVX512VBMI2__)
#define DGCONV_ISA byte_avx512_vbmi2
#define DGCONV_NAME "avx512_vbmi2"
#include "byte_table.h"
#endif
