"""Dynamic convolutions of bytes with their gates in the weights, and with bytes that are picked: times, and the rule.

DGCONV_ISA=avx512_vbmi2 python benchmarks/folding.py

One thread, one image, calls of both forms in turn, of layers as MobileNetV2, CondenseNets and ResNets have them. Prints
how many times faster folding is, beside what `dgconv.deploy.compile.folding` expects.
"""

import argparse
from dataclasses import replace
from statistics import median

import torch

from dgconv.deploy.compile.folding import MARGIN, folding_cost, picking_cost
from dgconv.deploy.graph import ByteConv, Bytes, Conv, Dequantize, GateSpec, Graph, Quantize
from dgconv.deploy.run.prepared import PreparedModel
from dgconv.ops import native

LAYERS = (  # inputs, outputs, heads, kernel, side, share of the inputs that is kept
    *((32, 16, 4, 1, 112, 0.45), (96, 24, 4, 1, 56, 0.45), (144, 24, 4, 1, 56, 0.45), (192, 32, 4, 1, 28, 0.45)),
    *((192, 64, 4, 1, 14, 0.45), (384, 64, 4, 1, 14, 0.45), (576, 96, 4, 1, 14, 0.45), (960, 320, 4, 1, 7, 0.45)),
    *((16, 64, 4, 1, 32, 0.25), (128, 64, 4, 1, 32, 0.25), (256, 128, 4, 1, 16, 0.25), (512, 256, 4, 1, 8, 0.25)),
    *((64, 64, 8, 1, 32, 0.25), (256, 64, 8, 1, 32, 0.25), (256, 128, 8, 1, 16, 0.5), (512, 128, 4, 1, 28, 0.25)),
    *((16, 16, 4, 3, 32, 0.45), (32, 32, 4, 3, 16, 0.45), (32, 32, 8, 3, 16, 0.45), (64, 64, 4, 3, 8, 0.45)),
    *((64, 64, 4, 3, 56, 0.45), (128, 128, 4, 3, 28, 0.45), (256, 256, 4, 3, 14, 0.45), (512, 512, 4, 3, 7, 0.45)),
)
GIVEN, RESULT = Bytes(0.02, 128), Bytes(0.1, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{native.isa()}; folded from {MARGIN} on, as expected")
    print("layer                               us: picked  folded   faster  expected")
    for layer in LAYERS:
        inputs, outputs, heads, kernel, side, _ = layer
        conv, byte_conv = forms(*layer)
        picked, folded = (1e6 * seconds for seconds in times(byte_conv, side, arguments.calls))
        expected = picking_cost(conv, side**2, side**2) / folding_cost(conv, side**2)
        name = f"{inputs} to {outputs}, {heads} heads, {kernel}x{kernel}, {side} px"
        print(f"{name:<34}{picked:>13.1f}{folded:>8.1f}{picked / folded:>9.2f}{expected:>10.2f}", flush=True)


def forms(inputs: int, outputs: int, heads: int, kernel: int, side: int, kept: float) -> tuple[Conv, ByteConv]:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=generator) for shape in ((heads, 4, inputs), (heads, inputs, 4))]
    gate = GateSpec(*weights, torch.rand(heads, inputs, generator=generator) + 1, keep=round(kept * inputs))
    weight = torch.randint(-127, 128, (outputs, inputs, kernel, kernel), generator=generator)
    padding = (kernel // 2, kernel // 2)
    conv = Conv("a", "b", weight.float(), padding=padding, gate=gate)
    numbers = torch.full((outputs,), 0.3 / weight[0].numel()), torch.zeros(outputs)
    bytes = weight.to(torch.int8)
    return conv, ByteConv("a", "b", bytes, *numbers, GIVEN, RESULT, padding=padding, gate=gate, label="it")


def times(conv: ByteConv, side: int, calls: int) -> list[float]:
    """Seconds of both forms, for images that choose differently; without the generator, which is the same for both."""
    models = []
    for folded in (False, True):
        steps = [Quantize("x", "a", GIVEN), replace(conv, folded=folded), Dequantize("b", "y", RESULT)]
        models.append(PreparedModel(Graph("x", "y", steps)))
    images = [torch.randn(1, conv.weight.shape[1], side, side) for _ in range(2)]
    taken: tuple[list[float], list[float]] = [], []
    for call in range(calls):
        for model, own in zip(models, taken, strict=True):
            (step,) = (step for step in model.time_by_step(images[call % 2]) if step.label == "it")
            own.append(step.stages["select"] + step.stages["compute"])
    return [median(own) for own in taken]


if __name__ == "__main__":
    main()
