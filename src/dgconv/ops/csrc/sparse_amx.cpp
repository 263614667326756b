// AVX-512 and tiles (AMX) of bfloat16, for training.
#include "table.h"

#if defined(__AVX512VBMI2__) && (defined(__AMX_BF16__) || defined(DGCONV_EMULATES_TILES))
#define DGCONV_ISA sparse_amx
#define DGCONV_VECTOR_FLOATS 16
#define DGCONV_REGISTERS 32
#include "bfloat_tiles.h"
//
#include "sparse_tiles.h"
DGCONV_TILE_KERNELS(sparse_amx)
#else
namespace dgconv {
extern const TileKernels sparse_amx_kernels = {};  // the compiler has no such instructions
}
#endif
