"""OpenVINO, in float32 and, quantized by NNCF, in int8."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ...deploy.export.formats import require
from ...deploy.precision import Precision
from .record import Runner, Runtime, Source, register_runtime


def quantize(source: Source) -> Path:
    """NNCF's own defaults, which are for speed: weights by output channel, activations as a whole, biases corrected."""
    openvino, nncf = require("openvino"), require("nncf")
    images = [image.numpy() for image in source.calibration.split(1)]
    model = openvino.Core().read_model(source.onnx_file())
    quantized = nncf.quantize(model, nncf.Dataset(images), subset_size=len(images))
    file = source.folder / "int8.xml"
    openvino.save_model(quantized, file, compress_to_fp16=False)
    return file


def load(precision: Precision, file: Path, threads: int, images: Tensor) -> Runner:
    core = require("openvino").Core()
    model = core.read_model(file)
    model.reshape(list(images.shape))
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    if precision == "float32":
        settings["INFERENCE_PRECISION_HINT"] = "f32"  # on some processors it would take bfloat16 by itself
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    array = images.numpy()
    return lambda: [torch.from_numpy(output) for output in request.infer([array], share_inputs=True).values()]


register_runtime(Runtime("OpenVINO", "float32", ("openvino",), Source.onnx_file, partial(load, "float32")))
register_runtime(Runtime("OpenVINO", "int8", ("openvino", "nncf"), quantize, partial(load, "int8")))
