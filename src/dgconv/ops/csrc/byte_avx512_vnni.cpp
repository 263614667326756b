// AVX-512 with byte products (VNNI).
#if defined(__AVX512VNNI__)
#define DGCONV_ISA byte_avx512_vnni
#define DGCONV_NAME "avx512_vnni"
#include "byte_table.h"
#endif
