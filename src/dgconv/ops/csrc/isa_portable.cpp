// Whatever the compiler may assume of the machine, SSE2 or NEON as a rule: 4 floats a vector.
#define DGCONV_ISA portable
#define DGCONV_VECTOR_FLOATS 4
#define DGCONV_REGISTERS 16
#include "isa_table.h"
