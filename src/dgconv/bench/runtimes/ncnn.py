"""ncnn, which has Winograd's algorithm on x86, by way of TorchScript and pnnx."""

import subprocess
from pathlib import Path

import numpy
import torch
from torch import Tensor

from ...deploy.export.formats import require
from ...errors import UserError
from .record import Runner, Runtime, Source, register_runtime


def convert(source: Source) -> tuple[Path, Path]:
    """The two files of a network for single images: ncnn knows no batches."""
    with torch.no_grad():
        torch.jit.trace(source.model, torch.zeros(1, *source.input_size)).save(source.folder / "network.pt")
    shape = ",".join(map(str, (1, *source.input_size)))
    command = [require("pnnx").EXEC_PATH, "network.pt", f"inputshape=[{shape}]f32", "fp16=0"]
    subprocess.run(command, cwd=source.folder, capture_output=True)  # it tells every pass, and nothing by its status
    files = source.folder / "network.ncnn.param", source.folder / "network.ncnn.bin"
    if not all(file.exists() for file in files):
        raise UserError("pnnx cannot convert the network")
    return files


def load(files: tuple[Path, Path], threads: int, images: Tensor) -> Runner:
    """Image after image, each with all threads."""
    ncnn = require("ncnn")
    net = ncnn.Net()
    net.opt.num_threads = threads
    net.opt.use_vulkan_compute = False
    for storage in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage"):
        setattr(net.opt, storage, False)
    param, weights = map(str, files)
    if net.load_param(param) or net.load_model(weights):
        raise UserError("the network has operations that ncnn lacks")
    inputs = [ncnn.Mat(image.numpy()).clone() for image in images.contiguous()]
    outputs = sorted(net.output_names(), key=lambda name: int(name.removeprefix("out")))

    def run_one(image: object) -> list[Tensor]:
        extractor = net.create_extractor()
        extractor.input("in0", image)
        return [torch.from_numpy(numpy.array(extractor.extract(name)[1])) for name in outputs]

    return lambda: [torch.stack(parts) for parts in zip(*map(run_one, inputs), strict=True)]


register_runtime(Runtime("ncnn", "float32", ("ncnn", "pnnx"), convert, load))
