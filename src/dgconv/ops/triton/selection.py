"""Which channels each head keeps of each image, for inference: generator and head-wise gate in one launch."""
# mypy: allow-untyped-defs, allow-incomplete-defs

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .saliency_gate import _relu

MOST_WEIGHTS = 16384  # of the generator that a program holds
COUNTED = tl.constexpr(128)  # channels up to which ranks are counted: a comparison of all with all, but one reduction


@dataclass(frozen=True)
class Selection:
    """``index`` and ``gates`` [B, H, S]: places of what is kept, and saliencies; ``gates`` of slots beyond are zero.

    ``every`` [B, H, C] has the gates of all places, zeros among them. ``arrivals`` [B, n] are zeros.
    """

    index: Tensor
    gates: Tensor
    every: Tensor
    arrivals: Tensor


@dataclass(frozen=True)
class GateTile:
    """Images of a program, which share the weights that it reads and wait for each reduction once."""

    images: int
    warps: int


def gate_tiles(batch: int, heads: int, channels: int, width: int) -> list[GateTile]:
    """Those worth a trial, the likeliest first."""
    all_c, block_d = _block(channels, width)
    weights = all_c * block_d
    most = 4 if weights <= 4096 else 8 if weights <= 8192 else 16
    if batch * heads <= 264 or block_d < width:
        return [GateTile(1, warps) for warps in (most, most // 2, most // 4, 2 * most) if warps <= 16]
    images = [count for count in (4, 2, 8, 1) if count <= batch]
    tiles = [GateTile(count, warps) for count in images for warps in (most, most // 2, 2 * most) if warps <= 16]
    values = max(block_d, all_c if all_c <= COUNTED.value else 16) * all_c  # of an image, in the largest product
    threads = [32 * tile.warps for tile in tiles]
    fitting = [tile for tile, count in zip(tiles, threads, strict=True) if 32 <= tile.images * values / count <= 128]
    return fitting or [GateTile(1, most)]


def _block(channels: int, width: int) -> tuple[int, int]:
    """All channels, and the hidden units whose weights a program holds at a time."""
    all_c = max(32, triton.next_power_of_2(channels))
    return all_c, min(triton.next_power_of_2(width), max(1, MOST_WEIGHTS // all_c))


def slots_for(keep: int) -> int:
    return triton.cdiv(keep, 16) * 16


def select(
    sums: Tensor, pixels: int, weight1: Tensor, weight2: Tensor, bias: Tensor, keep: int, places: Tensor,
    arrivals: int = 1, tile: GateTile | None = None,
) -> Selection:  # fmt: skip
    """From sums over pixels [B, T, C]. ``weight1`` and ``weight2`` are [H, D, C] both, float32; the first has its
    channels in their order in memory, as the sums do."""
    (batch, tiles, channels), (heads, width, _) = sums.shape, weight1.shape
    tile = tile or gate_tiles(batch, heads, channels, width)[0]
    slots = slots_for(keep)
    floats = {"device": sums.device, "dtype": torch.float32}
    index = torch.empty(batch, heads, slots, device=sums.device, dtype=torch.int32)
    zeros = torch.empty(batch, arrivals, device=sums.device, dtype=torch.int32)
    gates, every = torch.empty(batch, heads, slots, **floats), torch.empty(batch, heads, channels, **floats)  # type: ignore[call-overload]
    scratch = torch.empty_like(every)
    all_c, block_d = _block(channels, width)
    block_t = max(1, min(64, triton.next_power_of_2(tiles), 8192 // (all_c * tile.images)))
    _select_kernel[(heads, triton.cdiv(batch, tile.images))](
        sums, places, weight1, weight2, bias, scratch, index, gates, every, zeros,
        batch, tiles, pixels, heads, channels, width, keep, arrivals,
        ALL_C=all_c, BLOCK_D=block_d, ONCE=block_d >= width, IMAGES=tile.images, BLOCK_T=block_t,
        SLOTS=slots, ALL_S=triton.next_power_of_2(slots), ALL_A=triton.next_power_of_2(arrivals),
        num_warps=tile.warps,
    )  # fmt: skip
    return Selection(index, gates, every, zeros)


@triton.jit
def _kept_by_rank(score, all_scores, c, other, channels, keep):
    """Rows of scores [I, C], given twice: fewer than ``keep`` are greater, or equal and before it."""
    score = tl.where(score != score, -float("inf"), score)[:, :, None]
    all_scores = tl.where(all_scores != all_scores, -float("inf"), all_scores)[:, None, :]
    other, c = other[None, None, :], c[None, :, None]
    before = (all_scores > score) | ((all_scores == score) & (other < c))
    return tl.sum((before & (other < channels)).to(tl.int32), 2) < keep


@triton.jit
def _kept_by_border(score, c, channels, keep, IMAGES: tl.constexpr):
    """As ``saliency_gate._keep_greatest``, of rows [I, C]."""
    score = tl.where(score != score, -float("inf"), score)
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)  # one zero only
    bits = tl.where(bits < 0, ~bits, bits ^ -2147483648)
    key = tl.where((c < channels)[None, :], bits, 0).to(tl.uint32, bitcast=True)
    digit = tl.arange(0, 16).to(tl.uint32)
    border, unit = tl.zeros([IMAGES], tl.uint32), tl.full([], 1 << 28, tl.uint32)
    for _ in range(8):
        candidate = border[:, None] + (digit * unit)[None, :]
        reached = tl.sum((key[:, :, None] >= candidate[:, None, :]).to(tl.int32), 1)  # [I, 16], by how many channels
        border += (tl.sum((reached >= keep).to(tl.int32), 1) - 1).to(tl.uint32) * unit
        unit = unit >> 4
    above, level = key > border[:, None], key == border[:, None]
    room = keep - tl.sum(above.to(tl.int32), 1)
    return above | (level & (tl.cumsum(level.to(tl.int32), 1) <= room[:, None]))


@triton.jit(do_not_specialize=["batch", "tiles", "pixels", "width", "keep", "arrivals"])
def _select_kernel(
    sums_ptr, places_ptr, weight1_ptr, weight2_ptr, bias_ptr, scratch_ptr, index_ptr, gates_ptr, every_ptr, zeros_ptr,
    batch, tiles, pixels, heads, channels, width, keep, arrivals,
    ALL_C: tl.constexpr, BLOCK_D: tl.constexpr, ONCE: tl.constexpr, IMAGES: tl.constexpr, BLOCK_T: tl.constexpr,
    SLOTS: tl.constexpr, ALL_S: tl.constexpr, ALL_A: tl.constexpr,
):  # fmt: skip
    """One head of some images."""
    head, image = tl.program_id(0), tl.program_id(1) * IMAGES + tl.arange(0, IMAGES)
    c, d = tl.arange(0, ALL_C), tl.arange(0, BLOCK_D)
    is_image, is_channel = (image < batch)[:, None], c < channels
    total = tl.zeros([IMAGES, BLOCK_T, ALL_C], tl.float32)
    for start in range(0, tiles, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        exists = is_image[:, :, None] & (t < tiles)[None, :, None] & is_channel[None, None, :]
        at = ((image * tiles)[:, None] + t[None, :])[:, :, None] * channels + c[None, None, :]
        total += tl.load(sums_ptr + at, mask=exists, other=0.0)
    pooled = tl.sum(total, 1) / pixels.to(tl.float32)
    score = tl.zeros([IMAGES, ALL_C], tl.float32) + tl.load(bias_ptr + head * channels + c, mask=is_channel, other=0.0)
    for begin in range(0, 1 if ONCE else width, BLOCK_D):
        unit = begin + d
        inside = (unit < width)[:, None] & is_channel[None, :]
        at = (head * width + unit)[:, None] * channels + c[None, :]
        weight1 = tl.load(weight1_ptr + at, mask=inside, other=0.0)
        weight2 = tl.load(weight2_ptr + at, mask=inside, other=0.0)
        hidden = _relu(tl.sum(weight1[None, :, :] * pooled[:, None, :], 2))
        score += tl.sum(weight2[None, :, :] * hidden[:, :, None], 1)
    score = _relu(score)
    row = (image * heads + head)[:, None]
    inside = is_image & is_channel[None, :]
    tl.store(scratch_ptr + row * channels + c[None, :], score, mask=inside)
    tl.debug_barrier()  # read back, as in saliency_gate: Triton 3.6 ranks a sum wrongly as it lies in registers
    score = tl.load(scratch_ptr + row * channels + c[None, :], mask=inside, other=0.0)
    if ALL_C <= COUNTED:
        other = tl.arange(0, ALL_C)
        there = is_image & (other < channels)[None, :]
        all_scores = tl.load(scratch_ptr + row * channels + other[None, :], mask=there, other=0.0)
        kept = _kept_by_rank(score, all_scores, c, other, channels, keep) & inside
    else:
        kept = _kept_by_border(score, c, channels, keep, IMAGES) & inside
    slot = tl.cumsum(kept.to(tl.int32), 1) - 1
    place = tl.zeros([IMAGES, ALL_C], tl.int32) + tl.load(places_ptr + c, mask=is_channel, other=0)[None, :]
    tl.store(index_ptr + row * SLOTS + slot, place, mask=kept)
    tl.store(gates_ptr + row * SLOTS + slot, score, mask=kept)
    tl.store(every_ptr + row * channels + place, tl.where(kept, score, 0.0), mask=inside)
    rest = tl.arange(0, ALL_S)[None, :]
    is_rest = is_image & (rest >= keep) & (rest < SLOTS)
    tl.store(index_ptr + row * SLOTS + rest, tl.zeros([IMAGES, ALL_S], tl.int32), mask=is_rest)
    tl.store(gates_ptr + row * SLOTS + rest, tl.zeros([IMAGES, ALL_S], tl.float32), mask=is_rest)
    counter = tl.arange(0, ALL_A)[None, :]
    mine = is_image & (counter < arrivals) & (counter % heads == head)
    tl.store(zeros_ptr + image[:, None] * arrivals + counter, tl.zeros([IMAGES, ALL_A], tl.int32), mask=mine)
