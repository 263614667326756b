// What Python sees: a plain C interface, loaded by dgconv/ops/native.py.
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "check.h"
#include "crew.h"
#include "table.h"

#define DGCONV_EXPORT extern "C" __attribute__((visibility("default")))

namespace dgconv {

namespace {

#if defined(__x86_64__)
// The compiler knows no name for it.
bool has_avx_vnni() {
    uint32_t eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1);
}
#endif

// An instruction set by name, with the kernels that it has for floats and for bytes.
struct Level {
    const char* name;
    const Kernels* kernels;
    const ByteKernels* byte_kernels;
    bool is_there;  // on this CPU
};

// Best first.
const Level* levels(int& count) {
#if defined(__x86_64__)
    static const auto has = [](auto... features) { return (features && ...); };
    __builtin_cpu_init();
    static const bool avx2 = has(__builtin_cpu_supports("avx2"), __builtin_cpu_supports("fma"));
    static const bool avx512 = has(avx2, __builtin_cpu_supports("avx512f"), __builtin_cpu_supports("avx512vl"),
                                   __builtin_cpu_supports("avx512bw"), __builtin_cpu_supports("avx512dq"));
    static const bool vnni = has(avx512, __builtin_cpu_supports("avx512vnni"));
    static const bool vbmi2 = has(vnni, __builtin_cpu_supports("avx512vbmi"), __builtin_cpu_supports("avx512vbmi2"));
    static const bool avx_vnni = has(avx2, has_avx_vnni());
    static const Level all[] = {
        {"avx512_vbmi2", &avx512_kernels, &byte_avx512_vbmi2_kernels, vbmi2},
        {"avx512_vnni", &avx512_kernels, &byte_avx512_vnni_kernels, vnni},
        {"avx512", &avx512_kernels, &byte_avx2_kernels, avx512},
        {"avx_vnni", &avx2_kernels, &byte_avx_vnni_kernels, avx_vnni},
        {"avx2", &avx2_kernels, &byte_avx2_kernels, avx2},
        {"portable", &portable_kernels, &byte_portable_kernels, true},
    };
#else
    static const Level all[] = {{"portable", &portable_kernels, &byte_portable_kernels, true}};
#endif
    count = sizeof all / sizeof *all;
    return all;
}

// Null if there is none of that name, or the CPU lacks it; an empty name takes the best.
const Level* find_level(const char* name) {
    int count;
    const Level* all = levels(count);
    for (int index = 0; index < count; ++index) {
        if (all[index].is_there && (!*name || !std::strcmp(all[index].name, name))) return all + index;
    }
    return nullptr;
}

const Level* chosen = nullptr;  // written once, by the loader, before any kernel runs

const Level& level() { return chosen ? *chosen : *find_level(""); }

}  // namespace

const Kernels& kernels() { return *level().kernels; }
const ByteKernels& byte_kernels() { return *level().byte_kernels; }

}  // namespace dgconv

using namespace dgconv;

DGCONV_EXPORT const char* dgconv_native_version() { return DGCONV_FINGERPRINT; }

DGCONV_EXPORT const char* dgconv_isa() { return level().name; }

// The name of the level at this place, best first, and whether this CPU has it; null behind the last.
DGCONV_EXPORT const char* dgconv_isa_at(int32_t index, int32_t* is_there) {
    int count;
    const Level* all = levels(count);
    if (index < 0 || index >= count) return nullptr;
    *is_there = all[index].is_there;
    return all[index].name;
}

// 0 if the CPU lacks it or there is none of that name; an empty name takes the best.
DGCONV_EXPORT int32_t dgconv_select_isa(const char* name) {
    const Level* found = find_level(name);
    if (found) chosen = found;
    return found != nullptr;
}

// For the convolutions of bytes. `positions` are channels of the input.
DGCONV_EXPORT int32_t dgconv_joined_groups(const ByteConv* conv) {
    return is_sound(*conv) ? byte_kernels().joined_groups(*conv) : 1;
}

DGCONV_EXPORT int64_t dgconv_byte_packed_bytes(const ByteConv* conv) {
    return is_sound(*conv) ? byte_kernels().packed_bytes(*conv) : -1;
}

DGCONV_EXPORT void dgconv_pack_bytes(const ByteConv* conv, const int8_t* weight, void* packed) {
    if (is_sound(*conv)) byte_kernels().pack_weights(*conv, weight, packed);
}

// Bytes of the choices of all groups, and behind them of the weights of what was chosen.
DGCONV_EXPORT int64_t dgconv_choices_bytes(const ByteConv* conv) {
    return is_sound(*conv) ? conv->groups * byte_kernels().choice_bytes(*conv) : -1;
}

DGCONV_EXPORT int64_t dgconv_chosen_bytes(const ByteConv* conv) {
    return is_sound(*conv) ? conv->groups * byte_kernels().chosen_bytes(*conv) : -1;
}

// One group of a convolution whose choices are made beforehand: channels ascending, where they lie in a pixel.
DGCONV_EXPORT void dgconv_choose_bytes(const ByteConv* conv, int32_t group, const int32_t* channels, int32_t count,
                                       void* choices) {
    const ByteKernels& table = byte_kernels();
    char* const choice = static_cast<char*>(choices) + group * table.choice_bytes(*conv);
    char* const packed = static_cast<char*>(choices) + conv->groups * table.choice_bytes(*conv) +
                         group * table.chosen_bytes(*conv);
    table.choose(*conv, channels, nullptr, count, choice);
    table.pack_chosen(*conv, group, choice, packed);
}

// The saliency [H, C] of one image, on one thread; `hidden` has room for the units of a head.
DGCONV_EXPORT void dgconv_generate_bytes(const Gate* gate, const ByteGenerator* generator, const float* means,
                                         float* saliency, float* hidden) {
    byte_kernels().generate(*gate, *generator, means, saliency, hidden, 0, 1);
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

DGCONV_EXPORT int32_t dgconv_conv_has_few_pixels(const Conv* conv, int32_t out_h, int32_t out_w) {
    return is_sound(*conv) && kernels().conv_has_few_pixels(*conv, out_h, out_w);
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

// Training of a dynamic convolution; what each does is in sparse_conv.h. Pieces go to whichever thread is free; results
// do not depend on the number of threads.
namespace {

template <class Piece>
void share_out(int64_t pieces, int32_t threads, float* scratch, int64_t scratch_floats, const Piece& piece) {
    const int32_t at_once = threads_to_be_had(threads);
#pragma omp parallel for num_threads(at_once) schedule(dynamic)
    for (int64_t i = 0; i < pieces; ++i) {
#if defined(_OPENMP)
        piece(i, scratch + omp_get_thread_num() * scratch_floats);
#else
        piece(i, scratch);
#endif
    }
}

constexpr int64_t PACKED_AT_ONCE = 16;  // channels

int64_t pieces_of_weights(const Conv& conv) {
    return conv.groups * ((conv.in_channels + PACKED_AT_ONCE - 1) / PACKED_AT_ONCE);
}

struct PieceOfWeights {
    int64_t head, first, last;

    PieceOfWeights(const Conv& conv, int64_t piece)
        : head(piece % conv.groups),
          first(piece / conv.groups * PACKED_AT_ONCE),
          last(first + PACKED_AT_ONCE < conv.in_channels ? first + PACKED_AT_ONCE : conv.in_channels) {}
};

}  // namespace

// Lists what `kept` [entries, channels] has, as a Selection does; how many an entry keeps at most.
DGCONV_EXPORT int32_t dgconv_sparse_select(const bool* kept, const float* gates, int64_t entries, int32_t channels,
                                           int32_t* chosen, float* chosen_gates, int32_t* counts) {
    int32_t most = 0;
    for (int64_t entry = 0; entry < entries; ++entry, kept += channels, gates += channels) {
        int32_t count = 0;
        for (int32_t c = 0; c < channels; ++c) {
            chosen[entry * channels + count] = c;
            chosen_gates[entry * channels + count] = gates[c];
            count += kept[c];
        }
        counts[entry] = count;
        most = count > most ? count : most;
    }
    return most;
}

DGCONV_EXPORT int64_t dgconv_sparse_scratch_floats(const Conv* conv, int32_t most_kept, int32_t out_h, int32_t out_w) {
    return kernels().sparse_scratch_floats(*conv, most_kept, out_h, out_w);
}

DGCONV_EXPORT void dgconv_sparse_pack(const Conv* conv, const float* weight, float* rows, int32_t threads) {
    share_out(pieces_of_weights(*conv), threads, nullptr, 0, [&](int64_t i, float*) {
        const PieceOfWeights piece(*conv, i);
        kernels().sparse_pack(*conv, piece.head, piece.first, piece.last, weight, rows);
    });
}

DGCONV_EXPORT void dgconv_sparse_unpack(const Conv* conv, const float* rows, float* weight, int32_t threads) {
    share_out(pieces_of_weights(*conv), threads, nullptr, 0, [&](int64_t i, float*) {
        const PieceOfWeights piece(*conv, i);
        kernels().sparse_unpack(*conv, piece.head, piece.first, piece.last, rows, weight);
    });
}

DGCONV_EXPORT void dgconv_sparse_forward(const Conv* conv, const Selection* selection, int32_t most_kept, int32_t batch,
                                         const Planes* x, const Planes* y, const float* rows, float* scratch,
                                         int64_t scratch_floats, int32_t threads) {
    share_out(int64_t{batch} * conv->groups, threads, scratch, scratch_floats, [&](int64_t i, float* own) {
        kernels().sparse_forward(*conv, *selection, most_kept, i / conv->groups, i % conv->groups, *x, *y, rows, own);
    });
}

DGCONV_EXPORT void dgconv_sparse_backward_input(const Conv* conv, const Selection* selection, int32_t most_kept,
                                                int32_t batch, const Planes* grad, const Planes* x,
                                                const Planes* grad_x, const float* rows, float* grad_gates,
                                                float* scratch, int64_t scratch_floats, int32_t threads) {
    share_out(batch, threads, scratch, scratch_floats, [&](int64_t i, float* own) {
        kernels().sparse_backward_input(*conv, *selection, most_kept, i, *grad, *x, *grad_x, rows, grad_gates, own);
    });
}

// Adds to `rows`.
DGCONV_EXPORT void dgconv_sparse_backward_weight(const Conv* conv, const Selection* selection, int32_t most_kept,
                                                 int32_t batch, const Planes* grad, const Planes* x, float* rows,
                                                 float* scratch, int64_t scratch_floats, int32_t threads) {
    const int64_t parts = threads;  // of each head: one by one they are shared out evenly
    share_out(parts * conv->groups, threads, scratch, scratch_floats, [&](int64_t i, float* own) {
        kernels().sparse_backward_weight(*conv, *selection, most_kept, batch, i / parts, i % parts, parts, *grad, *x,
                                         rows, own);
    });
}
