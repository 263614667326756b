// Convolution of planes, dynamic or static; see kernels.h for what it computes and conv_plan.h for how it is cut.
#pragma once

#include "conv_depthwise.h"
#include "conv_direct.h"
#include "conv_expand.h"
#include "conv_winograd_tiles.h"
#include "conv_winograd.h"

namespace dgconv::DGCONV_ISA {

inline int64_t conv_packed_floats(const Conv& conv) {
    const Plan plan = plan_weights(conv);
    if (plan.form == DEPTHWISE) return int64_t(round_up(conv.groups, WIDTH)) * plan.taps;
    return conv.groups * group_floats(plan) + PANEL;  // room to read past the end
}

inline void pack_conv(const Conv& conv, const float* oihw, float* packed) {
    const Plan plan = plan_weights(conv);
    // All that is written anyway is not cleared first: that takes nearly as long as to pack it.
    const int64_t all = conv_packed_floats(conv), cleared = plan.form == DEPTHWISE ? all : PANEL;
    memset(packed + all - cleared, 0, sizeof(float) * cleared);
    if (plan.form == DEPTHWISE) return pack_depthwise(conv, plan, oihw, packed);
    if (plan.form == WINNERS) return pack_winners(plan, oihw, packed);
    if (plan.form == TILE_LANES) return pack_winograd_tiles(conv, plan, oihw, packed);
    if (plan.form != WINOGRAD) return pack_direct(conv, plan, oihw, packed);
    plan.tile == 4 ? pack_winograd<4>(conv, plan, oihw, packed) : pack_winograd<2>(conv, plan, oihw, packed);
}

inline int64_t conv_scratch_floats(const Conv& conv, int32_t in_h, int32_t in_w, int32_t out_h, int32_t out_w) {
    const Plan plan = make_plan(conv, out_h, out_w);
    if (plan.form == DEPTHWISE) return depthwise_scratch_floats(conv, plan, {nullptr, 0, 0, in_h, in_w}, out_w);
    if (plan.form == WINNERS) return WinnersDirect(conv, plan, in_w, out_w).total;
    if (plan.form == TILE_LANES) {
        int64_t floats = 0;
        with_winograd_tiles(conv, plan, in_w, out_w, [&](const auto& form) { floats = form.total; });
        return floats;
    }
    if (plan.form != WINOGRAD) return direct_scratch_floats(conv, plan, in_w, out_w);
    return plan.tile == 4 ? Winograd<4>(conv, plan, out_w).total : Winograd<2>(conv, plan, out_w).total;
}

inline int32_t conv_pool_parts(const Conv& conv, int32_t out_h, int32_t out_w) {
    return make_plan(conv, out_h, out_w).chunks;
}

inline void conv(const Conv& conv, const Selection* selection, const Winners* winners, int32_t batch, Planes x,
                 Planes y, const Planes* residual, float* pooled, float* scratch, Ahead* ahead, int rank, int threads) {
    const Plan plan = make_plan(conv, y.height, y.width);
    if (plan.form == DEPTHWISE) {
        return depthwise(conv, plan, batch, x, y, residual, pooled, scratch, rank, threads);
    }
    const ItemShare share(conv, plan, selection, batch, rank, threads);
    for (int index = share.begin; index < share.end; ++index) {
        const Item item = make_item(conv, plan, selection, batch, y.height, y.width, index);
        const Output output(conv, plan, item, y, residual, pooled);
        const bool is_first = index == share.begin;  // of this thread, whose scratch it finds as the caller left it
        if (plan.form == WINNERS) {
            const ChosenOutputs chosen(conv, plan, item, winners, output);
            WinnersDirect(conv, plan, x.width, y.width).run(plan, item, x, chosen, scratch, is_first);
        } else if (plan.form == TILE_LANES && plan.groups == conv.groups) {
            const ChosenOutputs chosen(conv, plan, item, winners, output);
            with_winograd_tiles(conv, plan, x.width, y.width,
                                [&](const auto& form) { form.run(item, x, chosen, scratch, is_first); });
            output.finish();
        } else if (plan.form == TILE_LANES) {
            const auto output_of = [&](const Item& head) { return Output(conv, plan, head, y, residual, pooled); };
            with_winograd_tiles(conv, plan, x.width, y.width, [&](const auto& form) {
                form.run_heads(item, *selection, x, output_of, scratch, is_first);
            });
        } else if (plan.form != WINOGRAD) {
            Direct(conv, plan, item, x, y.width, output, scratch, ahead).run(is_first);
            output.finish();
        } else if (plan.tile == 4) {
            Winograd<4>(conv, plan, y.width).run(item, x, output, scratch, is_first);
            output.finish();
        } else {
            Winograd<2>(conv, plan, y.width).run(item, x, output, scratch, is_first);
            output.finish();
        }
    }
}

}  // namespace dgconv::DGCONV_ISA
