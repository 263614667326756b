"""Stored networks as plain values: the JSON of ``graph.json`` and named tensors, easy to write, change and put down."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dgconv.deploy.storage import FORMAT, GRAPH
from dgconv.runs.tensors import to_bytes

Json = dict[str, Any]


@dataclass
class Stored:
    """A network and the image it is called with. A graph may also be any text."""

    graph: Json | str
    tensors: dict[str, Tensor]
    shape: tuple[int, ...]
    seed: int = 0  # of the image
    threads: int = 1
    isa: str = ""  # the best
    flip: tuple[int, int] | None = None  # a file, and a bit of it that is wrong

    def files(self) -> list[bytes]:
        """graph.json and weights.safetensors, whose checksums are right but for the bit."""
        record = {"dgconv": "0", "format": FORMAT, "graph": self.graph}
        content = (self.graph if isinstance(self.graph, str) else json.dumps(record)).encode(errors="surrogatepass")
        files = [content, to_bytes(self.tensors, {GRAPH: hashlib.sha256(content).hexdigest()})]
        if self.flip is not None:
            which, bit = self.flip
            damaged = bytearray(files[which])
            if damaged:
                damaged[bit // 8 % len(damaged)] ^= 1 << bit % 8
            files[which] = bytes(damaged)
        return files

    def image(self) -> Tensor:
        """Small whole numbers: with such weights, most of what is computed is exact."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(-3, 4, self.shape, generator=generator).float()


def tensor(name: str) -> Json:
    return {"tensor": name}


def pair(first: Any, second: Any) -> Json:
    return {"tuple": [first, second]}


def listed(*items: Any) -> Json:
    return {"list": [*items]}


def graph(steps: list[Json], given: str = "x", result: str = "y") -> Json:
    return {"type": "Graph", "input": given, "output": result, "steps": listed(*steps)}


def conv(given: str, result: str, weight: str, **fields: Any) -> Json:
    return {"type": "Conv", "input": given, "output": result, "weight": tensor(weight), **fields}


def norm(scale: str, shift: str, activation: str = "identity") -> Json:
    return {"type": "Norm", "scale": tensor(scale), "shift": tensor(shift), "activation": activation}


def gate(weight1: str, weight2: str, bias: str, **fields: Any) -> Json:
    return {
        "type": "GateSpec",
        "weight1": tensor(weight1),
        "weight2": tensor(weight2),
        "bias": tensor(bias),
        **fields,
    }


def boost(weight: str, bias: str, shift: str, keep: int) -> Json:
    parts = {"weight": tensor(weight), "bias": tensor(bias), "shift": tensor(shift)}
    return {"type": "BoostSpec", **parts, "keep": keep}


def slot(index: int) -> Json:
    return {"type": "Slot", "index": index}


def call(inputs: list[str], result: str, function: str, *args: Any, **kwargs: Any) -> Json:
    """A step that is left to torch."""
    made = {
        "type": "TorchCall",
        "function": {"function": function},
        "args": {"tuple": [*args]},
        "kwargs": {"dict": kwargs},
    }
    return {"type": "Torch", "inputs": listed(*inputs), "output": result, "reason": "r", "function": made}


def store(stored: Stored) -> bytes:
    """As one JSON text, tensors as their bytes in hexadecimal: for the corpus, which is to be read by people too."""
    tensors = {
        name: {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "hex": _bytes(value).hex()}
        for name, value in stored.tensors.items()
    }
    return json.dumps({**vars(stored), "tensors": tensors}, indent=1).encode()


def restore(data: bytes) -> Stored:
    record = json.loads(data)
    tensors = {}
    for name, value in record["tensors"].items():
        content, dtype = bytearray.fromhex(value["hex"]), getattr(torch, value["dtype"])
        flat = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
        tensors[name] = flat.view(value["shape"])
    flip = record["flip"] and tuple(record["flip"])
    return Stored(**record | {"tensors": tensors, "shape": tuple(record["shape"]), "flip": flip})


def _bytes(value: Tensor) -> bytes:
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
