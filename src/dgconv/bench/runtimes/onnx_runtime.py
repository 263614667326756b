"""ONNX Runtime, in float32 and, by its own static quantization, in int8."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from ...deploy.export.formats import require
from .record import Runner, Runtime, Source, register_runtime


def quantize(source: Source) -> Path:
    """As its documentation advises for x86 with VNNI: QDQ, unsigned activations, signed weights by output channel."""
    tools = require("onnxruntime.quantization")
    folded, file = source.folder / "folded.onnx", source.folder / "int8.onnx"
    require("onnxruntime.quantization.shape_inference").quant_pre_process(str(source.onnx_file()), str(folded))
    reader = _reader(source.calibration)
    tools.quantize_static(
        str(folded),
        str(file),
        reader,
        quant_format=tools.QuantFormat.QDQ,
        per_channel=True,
        activation_type=tools.QuantType.QUInt8,
        weight_type=tools.QuantType.QInt8,
    )
    return file


def _reader(images: Tensor) -> object:
    class Reader(require("onnxruntime.quantization").CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.inputs: Iterator[dict[str, object]] = iter([{"images": image.numpy()} for image in images.split(1)])

        def get_next(self) -> dict[str, object] | None:
            return next(self.inputs, None)

    return Reader()


def load(file: Path, threads: int, images: Tensor) -> Runner:
    runtime = require("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    inputs = {"images": images.numpy()}
    return lambda: [torch.from_numpy(output) for output in session.run(None, inputs)]


register_runtime(Runtime("ONNX Runtime", "float32", ("onnxruntime",), Source.onnx_file, load))
register_runtime(Runtime("ONNX Runtime", "int8", ("onnxruntime",), quantize, load))
