"""Prepared networks of bytes: whatever the files say, it is refused, or the result is that of the integer reference."""

import json
from random import Random
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from dgconv.deploy.run import torch_steps
from dgconv.deploy.run.prepared import PreparedModel
from dgconv.deploy.storage import to_bytes
from dgconv.deploy.weights import from_bytes
from dgconv.errors import UserError
from dgconv.ops import native
from tests.deploy.byte_networks import native_select, random_network
from tests.fuzz import graphs, mutate
from tests.fuzz.graphs import Stored
from tests.fuzz.outcome import Wrong
from tests.fuzz.targets import prepared

FLOAT_STEPS = ("Conv", "Linear", "Elementwise", "LayerNorm", "Resize", "Torch")  # whose rounding may differ

store, restore = graphs.store, graphs.restore


def make(rng: Random) -> Stored:
    stored = None
    while stored is None:
        stored = _valid(rng)
    stored.isa, stored.threads = rng.choice(("", *native.ISAS)), rng.choice((1, 1, 1, 2, 3))
    if rng.random() < 0.65:
        mutate.change(stored, rng)
    return stored


def _valid(rng: Random) -> Stored | None:
    graph, x = random_network(rng)
    try:
        content, weights = to_bytes(PreparedModel(graph))
    except UserError:  # a group that picks nothing, for one
        return None
    return Stored(json.loads(content)["graph"], dict(from_bytes(weights).tensors), tuple(x.shape), rng.randrange(100))


def run(stored: Stored) -> str:
    with patch.object(prepared, "compare", _compare):
        return prepared.run(stored)


def _compare(model: PreparedModel, x: Tensor, result: Any) -> str:
    has_floats = any(type(step).__name__ in FLOAT_STEPS for step in model.graph.steps)
    with patch.object(torch_steps, "select", native_select):
        try:
            expected = torch_steps.run(model.graph, x)
        except Exception as error:
            raise Wrong(f"the reference refuses what was computed: {error!r}") from None
    if has_floats:  # the change made some of it
        return "undecided"
    if not torch.equal(result.nan_to_num(), expected.nan_to_num()):
        raise Wrong(f"the result is {result.flatten()[:6].tolist()}, the reference's {expected.flatten()[:6].tolist()}")
    return "equal"
