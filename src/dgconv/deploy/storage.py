"""Prepared models on disk: ``graph.json`` and ``weights.safetensors`` in a folder. No pickle is ever written or read.

Weights are stored as torch has them, since the packed form depends on the CPU: loading packs them again.
"""

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import Inputs
from ..data.inputs import FILE as INPUTS
from ..errors import UserError
from ..files import check_folder, read_whole, write_atomically
from ..runs.tensors import TensorFile
from ..runs.tensors import to_bytes as to_safetensors
from ..values import LONGEST_JSON, load_json
from ..version import __version__
from . import calls, graph
from .calls import NAMES, STORABLE, Together, called, name_of
from .graph import Graph, Torch
from .run.prepared import PreparedModel
from .validate import why_not
from .weights import from_bytes as weights_from_bytes
from .weights import read_weights

GRAPH, WEIGHTS = "graph.json", "weights.safetensors"
FORMAT = 2
NO_NUMBERS = {str(value): value for value in (math.inf, -math.inf, math.nan)}  # floats that JSON has no word for
TYPES = {
    record.__name__: record
    for record in (
        Graph,
        graph.Norm,
        graph.GateSpec,
        graph.BoostSpec,
        graph.Conv,
        graph.Pool,
        graph.GlobalPool,
        graph.Linear,
        graph.Elementwise,
        graph.LayerNorm,
        graph.Resize,
        graph.Pad,
        graph.Slice,
        graph.Concat,
        graph.Torch,
        graph.Bytes,
        *graph.BYTE_STEPS,
        calls.TorchCall,
        calls.Slot,
        calls.Together,
    )
}
CONTAINERS: dict[str, type] = {"tuple": tuple, "list": list, "dict": dict, "ordered dict": OrderedDict}


def save(prepared: PreparedModel, folder: Path | str, *, overwrite: bool = False, inputs: Inputs | None = None) -> None:
    """Write a prepared model; :func:`load` reads it. The files need nothing of the original model's code.

    A model that is in the folder already is replaced only if you say so, with ``overwrite``. ``inputs``, how images
    become its input and what its classes are called, are for ``dgconv predict``.
    """
    if not isinstance(prepared, PreparedModel):
        raise UserError(f"save takes what prepare() returned, got a {type(prepared).__name__}")
    content, weights = to_bytes(prepared)
    folder = Path(folder)
    if not overwrite and any((folder / name).exists() for name in (WEIGHTS, GRAPH)):
        raise UserError(f"{folder} holds a model already; name another folder, or give overwrite=True")
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / INPUTS).unlink(missing_ok=True)  # those of a model that was here
        write_atomically(folder / WEIGHTS, weights)
        write_atomically(folder / GRAPH, content)
        if inputs is not None:
            write_atomically(folder / INPUTS, inputs.to_bytes())
    except OSError as error:
        needed = len(weights) + len(content)
        raise UserError(
            f"{folder} cannot be written: {error.strerror}. Make room for {needed:,} bytes, or name another place"
        ) from error


def is_prepared(folder: Path) -> bool:
    """Whether a folder holds a prepared model, and is no run folder."""
    return (folder / GRAPH).exists() or (folder / WEIGHTS).exists()


def inputs_of(folder: Path) -> Inputs | None:
    """How images become the input of the prepared model in a folder, if it was saved with that."""
    return Inputs.read(folder / INPUTS) if (folder / INPUTS).exists() else None


def load(folder: Path | str) -> PreparedModel:
    """The prepared model of a folder, packed for this machine.

    Any file may be given: one that is damaged, or was made to do harm, is refused with a ``UserError``, here or when
    the model is called with an image that it would need too much memory for.
    """
    folder = Path(folder)
    content = _read(folder / GRAPH)
    try:
        weights = read_weights(folder / WEIGHTS)
    except FileNotFoundError:
        problem = f"{folder / WEIGHTS} is missing: the model was not saved to the end, or the file was moved"
        raise UserError(problem) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / WEIGHTS} is damaged or not a safetensors file: {error}") from None
    return _restore(content, weights, folder)


def to_bytes(prepared: PreparedModel) -> tuple[bytes, bytes]:
    """What the two files hold: the graph and the weights."""
    _check_storable(prepared.graph)
    tensors = _Tensors()
    record = _encode(prepared.graph, "", tensors)
    if problem := why_not(_decode(record, tensors.by_name)):
        raise UserError(f"the model cannot be stored: {problem}. Save the original model, and prepare it after loading")
    content = json.dumps({"dgconv": __version__, "format": FORMAT, "graph": record}).encode()
    return content, to_safetensors(tensors.by_name, {GRAPH: _digest(content)})


def from_bytes(content: bytes, weights: bytes) -> PreparedModel:
    """The model that :func:`to_bytes` was given, as :func:`load` would read it."""
    try:
        file = weights_from_bytes(weights)
    except ValueError as error:
        raise UserError(f"the weights are damaged or not a safetensors file: {error}") from None
    return _restore(content, file, Path())


def _restore(content: bytes, weights: TensorFile, folder: Path) -> PreparedModel:
    if weights.metadata.keys() != {GRAPH} or weights.metadata[GRAPH] != _digest(content):
        raise UserError(f"{folder / WEIGHTS} does not belong to the {GRAPH} beside it; save the model again")
    try:
        record = load_json(content)
        if record["format"] != FORMAT:
            raise UserError(f"{folder / GRAPH} has format {record['format']!r}, not {FORMAT}; save the model again")
        graph = _decode(record["graph"], weights.tensors)
    except UserError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{folder / GRAPH} is damaged or was not written by dgconv.deploy.save: {error!r}") from None
    if problem := why_not(graph):
        raise UserError(f"{folder / GRAPH} is damaged: {problem}. Save the model again")
    return PreparedModel(graph, is_foreign=True)


def _check_storable(prepared: Graph) -> None:
    bad = []
    for step in prepared.steps:
        function = called(step.function) if isinstance(step, Torch) else None
        if isinstance(function, Together):
            _check_plain(function.result)
        elif function is not None and function not in NAMES:
            bad.append(f"{step.label} ({name_of(function)})")
    if bad:
        raise UserError(
            f"{len(bad)} {'step is' if len(bad) == 1 else 'steps are'} left to Python code, which a file cannot hold: "
            f"{', '.join(bad[:5])}{' ...' if len(bad) > 5 else ''}. "
            "Give `prepare` an `example` if it looks at sizes; else save the original, and prepare it after loading"
        )


def _check_plain(result: Any) -> None:
    """What a model returns must be made of what the file has a word for; the leaves are numbers."""
    if isinstance(result, int):
        return
    if type(result) not in CONTAINERS.values():
        raise UserError(
            f"the model returns a {type(result).__name__}, which a file cannot hold; it holds tuples, lists and dicts"
        )
    if isinstance(result, dict) and (keys := [key for key in result if not isinstance(key, str)]):
        raise UserError(f"the model returns a dict with the key {keys[0]!r}; a file holds dicts with strings for keys")
    for part in result.values() if isinstance(result, dict) else result:
        _check_plain(part)


class _Tensors:
    """The tensors of a graph, each once: a layer that is called twice is two steps with the same weights."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def name(self, tensor: Tensor, path: str) -> str:
        """Names a tensor found at a place in the graph after the first place where it was found."""
        same = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        name = self._names.setdefault(same, path)
        if name == path:  # a copy, for other views of its memory may be stored too, and safetensors refuses those
            self.by_name[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
        return name


def _encode(value: Any, path: str, tensors: _Tensors) -> Any:
    """Encodes a value as JSON; each tensor goes to ``tensors`` and leaves its name."""
    if isinstance(value, Tensor):
        return {"tensor": tensors.name(value, path)}
    if is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return {"type": type(value).__name__} | _encode_items(parts, path, tensors)
    if isinstance(value, dict):
        kind = "ordered dict" if isinstance(value, OrderedDict) else "dict"
        return {kind: _encode_items(value, path, tensors)}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encode(item, f"{path}.{index}", tensors) for index, item in enumerate(value)]}
    if isinstance(value, slice):
        return {"slice": _encode([value.start, value.stop, value.step], path, tensors)}
    if callable(value) and value in NAMES:
        return {"function": NAMES[value]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(f"{path} holds a {type(value).__name__}, which a file cannot hold")


def _encode_items(items: dict[str, Any], path: str, tensors: _Tensors) -> dict[str, Any]:
    return {key: _encode(item, f"{path}.{key}".lstrip("."), tensors) for key, item in items.items()}


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        raise ValueError("a list that does not say so")
    if not isinstance(value, dict):
        return value
    if "type" in value:
        parts = {key: _decode(item, tensors) for key, item in value.items() if key != "type"}
        return TYPES[value["type"]](**parts)
    ((kind, content),) = value.items()
    decoders: dict[str, Callable[[Any], Any]] = {
        "tensor": lambda name: tensors[name],
        "function": lambda name: STORABLE[name],
        "float": lambda name: NO_NUMBERS[name],
        "dict": lambda items: {key: _decode(item, tensors) for key, item in items.items()},
        "ordered dict": lambda items: OrderedDict((key, _decode(item, tensors)) for key, item in items.items()),
        "list": lambda items: [_decode(item, tensors) for item in items],
        "tuple": lambda items: tuple(_decode(item, tensors) for item in items),
        "slice": lambda items: slice(*_decode(items, tensors)),
    }
    return decoders[kind](content)


def _digest(content: bytes) -> str:
    """Tells whether graph and weights were written together."""
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return read_whole(path, LONGEST_JSON)
    except FileNotFoundError:
        problem = f"{path.parent} is no prepared model: it has no {path.name}. dgconv.deploy.save writes one"
        raise UserError(problem) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
