"""Compiles every Triton kernel of dgconv for an H200, without one, and prints those that it left out. Run as a script.

Triton's interpreter, in which the kernels are tested on a CPU, accepts what its compiler refuses.
"""

import pkgutil
from importlib import import_module
from typing import Any

import torch
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from dgconv.ops import triton as kernels

TARGETS = [GPUTarget("cuda", 90, 32)]
POINTERS = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.bool: "*i1", torch.int64: "*i64",
    torch.int32: "*i32",
}  # fmt: skip
OPTIONS = ("num_warps", "num_stages")


class Compiled:
    """Stands in for a kernel: a launch compiles it for these arguments."""

    def __init__(self, kernel: JITFunction) -> None:
        self.kernel, self.launches = kernel, 0

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.launch

    def launch(self, *arguments: Any, **named: Any) -> None:
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        given = dict(zip(self.kernel.arg_names, arguments, strict=False)) | named
        signature, constants, attributes = {}, {}, {}
        for place, parameter in enumerate(self.kernel.params):
            value = given[parameter.name]
            specialized = not parameter.do_not_specialize
            if parameter.is_constexpr or (specialized and value is not None and type(value) is int and value == 1):
                signature[parameter.name], constants[(place,)] = "constexpr", value
                continue
            is_tensor = isinstance(value, torch.Tensor)
            signature[parameter.name] = (
                POINTERS[value.dtype] if is_tensor else "fp32" if isinstance(value, float) else "i32"
            )
            if is_tensor or (specialized and type(value) is int and value % 16 == 0):
                attributes[(place,)] = [["tt.divisibility", 16]]
        for target in TARGETS:
            compile(ASTSource(self.kernel, signature, constants, attributes), target=target, options=options)
        self.launches += 1


def main() -> None:
    names = [module.name for module in pkgutil.iter_modules(kernels.__path__)]
    modules = {name: import_module(f"{kernels.__name__}.{name}") for name in names}
    stand_ins = {}
    for module in modules.values():
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction) and name.endswith("_kernel"):
                stand_ins[f"{module.__name__}.{name}"] = Compiled(value)
                setattr(module, name, stand_ins[f"{module.__name__}.{name}"])
    for dtype in (torch.bfloat16, torch.float32):
        launch_all(modules, dtype)
    torch.backends.cudnn.allow_tf32 = False
    launch_all(modules, torch.float32)
    TARGETS.append(GPUTarget("cuda", 80, 32))
    for dtype in (torch.bfloat16, torch.float16):
        launch_inference(modules, dtype)
    print(len(stand_ins), "kernels;", *[name for name, kernel in stand_ins.items() if not kernel.launches])


def launch_all(modules: dict[str, Any], dtype: torch.dtype) -> None:
    """Every kernel, at sizes of a CondenseNet-50 and a ResNet-18."""
    for channels, side in ((48, 32), (144, 16)):
        x, vector = torch.empty(64, channels, side, side, dtype=dtype), torch.empty(channels)
        norm = modules["batch_norm_relu"]
        norm.forward(x, vector, vector, vector, vector, 0.1, 1e-5)
        norm.forward_eval(x, vector, vector, vector, vector, 1e-5)
        modules["batch_norm_relu_backward"].backward(x, x, vector, vector, vector, vector, x)
    batch, channels, outputs, heads, pixels = 64, 144, 64, 4, 256
    x, grad = torch.empty(batch, channels, pixels, dtype=dtype), torch.empty(batch, outputs, pixels, dtype=dtype)
    weight, pooled = torch.empty(outputs, channels), torch.empty(batch, channels)
    gate, back, width = modules["saliency_gate"], modules["saliency_gate_backward"], 9
    keep, threshold = torch.tensor(36), torch.tensor(0.5)
    gate.pool(x[..., None])
    for size in (800, channels):  # a wide layer, and a narrow one
        generator = torch.empty(heads, width, size), torch.empty(heads, size, width), torch.empty(heads, size)
        means, filters = torch.empty(batch, size), torch.empty(outputs, size)
        for limit in (None, threshold):
            signed = limit is not None
            saliency, gates, hidden, kept, folded = gate.forward_folded(
                means, *generator, keep, limit, signed, filters, dtype
            )
            gate.forward(means, *generator, keep, limit, signed)
            back.backward(gates, saliency, saliency, kept, hidden, means, *generator[:2], signed)
    pointwise = modules["pointwise"]
    pointwise.forward(x, folded)
    pointwise.backward(grad, x, weight, gates, folded, pooled)
    for groups, interleaved in ((1, False), (4, True)):
        arguments = (grad, x, weight[:, : channels // groups].contiguous(), groups, interleaved)
        modules["pointwise_conv"].forward(*arguments[1:])
        modules["pointwise_conv"].input_gradient(*arguments)
        modules["pointwise_conv"].weight_gradient_parts(*arguments)
    wide, narrow = torch.empty(batch, 64, 16, 16, dtype=dtype), torch.empty(batch, 16, 16, 16, dtype=dtype)
    grouped = torch.empty(16, 16, 3, 3)
    modules["grouped_conv3x3"].forward(wide, grouped, 4)
    modules["grouped_conv3x3"].backward(narrow, wide, grouped, 4)
    copies = modules["head_copies"]
    image = torch.empty(batch, 64, 14, 14, dtype=dtype).contiguous(memory_format=torch.channels_last)
    gates = torch.empty(batch, heads, 64)
    scaled = copies.scale(image, gates)
    copies.interleave(scaled)
    copies.separate(image, heads)
    copies.combine(scaled, image, gates)
    copies.add_pooled(image, torch.empty(batch, 64))


def launch_inference(modules: dict[str, Any], dtype: torch.dtype) -> None:
    """The sparse convolutions, at sizes of a ResNet-18 and of a dense layer with a norm in front; a stem."""
    conv, planes, selection, tiles = (modules[name] for name in ("dynamic_conv", "planes", "selection", "tiles"))
    heads, keep = 4, 16
    x = torch.empty(2, 64, 14, 14, dtype=dtype).contiguous(memory_format=torch.channels_last)
    vector, norm = torch.empty(64), tiles.Norm(torch.empty(64), torch.empty(64), "relu")
    for channels, batch in ((64, 2), (64, 256), (128, 256), (512, 256)):
        weights = torch.empty(heads, 8, channels), torch.empty(heads, 8, channels), torch.empty(heads, channels)
        sums, places = torch.empty(batch, 25, channels), torch.empty(channels, dtype=torch.int32)
        for tile in {*selection.gate_tiles(batch, heads, channels, 8)[::3]}:
            selection.select(sums, 196, *weights, keep, places, 8, tile)
    planes.sums(x, norm)
    for count in (1, 400):
        planes.max_pool(x[:1].expand(count, -1, -1, -1), vector, "relu", tiles.Geometry(3, 2, 1))
    index = torch.empty(2, heads, keep, dtype=torch.int32)
    gates, every, arrivals = torch.empty(2, heads, keep), torch.empty(2, heads, 64), torch.empty(2, 64).int()
    selected = selection.Selection(index, gates, every, arrivals)
    for kernel, stride, way, split, before in (
        (3, 1, "packed", 2, None), (3, 2, "gathered", 1, None), (1, 1, "packed", 1, norm), (3, 2, "folded", 4, None),
        (3, 1, "gated", 1, None),
    ):  # fmt: skip
        geometry, tile = tiles.Geometry(kernel, stride, kernel // 2), tiles.Tile(64, 16, 16, way, split=split)
        weight = torch.empty(64, 64, kernel, kernel, dtype=dtype)
        weights = conv.lay_out(weight, heads, torch.arange(64), way == "packed")
        conv.convolve(
            x, selected, weights, vector, keep, 16, geometry, tile, norm=before, activation="relu6",
            by_head=way == "packed", with_sums=True,
        )  # fmt: skip
    stem = modules["stem_conv"]
    padded = stem.pad(torch.empty(2, 3, 32, 32, dtype=dtype), dtype)
    weight = stem.lay_out(torch.empty(64, 3, 7, 7, dtype=dtype))
    stem.convolve(padded, weight, (32, 32), 64, stem.StemTile(64, 64, 0))
    stem.pooled(padded, weight, vector, "relu", (32, 32), 64, stem.StemTile(64, 64, 2))


if __name__ == "__main__":
    main()
