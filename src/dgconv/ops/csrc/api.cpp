// What Python sees: a plain C interface, loaded by dgconv/ops/native.py.
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
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

// Whether CPU and system have tiles of bytes, and this process may use them: Linux wants to be asked.
bool may_use_tiles() {
#if defined(DGCONV_EMULATES_TILES)
    return true;
#elif defined(__linux__) && defined(SYS_arch_prctl)
    constexpr uint32_t TILE_AND_INT8 = 3u << 24, OSXSAVE = 1u << 27, TILE_STATES = 3u << 17;
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & TILE_AND_INT8) != TILE_AND_INT8) return false;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & OSXSAVE)) return false;
    asm volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return (eax & TILE_STATES) == TILE_STATES && !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
#else
    return false;
#endif
}

// Whether tiles, if there are any, multiply bfloat16, too.
bool has_bfloat_tiles() {
    uint32_t eax, ebx, ecx, edx;
#if defined(DGCONV_EMULATES_TILES)
    const bool in_tiles = true;
#else
    const bool in_tiles = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx >> 22 & 1);
#endif
    return in_tiles && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 5 & 1);  // and in vectors
}
#endif

// An instruction set by name, with the kernels that it has for floats and for bytes.
struct Level {
    const char* name;
    const Kernels* kernels;
    const ByteKernels* byte_kernels;
    bool is_there;  // on this CPU
    const TileKernels* tile_kernels = nullptr;  // none, if it does not multiply bfloat16
    bool is_for_tests = false;                  // and taken only by its name
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
    static const TileKernels* const bfloats =
        sparse_bf16_kernels.is_there && __builtin_cpu_supports("avx512bf16") ? &sparse_bf16_kernels : nullptr;
    static const bool avx_vnni = has(avx2, has_avx_vnni());
#if defined(DGCONV_EMULATES_TILES)  // 2: without AVX-512, too
    constexpr int EMULATED = DGCONV_EMULATES_TILES;
#else
    constexpr int EMULATED = 0;
#endif
    static const bool amx = (vbmi2 || EMULATED == 2) && byte_avx512_amx_kernels.name && may_use_tiles();
    static const Level all[] = {
        {"avx512_amx", avx512 ? &avx512_kernels : &portable_kernels, &byte_avx512_amx_kernels, amx,
         vbmi2 && sparse_amx_kernels.is_there && has_bfloat_tiles() ? &sparse_amx_kernels : nullptr, EMULATED > 0},
        {"avx512_vbmi2", &avx512_kernels, &byte_avx512_vbmi2_kernels, vbmi2, bfloats},
        {"avx512_vnni", &avx512_kernels, &byte_avx512_vnni_kernels, vnni, bfloats},
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
        const bool is_named = *name ? !std::strcmp(all[index].name, name) : !all[index].is_for_tests;
        if (all[index].is_there && is_named) return all + index;
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

template <class Value, class Piece>
void share_out(int64_t pieces, int32_t threads, Value* scratch, int64_t scratch_values, const Piece& piece) {
    const int32_t at_once = threads_to_be_had(threads);
#pragma omp parallel for num_threads(at_once) schedule(dynamic)
    for (int64_t i = 0; i < pieces; ++i) {
#if defined(_OPENMP)
        piece(i, scratch + omp_get_thread_num() * scratch_values);
#else
        piece(i, scratch);
#endif
    }
}

constexpr const char* NO_SCRATCH = nullptr;

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
    share_out(pieces_of_weights(*conv), threads, NO_SCRATCH, 0, [&](int64_t i, const char*) {
        const PieceOfWeights piece(*conv, i);
        kernels().sparse_pack(*conv, piece.head, piece.first, piece.last, weight, rows);
    });
}

DGCONV_EXPORT void dgconv_sparse_unpack(const Conv* conv, const float* rows, float* weight, int32_t threads) {
    share_out(pieces_of_weights(*conv), threads, NO_SCRATCH, 0, [&](int64_t i, const char*) {
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

// Training in bfloat16 by tiles; what each does is in sparse_tiles.h. Not to be called where it cannot be done.
DGCONV_EXPORT int32_t dgconv_can_train_by_tiles() { return level().tile_kernels != nullptr; }

DGCONV_EXPORT int64_t dgconv_tile_scratch_bytes(const Conv* conv, int32_t most_kept, const Planes* x, const Planes* y) {
    return level().tile_kernels->scratch_bytes(*conv, most_kept, *x, *y);
}

// Of so many matrices.
DGCONV_EXPORT void dgconv_tile_transpose(int64_t matrices, int64_t rows, int64_t columns, const uint16_t* from,
                                         uint16_t* to, int32_t threads) {
    share_out(matrices, threads, NO_SCRATCH, 0, [&](int64_t i, const char*) {
        level().tile_kernels->transpose(rows, columns, from + i * rows * columns, to + i * rows * columns);
    });
}

DGCONV_EXPORT int64_t dgconv_tile_rows_words(const Conv* conv) { return level().tile_kernels->rows_words(*conv); }

DGCONV_EXPORT void dgconv_tile_pack_rows(const Conv* conv, const uint16_t* weight, uint16_t* rows, int32_t threads) {
    share_out(conv->groups, threads, NO_SCRATCH, 0,
              [&](int64_t head, const char*) { level().tile_kernels->pack_rows(*conv, head, weight, rows); });
}

DGCONV_EXPORT void dgconv_tile_unpack_sums(const Conv* conv, const float* sums, uint16_t* weight, int32_t threads) {
    share_out(conv->groups, threads, NO_SCRATCH, 0,
              [&](int64_t head, const char*) { level().tile_kernels->unpack_sums(*conv, head, sums, weight); });
}

DGCONV_EXPORT void dgconv_tile_forward(const Conv* conv, const Selection* selection, int32_t batch, const Planes* x,
                                       const Planes* y, const uint16_t* rows, int32_t by_tap, char* scratch,
                                       int64_t scratch_bytes, int32_t threads) {
    share_out(int64_t{batch} * conv->groups, threads, scratch, scratch_bytes, [&](int64_t i, char* own) {
        level().tile_kernels->forward(*conv, *selection, i % batch, i / batch, *x, *y, rows, by_tap, own);
    });
}

DGCONV_EXPORT void dgconv_tile_backward_input(const Conv* conv, const Selection* selection, int32_t most_kept,
                                              int32_t batch, const Planes* grad, const Planes* x, const Planes* grad_x,
                                              const uint16_t* rows, int32_t by_tap, float* grad_gates,
                                              char* scratch, int64_t scratch_bytes, int32_t threads) {
    share_out(batch, threads, scratch, scratch_bytes, [&](int64_t i, char* own) {
        level().tile_kernels->backward_input(*conv, *selection, most_kept, i, *grad, *x, *grad_x, rows, by_tap, grad_gates,
                                          own);
    });
}

// Adds to `sums`.
DGCONV_EXPORT void dgconv_tile_backward_weight(const Conv* conv, const Selection* selection, int32_t most_kept,
                                               int32_t batch, const Planes* grad, const Planes* x, float* sums,
                                               int32_t by_tap, char* scratch, int64_t scratch_bytes, int32_t threads) {
    const int64_t parts = threads;  // of each head: one by one they are shared out evenly
    share_out(parts * conv->groups, threads, scratch, scratch_bytes, [&](int64_t i, char* own) {
        level().tile_kernels->backward_weight(*conv, *selection, most_kept, batch, i / parts, i % parts, parts, *grad, *x,
                                           sums, by_tap, own);
    });
}

DGCONV_EXPORT void dgconv_tile_means(int64_t batch, int64_t channels, int64_t pixels, int32_t by_pixel,
                                     const uint16_t* x, float* means, int32_t threads) {
    share_out(batch, threads, NO_SCRATCH, 0, [&](int64_t i, const char*) {
        level().tile_kernels->means(channels, pixels, by_pixel, x + i * channels * pixels, means + i * channels);
    });
}
