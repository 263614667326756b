// AVX2: bytes are widened before they are multiplied.
#if defined(__AVX2__)
#define DGCONV_ISA byte_avx2
#define DGCONV_NAME "avx2"
#include "byte_table.h"
#endif
