// AVX-512 and products of bfloat16 in vectors, for training.
#include "table.h"

#if defined(__AVX512BF16__)
#define DGCONV_ISA sparse_bf16
#define DGCONV_VECTOR_FLOATS 16
#define DGCONV_REGISTERS 32
#include "bfloat_vectors.h"
//
#include "sparse_tiles.h"
DGCONV_TILE_KERNELS(sparse_bf16)
#else
namespace dgconv {
extern const TileKernels sparse_bf16_kernels = {};  // the compiler has no such instructions
}
#endif
