// Random convolutions by the kernels of one instruction set against naive loops. Built with sanitizers: every buffer
// is exactly as large as promised, so a float read or written past its end is caught.
//
//     native_driver COUNT SEED
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "table.h"

using namespace dgconv;
using Floats = std::vector<float>;

namespace {

std::mt19937 random_bits;

int pick(int low, int high) { return low + static_cast<int>(random_bits() % static_cast<unsigned>(high - low + 1)); }
bool chance(int percent) { return pick(1, 100) <= percent; }
Floats floats(size_t count) {
    std::normal_distribution<float> normal;
    Floats values(count);
    for (float& value : values) value = normal(random_bits);
    return values;
}
float activated(float v, int activation) {
    if (activation != IDENTITY && v < 0) v = 0;
    return activation == RELU6 && v > 6 ? 6 : v;
}

struct Case {
    Conv conv{};
    int batch, in_h, in_w, out_h, out_w, inputs;
    Floats x, weight, scale, shift, bias, residual, gates, beta, boosts;
    std::vector<int32_t> channels, counts, winners, winner_counts;

    Case() {
        const bool is_depthwise = chance(30);
        conv.dynamic = !is_depthwise && chance(50);
        const bool has_winners = !is_depthwise && chance(30);
        conv.groups = is_depthwise ? pick(2, 40) : has_winners ? 1 : pick(1, 4);
        inputs = is_depthwise ? 1 : pick(1, 20);
        conv.in_channels = conv.dynamic ? inputs : inputs * conv.groups;
        conv.out_channels = conv.groups * (is_depthwise ? 1 : pick(1, 40));
        conv.interleaved = chance(20);
        conv.kernel_h = chance(50) ? 3 : is_depthwise ? 5 : pick(1, 5);
        conv.kernel_w = chance(80) ? conv.kernel_h : pick(1, 4);
        const bool is_plain = chance(is_depthwise ? 80 : 50);
        conv.stride_h = is_plain ? 1 : pick(1, 3);
        conv.stride_w = is_plain ? 1 : pick(1, 3);
        if (is_plain && is_depthwise) conv.stride_h = conv.stride_w = pick(1, 2);
        conv.dilation_h = is_plain ? 1 : pick(1, 2);
        conv.dilation_w = is_plain ? 1 : pick(1, 2);
        conv.pad_top = pick(0, 2);
        conv.pad_left = pick(0, 2);
        const int extra_h = pick(0, 1), extra_w = pick(0, 1);
        const int reach_h = (conv.kernel_h - 1) * conv.dilation_h + 1;
        const int reach_w = (conv.kernel_w - 1) * conv.dilation_w + 1;
        batch = pick(1, 2);
        in_h = reach_h + pick(0, 12);
        in_w = reach_w + pick(0, 20);
        out_h = (in_h + 2 * conv.pad_top + extra_h - reach_h) / conv.stride_h + 1;
        out_w = (in_w + 2 * conv.pad_left + extra_w - reach_w) / conv.stride_w + 1;
        x = floats(size_t(batch) * conv.in_channels * in_h * in_w);
        weight = floats(size_t(conv.out_channels) * inputs * conv.kernel_h * conv.kernel_w);
        if (chance(50)) bias = floats(conv.out_channels), conv.bias = bias.data();
        if (chance(40)) residual = floats(size_t(batch) * conv.out_channels * out_h * out_w);
        if (chance(40)) {
            scale = floats(conv.in_channels), shift = floats(conv.in_channels);
            conv.in_scale = scale.data(), conv.in_shift = shift.data(), conv.in_activation = pick(0, 2);
        }
        conv.activation = pick(0, 2);
        if (conv.dynamic) gates = select(batch * conv.groups, conv.in_channels, channels, counts);
        if (has_winners) {
            boosts = select(batch, conv.out_channels, winners, winner_counts);
            beta = floats(conv.out_channels), conv.beta = beta.data();
        }
    }

    // Some of so many channels, for each entry; returns their gates.
    static Floats select(int entries, int of, std::vector<int32_t>& chosen, std::vector<int32_t>& counts) {
        chosen.resize(size_t(entries) * of, -1);
        const int percent = 25 * pick(0, 4);
        for (int entry = 0; entry < entries; ++entry) {
            int count = 0;
            for (int channel = 0; channel < of; ++channel) {
                if (chance(percent)) chosen[entry * of + count++] = channel;
            }
            counts.push_back(count);
        }
        return floats(chosen.size());
    }

    float input(int image, int channel, int y, int x_) const {
        if (y < 0 || y >= in_h || x_ < 0 || x_ >= in_w) return 0;
        const float v = x[((size_t(image) * conv.in_channels + channel) * in_h + y) * in_w + x_];
        return conv.in_scale ? activated(v * scale[channel] + shift[channel], conv.in_activation) : v;
    }

    // One output, by the definition.
    double output(int image, int out, int row, int column) const {
        const bool is_interleaved = conv.dynamic || conv.interleaved;
        const int group = is_interleaved ? out % conv.groups : out / (conv.out_channels / conv.groups);
        const int entry = image * conv.groups + group;
        double total = conv.bias ? bias[out] : 0;
        for (int i = 0; i < (conv.dynamic ? counts[entry] : inputs); ++i) {
            const int channel = conv.dynamic ? channels[entry * conv.in_channels + i] : group * inputs + i;
            const float gate = conv.dynamic ? gates[entry * conv.in_channels + i] : 1;
            const size_t kernel = (size_t(out) * inputs + (conv.dynamic ? channel : i)) * conv.kernel_h * conv.kernel_w;
            for (int ky = 0; ky < conv.kernel_h; ++ky) {
                for (int kx = 0; kx < conv.kernel_w; ++kx) {
                    const int y = row * conv.stride_h + ky * conv.dilation_h - conv.pad_top;
                    const int x_ = column * conv.stride_w + kx * conv.dilation_w - conv.pad_left;
                    total += double(input(image, channel, y, x_)) * gate * weight[kernel + ky * conv.kernel_w + kx];
                }
            }
        }
        return conv.beta ? boosted(image, out, total) : total;
    }

    double boosted(int image, int out, double value) const {
        for (int i = 0; i < winner_counts[image]; ++i) {
            const int place = image * conv.out_channels + i;
            if (winners[place] == out) return boosts[place] * value + beta[out];
        }
        return 0;
    }

    // The greatest error, relative to the greatest output.
    double check(const Kernels& kernels) {
        const size_t plane = size_t(out_h) * out_w;
        Floats packed(kernels.conv_packed_floats(conv)), y(size_t(batch) * conv.out_channels * plane);
        kernels.pack_conv(conv, weight.data(), packed.data());
        conv.weight = packed.data();
        const int parts = kernels.conv_pool_parts(conv, out_h, out_w), threads = pick(1, 3);
        Floats sums(size_t(batch) * conv.out_channels * parts, NAN);
        const Selection selection{channels.data(), gates.data(), counts.data()};
        const Winners chosen{winners.data(), boosts.data(), winner_counts.data()};
        const Planes in{x.data(), int64_t(conv.in_channels) * in_h * in_w, conv.in_channels, in_h, in_w};
        const Planes out{y.data(), int64_t(conv.out_channels * plane), conv.out_channels, out_h, out_w};
        Planes add = out;
        add.data = residual.data();
        const Region region{weight.data(), int64_t(weight.size())};
        for (int rank = 0; rank < threads; ++rank) {
            Floats scratch(kernels.conv_scratch_floats(conv, in_h, in_w, out_h, out_w), NAN);
            Ahead ahead{&region, rank, threads, 0, 1, nullptr, 0};
            kernels.conv(conv, conv.dynamic ? &selection : nullptr, conv.beta ? &chosen : nullptr, batch, in, out,
                         residual.empty() ? nullptr : &add, sums.data(), scratch.data(), chance(50) ? &ahead : nullptr,
                         rank, threads);
        }
        double worst = 0, scale_of_sum = 1;
        for (int image = 0; image < batch; ++image) {
            for (int channel = 0; channel < conv.out_channels; ++channel) {
                double sum = 0, greatest = 0;
                for (size_t i = 0; i < plane; ++i) {
                    const size_t at = (size_t(image) * conv.out_channels + channel) * plane + i;
                    double expected = output(image, channel, int(i) / out_w, int(i) % out_w);
                    scale_of_sum = std::fmax(scale_of_sum, std::fabs(expected));
                    if (!residual.empty()) expected += residual[at];
                    expected = activated(float(expected), conv.activation);
                    greatest = std::fmax(greatest, std::isnan(y[at]) ? INFINITY : std::fabs(y[at] - expected));
                    sum += expected;
                }
                for (int part = 0; part < parts; ++part) {
                    sum -= sums[(size_t(image) * conv.out_channels + channel) * parts + part];
                }
                worst = std::fmax(worst, std::fmax(greatest, std::isnan(sum) ? INFINITY : std::fabs(sum) / plane));
            }
        }
        return worst / scale_of_sum;
    }
};

// A convolution, 1x1 or of few channels, and a depthwise one after it.
struct Expansion {
    Conv first{}, then{};
    int batch = pick(1, 2), in_h, in_w, height, width, out_h, out_w;  // height, width: between them
    Floats x, first_weight, first_bias, weight, bias;

    Expansion() {
        first.in_channels = pick(1, 20);
        first.groups = 1;
        first.kernel_h = first.kernel_w = first.stride_h = first.stride_w = first.dilation_h = first.dilation_w = 1;
        if (chance(50)) {
            first.in_channels = pick(1, 4);
            first.kernel_h = pick(1, 3), first.kernel_w = pick(1, 4);
            first.stride_h = first.stride_w = pick(1, 2);
            first.dilation_h = pick(1, 2), first.dilation_w = pick(1, 2);
            first.pad_top = pick(0, 3), first.pad_left = pick(0, 3);
        }
        const int channels = pick(16, 50);
        first.out_channels = then.in_channels = then.out_channels = then.groups = channels;
        then.kernel_h = then.kernel_w = chance(50) ? 3 : 5;
        then.stride_h = then.stride_w = pick(1, 2);
        then.dilation_h = then.dilation_w = 1;
        then.pad_top = pick(0, 2), then.pad_left = pick(0, 2);
        in_h = 12 + pick(0, 40), in_w = 14 + pick(0, 60);
        const int extra = first.kernel_h * first.kernel_w > 1 ? pick(0, 1) : 0;
        height = (in_h + 2 * first.pad_top + extra - first.dilation_h * (first.kernel_h - 1) - 1) / first.stride_h + 1;
        width = (in_w + 2 * first.pad_left + extra - first.dilation_w * (first.kernel_w - 1) - 1) / first.stride_w + 1;
        out_h = (height + 2 * then.pad_top + pick(0, 1) - then.kernel_h) / then.stride_h + 1;
        out_w = (width + 2 * then.pad_left + pick(0, 1) - then.kernel_w) / then.stride_w + 1;
        x = floats(size_t(batch) * first.in_channels * in_h * in_w);
        first_weight = floats(size_t(channels) * first.in_channels * first.kernel_h * first.kernel_w);
        weight = floats(size_t(channels) * then.kernel_h * then.kernel_w);
        if (chance(50)) first_bias = floats(channels), first.bias = first_bias.data();
        if (chance(50)) bias = floats(channels), then.bias = bias.data();
        first.activation = pick(0, 2), then.activation = pick(0, 2);
    }

    // By the definition, first one plane of what lies between them.
    Floats expanded(int image, int channel) const {
        Floats result(size_t(height) * width);
        for (int i = 0; i < height * width; ++i) {
            double total = first.bias ? first_bias[channel] : 0;
            const int taps = first.kernel_h * first.kernel_w;
            for (int term = 0; term < first.in_channels * taps; ++term) {
                const int tap = term % taps;
                const int y = i / width * first.stride_h + tap / first.kernel_w * first.dilation_h - first.pad_top;
                const int x_ = i % width * first.stride_w + tap % first.kernel_w * first.dilation_w - first.pad_left;
                if (y < 0 || y >= in_h || x_ < 0 || x_ >= in_w) continue;
                const size_t plane = size_t(image) * first.in_channels + term / taps;
                const float weight = first_weight[size_t(channel) * first.in_channels * taps + term];
                total += double(x[(plane * in_h + y) * in_w + x_]) * weight;
            }
            result[i] = activated(float(total), first.activation);
        }
        return result;
    }

    double output(const Floats& plane, int channel, int row, int column) const {
        double total = then.bias ? bias[channel] : 0;
        for (int tap = 0; tap < then.kernel_h * then.kernel_w; ++tap) {
            const int y = row * then.stride_h + tap / then.kernel_w - then.pad_top;
            const int x_ = column * then.stride_w + tap % then.kernel_w - then.pad_left;
            if (y < 0 || y >= height || x_ < 0 || x_ >= width) continue;
            total += double(plane[size_t(y) * width + x_]) * weight[channel * then.kernel_h * then.kernel_w + tap];
        }
        return activated(float(total), then.activation);
    }

    double check(const Kernels& kernels) {
        const size_t plane = size_t(out_h) * out_w;
        Floats first_packed(kernels.conv_packed_floats(first)), packed(kernels.conv_packed_floats(then));
        kernels.pack_conv(first, first_weight.data(), first_packed.data());
        kernels.pack_conv(then, weight.data(), packed.data());
        first.weight = first_packed.data(), then.weight = packed.data();
        const int parts = kernels.conv_pool_parts(then, out_h, out_w), threads = pick(1, 3), channels = then.groups;
        Floats y(batch * channels * plane, NAN), sums(size_t(batch) * channels * parts, NAN);
        const int64_t in_stride = int64_t(first.in_channels) * in_h * in_w, out_stride = int64_t(channels * plane);
        const Planes in{x.data(), in_stride, first.in_channels, in_h, in_w};
        const Planes out{y.data(), out_stride, channels, out_h, out_w}, between{nullptr, 0, channels, height, width};
        for (int rank = 0; rank < threads; ++rank) {
            Floats scratch(kernels.expand_scratch_floats(first, then, in, between, out_h, out_w), NAN);
            kernels.expand(first, then, batch, in, between, out, sums.data(), scratch.data(), nullptr, rank, threads);
        }
        double worst = 0, scale = 1;
        for (int entry = 0; entry < batch * channels; ++entry) {
            const Floats middle = expanded(entry / channels, entry % channels);
            double sum = 0;
            for (size_t i = 0; i < plane; ++i) {
                const double expected = output(middle, entry % channels, int(i) / out_w, int(i) % out_w);
                const double found = y[entry * plane + i];
                scale = std::fmax(scale, std::fabs(expected));
                worst = std::fmax(worst, std::isnan(found) ? INFINITY : std::fabs(found - expected));
                sum += expected;
            }
            for (int part = 0; part < parts; ++part) sum -= sums[size_t(entry) * parts + part];
            worst = std::fmax(worst, std::isnan(sum) ? INFINITY : std::fabs(sum) / plane);
        }
        return worst / scale;
    }
};

}  // namespace

int main(int, char** arguments) {
    const int count = std::atoi(arguments[1]), seed = std::atoi(arguments[2]);
    for (int i = 0; i < count; ++i) {
        random_bits.seed(seed + i);
        const double error = i % 8 ? Case().check(DGCONV_TABLE) : Expansion().check(DGCONV_TABLE);
        if (!(error < 1e-4)) return std::printf("seed %d: error %g\n", seed + i, error), 1;
    }
    std::printf("%d convolutions agree\n", count);
}
