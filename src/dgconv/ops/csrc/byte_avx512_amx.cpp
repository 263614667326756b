// AVX-512 as in byte_avx512_vbmi2.cpp, and tiles (AMX) for the larger products.
#include "quantized.h"

#if (defined(__AVX512VBMI2__) && defined(__AMX_INT8__)) || defined(DGCONV_EMULATES_TILES)
#define DGCONV_ISA byte_avx512_amx
#define DGCONV_NAME "avx512_amx"
#define DGCONV_TILES 1
#include "byte_table.h"
#else
namespace dgconv {
extern const ByteKernels byte_avx512_amx_kernels = {};  // the compiler has no such instructions
}
#endif
