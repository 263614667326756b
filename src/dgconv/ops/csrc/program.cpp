// Runs a prepared network: one parallel region for all of it, in which every thread walks the list of steps and takes
// shares of each.
#include "program.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include "check.h"
#include "crew.h"
#include "stopwatch.h"
#include "table.h"

#define DGCONV_EXPORT extern "C" __attribute__((visibility("default")))

namespace dgconv {
namespace {

constexpr int64_t AHEAD_FLOATS = 1 << 20;  // fetched ahead of time; of more, much is lost again before it is read

int64_t whole_cache_lines(int64_t floats) { return (floats + 15) / 16 * 16; }

// Where a dynamic convolution keeps what it decides by: saliency, gates and channels [B, H, C]; counts [B, H]; sums
// [B, pooled channels]. All but the last are found by whoever knows C and H.
struct GateMemory {
    float *saliency, *gates, *sums;
    int32_t *channels, *counts;

    GateMemory(float* memory, int of_channels, int heads, int batch) {
        const int64_t entries = head_entries(of_channels, heads, batch);
        saliency = memory;
        gates = saliency + entries;
        channels = reinterpret_cast<int32_t*>(gates + entries);
        counts = channels + entries;
        sums = gates + 2 * entries + whole_cache_lines(int64_t(batch) * heads);
    }

    static int64_t head_entries(int channels, int heads, int batch) {
        return whole_cache_lines(int64_t(batch) * heads * channels);
    }

    static int64_t floats(const Gate& gate, int batch) {
        const int64_t pooled = gate.weight1 ? gate.channels : gate.hidden;
        return 3 * head_entries(gate.channels, gate.heads, batch) + whole_cache_lines(int64_t(batch) * gate.heads) +
               whole_cache_lines(batch * pooled);
    }
};

// What one thread does.
class Worker {
   public:
    Worker(const Program& program, Crew& crew, Stopwatch& watch, const float* x, float* y, float* arena, void* chosen,
           int rank)
        : program(program),
          crew(crew),
          watch(watch),
          kernels(dgconv::kernels()),
          byte_kernels(dgconv::byte_kernels()),
          chosen(static_cast<char*>(chosen)),
          rank(rank),
          places{nullptr, arena, const_cast<float*>(x), y},
          scratch(arena + program.scratch + rank * program.scratch_floats),
          ahead{program.regions, rank, crew.threads(), 0, 0, nullptr, 0} {}

    void run() {
        for (step = program.steps; step < program.steps + program.step_count; ++step) run_step();
    }

   private:
    const Program& program;
    Crew& crew;
    Stopwatch& watch;
    const Kernels& kernels;
    const ByteKernels& byte_kernels;
    char* const chosen;
    const int rank;
    float* const places[4];
    float* const scratch;
    const Step* step;
    int64_t stage = 0;
    Ahead ahead;

    // Lets this step fetch what the next ones read.
    void look_ahead() {
        const int begin = step->regions_end;
        if (ahead.next < begin) ahead.next = begin, ahead.lines = 0;  // too late for what this step reads itself
        int64_t floats = 0;
        for (ahead.end = begin; ahead.end < program.region_count && floats < AHEAD_FLOATS; ++ahead.end) {
            floats += program.regions[ahead.end].floats;
        }
    }

    void run_step() {
        look_ahead();
        if (step->kind >= QUANTIZE) return run_bytes();
        const int batch = program.batch;
        const Planes x = planes(step->input), y = planes(step->output), other = planes(step->other);
        const Planes* maybe_other = step->other.place == NOWHERE ? nullptr : &other;
        const Planes factor = planes(step->factor);
        const auto convolve = [&](const Selection* selection, const Winners* winners) {
            run_stage(COMPUTING, [&](int share, int shares) {
                kernels.conv(step->conv, selection, winners, batch, x, y, maybe_other, in_arena(step->output_sums),
                             scratch, &ahead, share, shares);
            });
        };
        switch (step->kind) {
            case CONV:
                return convolve(nullptr, nullptr);
            case DYNAMIC_CONV: {
                const Selection selection = step->fixed.channels ? step->fixed : select_channels(x);
                return convolve(&selection, nullptr);
            }
            case WINNERS_CONV: {
                const Winners winners = select_channels(x);
                if (!step->conv.dynamic) return convolve(nullptr, &winners);
                const GateMemory before(in_arena(step->input_winners), x.channels, 1, batch);
                const Selection nonzero = {before.channels, nullptr, before.counts};
                return convolve(&nonzero, &winners);
            }
            case EXPAND:
                return run_stage(COMPUTING, [&](int share, int shares) {
                    kernels.expand(step->expansion, step->conv, batch, x, other, y, in_arena(step->output_sums),
                                   scratch, &ahead, share, shares);
                });
            case POOL:
                return run_stage(COMPUTING, [&](int share, int shares) {
                    kernels.pool(step->window, step->before, batch, x, y, scratch, share, shares);
                });
            case GLOBAL_POOL:
                return run_stage(COMPUTING, [&](int share, int shares) {
                    kernels.sum_planes(step->before, false, batch, x, pixels(x), y.data, y.image_stride, share, shares);
                });
            case LINEAR:
                return run_stage(COMPUTING, [&](int share, int shares) {
                    kernels.linear(step->weight, step->scale, step->bias, step->activation, batch, x, y, share, shares);
                });
            case ELEMENTWISE:
                return run_stage(COMPUTING, [&](int share, int shares) {
                    kernels.elementwise(step->before, step->activation, batch, x, step->order,
                                        step->factor.place == NOWHERE ? nullptr : &factor, maybe_other, y, share,
                                        shares);
                });
            case LAYER_NORM:
                return run_stage(COMPUTING, [&](int share, int shares) {
                    kernels.layer_norm(step->before, step->epsilon, batch, x, y, share, shares);
                });
            case RESIZE:
                return run_stage(COMPUTING, [&](int share, int shares) {
                    kernels.resize(step->resize, batch, x, y, scratch, share, shares);
                });
            case PAD:
                return run_stage(COMPUTING, [&](int share, int shares) {
                    kernels.pad(step->window.pad_top, step->window.pad_left, batch, x, y, share, shares);
                });
        }
    }

    // Image by image: what is chosen, and packed for it, is that of one image.
    void run_bytes() {
        for (int image = 0; image < program.batch; ++image) {
            const Pixels x = pixels(step->byte_input, image), y = pixels(step->byte_output, image);
            const Pixels other = pixels(step->byte_other, image);
            const Pixels* maybe_other = step->byte_other.place == NOWHERE ? nullptr : &other;
            if (step->kind == BYTE_CONV && has_gate(step->bytes)) choose(x);
            run_stage(COMPUTING, [&](int share, int shares) { compute_bytes(image, x, y, maybe_other, share, shares); });
        }
    }

    void compute_bytes(int image, const Pixels& x, const Pixels& y, const Pixels* other, int share, int shares) {
        const ByteConv& conv = step->bytes;
        const Planes from = planes(step->input), to = planes(step->output);
        switch (step->kind) {
            case BYTE_CONV: {
                const void* choices = has_gate(conv) ? choices_of(conv) : conv.choices;
                const void* packed = has_gate(conv) ? chosen + step->chosen : end_of_choices(conv);
                return byte_kernels.conv(conv, choices, packed, x, y, other, scratch, &ahead, share, shares);
            }
            case QUANTIZE:
                return byte_kernels.quantize(from.data + image * from.image_stride, y, conv.positions,
                                             conv.input_scale, conv.result, share, shares);
            case DEQUANTIZE:
                return byte_kernels.dequantize(x, to.data + image * to.image_stride, conv.positions, conv.input_scale,
                                               conv.input_zero, share, shares);
            case BYTE_POOL: {
                const Window& w = step->window;
                return byte_kernels.pool(w.is_max, w.kernel_h, w.kernel_w, w.stride_h, w.stride_w, w.pad_top,
                                         w.pad_left, conv.input_zero, x, y, share, shares);
            }
            case BYTE_MEAN:
                return byte_kernels.mean_row(x, conv.positions, conv.input_scale, conv.input_zero,
                                             to.data + image * to.image_stride, share, shares);
            case BYTE_TABLE:
                return byte_kernels.look_up(static_cast<const uint8_t*>(conv.weight), x, y, share, shares);
            case RESCALE:
                return byte_kernels.rescale(x, conv.positions, conv.multiplier, conv.bias, other, conv.residual_scale,
                                            y, conv.result, share, shares);
        }
    }

    // Sums of the channels, then the choice of each head, and the weights for it.
    void choose(const Pixels& x) {
        const ByteConv& conv = step->bytes;
        const Gate& gate = step->gate;
        const GateMemory memory(in_arena(step->gate_memory), gate.channels, gate.heads, 1);
        int32_t* const sums = reinterpret_cast<int32_t*>(in_arena(step->choices));
        const bool takes_all = crew.threads() >= SUM_PARTS || int64_t(x.height) * x.width > MOST_SUMMED_BYTES;
        const int parts = takes_all ? SUM_PARTS : crew.threads();
        run_stage(POOLING, [&](int share, int shares) { byte_kernels.sum_pixels(x, parts, sums, share, shares); });
        run_stage(SELECTING, [&](int share, int shares) {
            const auto begun = now();
            float* const means = scratch;
            byte_kernels.means(conv, parts, sums, int64_t(x.height) * x.width, means);
            float* const rest = scratch + whole_cache_lines(conv.in_channels);
            if (conv.generator.weight1)
                byte_kernels.generate(gate, conv.generator, means, memory.saliency, rest, share, shares);
            else
                kernels.generate(gate, 1, means, 1, 1, memory.saliency, rest, share, shares);
            const auto generated = now();
            kernels.select(gate, 1, memory.saliency, memory.channels, memory.gates, memory.counts, rest, share, shares);
            const int64_t begin = int64_t(gate.heads) * share / shares, end = int64_t(gate.heads) * (share + 1) / shares;
            for (int64_t head = begin; head < end; ++head) {
                const int32_t *channels = memory.channels + head * gate.channels, count = memory.counts[head];
                const float* gates = memory.gates + head * gate.channels;
                if (folds(conv)) {
                    byte_kernels.note_gates(conv, int32_t(head), channels, gates, count, choices_of(conv));
                    continue;
                }
                void* const choice = choices_of(conv) + head * byte_kernels.choice_bytes(conv);
                byte_kernels.choose(conv, channels, gates, count, choice);
                byte_kernels.pack_chosen(conv, int32_t(head), choice,
                                         chosen + step->chosen + head * byte_kernels.chosen_bytes(conv));
            }
            if (watch.runs()) watch.spent(stage, generated - begun, now() - generated);
        });
        if (!folds(conv)) return;
        run_stage(SELECTING, [&](int share, int shares) { byte_kernels.fold(conv, choices_of(conv), share, shares); });
    }

    char* choices_of(const ByteConv& conv) const {
        return reinterpret_cast<char*>(in_arena(step->choices) + whole_cache_lines(int64_t(SUM_PARTS) * conv.in_channels));
    }

    const void* end_of_choices(const ByteConv& conv) const {
        if (!conv.choices) return nullptr;
        return static_cast<const char*>(conv.choices) + conv.groups * byte_kernels.choice_bytes(conv);
    }

    Pixels pixels(const ByteView& view, int image) const {
        uint8_t* const place = reinterpret_cast<uint8_t*>(places[view.place == NOWHERE ? ARENA : view.place]);
        return {place + view.offset + image * view.image_stride, view.image_stride, view.pixel_stride, view.channels,
                view.height, view.width};
    }

    Selection select_channels(const Planes& x) {
        const Gate& gate = step->gate;
        const int batch = program.batch;
        const GateMemory memory(in_arena(step->gate_memory), gate.channels, gate.heads, batch);
        const float* sums = in_arena(step->input_sums);
        if (!sums) {
            run_stage(POOLING, [&](int share, int shares) {
                kernels.sum_planes(step->before, !gate.weight1, batch, x, 1, memory.sums, x.channels, share, shares);
            });
        }
        run_stage(SELECTING, [&](int share, int shares) {
            const auto begin = now();
            kernels.generate(gate, batch, sums ? sums : memory.sums, sums ? step->input_parts : 1, pixels(x),
                             memory.saliency, scratch, share, shares);
            const auto generated = now();
            kernels.select(gate, batch, memory.saliency, memory.channels, memory.gates, memory.counts, scratch, share,
                           shares);
            if (watch.runs()) watch.spent(stage, generated - begin, now() - generated);
        });
        return {memory.channels, memory.gates, memory.counts};
    }

    template <class Body>
    void run_stage(Stage kind, Body body) {
        crew.run_stage(stage, rank, body, [&] { watch.complete(stage, step - program.steps, kind); });
        ++stage;
    }

    Stopwatch::Clock::time_point now() const {
        return watch.runs() ? Stopwatch::Clock::now() : Stopwatch::Clock::time_point();
    }

    Planes planes(const View& view) const {
        return {places[view.place] + view.offset, view.image_stride, view.channels, view.height, view.width};
    }

    float* in_arena(int64_t offset) const { return offset < 0 ? nullptr : places[ARENA] + offset; }

    static float pixels(const Planes& x) { return float(int64_t(x.height) * x.width); }
};

Planes shape_of(const View& view) { return {nullptr, 0, view.channels, view.height, view.width}; }

}  // namespace
}  // namespace dgconv

using namespace dgconv;

DGCONV_EXPORT int64_t dgconv_gate_floats(const Gate* gate, int32_t batch) {
    return is_sound(*gate, batch) ? GateMemory::floats(*gate, batch) : -1;
}

DGCONV_EXPORT int64_t dgconv_choice_floats(const ByteConv* conv) {
    if (!is_sound(*conv)) return -1;
    const ByteKernels& table = byte_kernels();
    const int64_t bytes = folds(*conv) ? table.folded_bytes(*conv) : conv->groups * table.choice_bytes(*conv);
    return whole_cache_lines(int64_t(SUM_PARTS) * conv->in_channels) + whole_cache_lines((bytes + 3) / 4);
}

DGCONV_EXPORT int64_t dgconv_scratch_floats(const Step* step) {
    const View &x = step->input, &y = step->output;
    if (!has_sound_sizes(*step)) return -1;
    if (step->kind == BYTE_CONV) {
        const ByteConv& conv = step->bytes;
        const ByteView &from = step->byte_input, &to = step->byte_output;
        const int64_t floats =
            (byte_kernels().conv_scratch_bytes(conv, from.height, from.width, to.height, to.width) + 3) / 4;
        if (!has_gate(conv)) return floats;
        const int64_t gate = whole_cache_lines(conv.in_channels) + kernels().gate_scratch_floats(step->gate);
        return floats > gate ? floats : gate;
    }
    if (step->kind == POOL) return kernels().pool_scratch_floats(step->window, shape_of(x), shape_of(y));
    if (step->kind == RESIZE) return kernels().resize_scratch_floats(shape_of(x), shape_of(y));
    if (step->kind == EXPAND) {
        return kernels().expand_scratch_floats(step->expansion, step->conv, shape_of(x), shape_of(step->other),
                                               y.height, y.width);
    }
    const bool has_gate = step->kind == DYNAMIC_CONV || step->kind == WINNERS_CONV;
    if (step->kind != CONV && !has_gate) return 0;
    const int64_t conv = kernels().conv_scratch_floats(step->conv, x.height, x.width, y.height, y.width);
    const int64_t gate = has_gate ? kernels().gate_scratch_floats(step->gate) : 0;
    return conv > gate ? conv : gate;
}

DGCONV_EXPORT double dgconv_run(const Program* program, const float* x, float* y, float* arena, void* chosen,
                                int32_t threads, double* seconds) {
    threads = threads_to_be_had(threads);
    Crew crew(threads);
    Stopwatch watch(*program, seconds);
    const auto work = [&](int rank) { Worker(*program, crew, watch, x, y, arena, chosen, rank).run(); };
    Crew::Clock::duration taken{0};
#ifdef _OPENMP
    if (threads > 1) {
        const Crew::Clock::time_point begin = Crew::Clock::now();
        Crew::Clock::duration first{0};
#pragma omp parallel num_threads(threads)
        {
            const int rank = omp_get_thread_num();
            const Crew::Clock::time_point begun = Crew::Clock::now();
            work(rank);
            if (rank == 0) first = Crew::Clock::now() - begun;
        }
        taken = Crew::Clock::now() - begin;
        crew.add_wait(taken - first);
    } else
#endif
        work(0);
    watch.sum_up();
    return crew.was_slower_than_one(taken) ? std::chrono::duration<double>(taken).count() : 0;
}

DGCONV_EXPORT int64_t dgconv_gate_scratch_floats(const Gate* gate) { return kernels().gate_scratch_floats(*gate); }

DGCONV_EXPORT void dgconv_generate(const Gate* gate, int32_t batch, const float* means, float* saliency,
                                   float* scratch) {
    kernels().generate(*gate, batch, means, 1, 1, saliency, scratch, 0, 1);
}

DGCONV_EXPORT void dgconv_select(const Gate* gate, int32_t batch, const float* saliency, int32_t* channels,
                                 float* gates, int32_t* counts, float* scratch) {
    kernels().select(*gate, batch, saliency, channels, gates, counts, scratch, 0, 1);
}
