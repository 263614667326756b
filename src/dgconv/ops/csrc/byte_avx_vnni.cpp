// AVX2 with byte products (AVX-VNNI).
#if defined(__AVXVNNI__)
#define DGCONV_ISA byte_avx_vnni
#define DGCONV_NAME "avx_vnni"
#include "byte_table.h"
#endif
