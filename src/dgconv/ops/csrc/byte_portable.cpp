// Whatever the compiler makes of plain vectors.
#define DGCONV_ISA byte_portable
#define DGCONV_NAME "portable"
#include "byte_table.h"
