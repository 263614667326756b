// What Python sees: a plain C interface, loaded by dgconv/ops/native.py.
#include <cstring>

#include "check.h"
#include "crew.h"
#include "table.h"

#define DGCONV_EXPORT extern "C" __attribute__((visibility("default")))

namespace dgconv {

namespace {

// Best first. A table the CPU cannot run is left out.
const Kernels* candidate(int index) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (index == 0) {
        const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
        return has ? &avx512_kernels : nullptr;
    }
    if (index == 1) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &avx2_kernels : nullptr;
    }
#endif
    return index == 2 ? &portable_kernels : nullptr;
}

const Kernels* best() {
    for (int index = 0; index < 2; ++index) {
        if (const Kernels* found = candidate(index)) return found;
    }
    return &portable_kernels;
}

const Kernels* chosen = nullptr;  // written once, by the loader, before any kernel runs

}  // namespace

const Kernels& kernels() { return chosen ? *chosen : *best(); }

}  // namespace dgconv

using namespace dgconv;

DGCONV_EXPORT const char* dgconv_native_version() { return DGCONV_FINGERPRINT; }

DGCONV_EXPORT const char* dgconv_isa() { return kernels().name; }

// 0 if the CPU lacks it or there is none of that name; an empty name takes the best.
DGCONV_EXPORT int32_t dgconv_select_isa(const char* name) {
    if (!*name) {
        chosen = best();
        return 1;
    }
    for (int index = 0; index < 3; ++index) {
        const Kernels* found = candidate(index);
        if (found && !std::strcmp(found->name, name)) {
            chosen = found;
            return 1;
        }
    }
    return 0;
}

// Sizes are -1 for a convolution that no kernel takes.
DGCONV_EXPORT int64_t dgconv_conv_packed_floats(const Conv* conv) {
    return is_sound(*conv) ? kernels().conv_packed_floats(*conv) : -1;
}

DGCONV_EXPORT void dgconv_pack_conv(const Conv* conv, const float* oihw, float* packed) {
    if (is_sound(*conv)) kernels().pack_conv(*conv, oihw, packed);
}

DGCONV_EXPORT int64_t dgconv_conv_scratch_floats(const Conv* conv, int32_t in_h, int32_t in_w, int32_t out_h,
                                                 int32_t out_w) {
    return kernels().conv_scratch_floats(*conv, in_h, in_w, out_h, out_w);
}

DGCONV_EXPORT int32_t dgconv_conv_pool_parts(const Conv* conv, int32_t out_h, int32_t out_w) {
    return is_sound(*conv) && out_h > 0 && out_w > 0 ? kernels().conv_pool_parts(*conv, out_h, out_w) : -1;
}

DGCONV_EXPORT int32_t dgconv_can_expand(const Conv* first, const Conv* then) {
    return is_sound(*first) && is_sound(*then) && kernels().can_expand(*first, *then);
}

// One convolution with threads of its own; `scratch` holds scratch_floats for each.
DGCONV_EXPORT void dgconv_conv(const Conv* conv, const Selection* selection, int32_t batch, const Planes* x,
                               const Planes* y, const Planes* residual, float* pooled, float* scratch,
                               int64_t scratch_floats, int32_t threads) {
    const Kernels& table = kernels();
    const int32_t at_once = threads_to_be_had(threads);
#pragma omp parallel for num_threads(at_once) schedule(static, 1)
    for (int32_t rank = 0; rank < threads; ++rank) {
        table.conv(*conv, selection, nullptr, batch, *x, *y, residual, pooled, scratch + rank * scratch_floats,
                   nullptr, rank, threads);
    }
}
