"""Prepared networks: whatever the two files say, it is refused, or the result is the one that torch computes."""

import os
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from dgconv.deploy.graph import Conv, Graph, Step
from dgconv.deploy.run import torch_steps
from dgconv.deploy.run.budget import VARIABLE
from dgconv.deploy.run.prepared import PreparedModel
from dgconv.deploy.storage import from_bytes
from dgconv.errors import UserError
from dgconv.ops import native
from tests.fuzz import graphs, mutate, networks
from tests.fuzz.graphs import Stored
from tests.fuzz.outcome import Wrong

os.environ.setdefault(VARIABLE, "200M")  # of the 1 GiB that an input may take, torch needs a part for itself
LARGEST = 1e12  # what is larger is on the way out of float32
ISAS = ("", "", "avx2", "portable")

store, restore = graphs.store, graphs.restore


def make(rng: Random) -> Stored:
    stored = networks.valid(rng) if rng.random() < 0.7 else restore(rng.choice(networks.real()).encode())
    stored.isa, stored.threads = rng.choice(ISAS), rng.choice((1, 1, 1, 2, 3))
    if rng.random() < 0.65:
        mutate.change(stored, rng)
    return stored


def run(stored: Stored) -> str:
    if native.available() and not native.library().dgconv_select_isa(stored.isa.encode()):
        native.library().dgconv_select_isa(b"")
    torch.set_num_threads(stored.threads)
    try:
        model = from_bytes(*stored.files())
        if stored.flip is not None:
            raise Wrong(f"bit {stored.flip} is wrong, and nobody said so")
        x = stored.image()
        given = x.clone()
        results = [model(x), model(x)]
    finally:
        torch.set_num_threads(1)
    if not torch.equal(x, given):
        raise Wrong("the image was changed")
    if not _are_same(results[0], results[1], torch.equal):
        raise Wrong("two calls gave two results")
    return compare(model, x, results[0])


def compare(model: PreparedModel, x: Tensor, result: Any) -> str:
    """With what torch computes, step by step."""
    try:
        expected, values = _by_torch(model.graph, x)
    except Exception as error:
        raise Wrong(f"torch refuses what was computed: {error!r}") from None
    largest = float(torch.stack([value.abs().max() for value in values if value.numel()] or [torch.zeros(())]).max())
    if _are_same(result, expected, lambda one, other: _are_close(one, other, largest)):
        return "equal"
    if not largest < LARGEST:  # nor NaN: by Winograd's method it spreads further
        return "undecided"
    exact, values = _by_torch(_unclipped_too(_in_double(model.graph)), x.double())
    largest = max(largest, float(torch.stack([value.abs().max() for value in values if value.numel()]).max()))
    if not largest < LARGEST:  # which an activation may hide
        return "undecided"
    if _are_same(result, exact, lambda one, other: _are_close(one, other.to(one.dtype), largest)):
        return "equal"
    if not _are_same(expected, exact, lambda one, other: _are_close(one, other.to(one.dtype), largest)):
        return "undecided"  # torch does not come closer to it in float32
    if any(_is_a_tie(step, values) for step, values in _gated(model.graph, x)):
        return "undecided"
    raise Wrong(f"the result is {_shown(result)}, and torch's is {_shown(expected)}")


def _by_torch(graph: Graph, x: Tensor) -> tuple[Any, list[Tensor]]:
    values: dict[str, Any] = {graph.input: x}
    for step in graph.steps:
        values[step.output] = torch_steps.run_step(step, values)
    floats = [value for value in values.values() if isinstance(value, Tensor) and value.is_floating_point()]
    return values[graph.output], floats


def _unclipped_too(graph: Graph) -> Graph:
    """Each convolution twice, first without its activation, so that what it rounds by is not hidden by that."""
    steps: list[Step] = []
    for step in graph.steps:
        if isinstance(step, Conv):
            steps.append(replace(step, output=f"unclipped {step.output}", activation="identity"))
        steps.append(step)
    return replace(graph, steps=steps)


def _are_close(one: Tensor, other: Tensor, largest: float) -> bool:
    if not one.is_floating_point() or not one.numel():
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4 * max(1.0, float(other.abs().max()), 1e-2 * largest))


def _are_same(one: Any, other: Any, are_close: Any) -> bool:
    if isinstance(one, Tensor):
        same_kind = isinstance(other, Tensor) and one.shape == other.shape
        return same_kind and (are_close(one, other) or (bool(one.isnan().any()) and _same_bits(one, other)))
    if isinstance(one, dict):
        return (
            type(one) is type(other)
            and one.keys() == other.keys()
            and all(_are_same(part, other[key], are_close) for key, part in one.items())
        )
    if isinstance(one, tuple | list):
        return (
            isinstance(other, tuple | list)
            and len(one) == len(other)
            and all(_are_same(part, other[index], are_close) for index, part in enumerate(one))
        )
    return one == other or (one != one and other != other)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return (
        one.dtype == other.dtype
        and torch.equal(one.isnan(), other.isnan())
        and torch.equal(one.nan_to_num(), other.nan_to_num())
    )


def _in_double(record: Any) -> Any:
    """The same graph, its tensors of twice the length."""
    if isinstance(record, Tensor):
        return record.double() if record.dtype == torch.float32 else record
    if isinstance(record, list):
        return [_in_double(item) for item in record]
    if isinstance(record, tuple):
        return tuple(_in_double(item) for item in record)
    if isinstance(record, dict):
        return {key: _in_double(item) for key, item in record.items()}
    if hasattr(record, "__dataclass_fields__"):
        parts = {name: _in_double(getattr(record, name)) for name in record.__dataclass_fields__}
        return type(record)(**parts)
    return record


def _gated(graph: Graph, x: Tensor) -> Iterator[tuple[Conv, Tensor]]:
    """Convolutions that choose, and what they choose by: what they read, after the norm."""
    values: dict[str, Any] = {graph.input: x}
    for step in graph.steps:
        if isinstance(step, Conv) and (step.gate or step.boost):
            yield step, torch_steps.normalize(values[step.input], step.before)
        values[step.output] = torch_steps.run_step(step, values)


def _is_a_tie(step: Conv, x: Tensor) -> bool:
    """Whether a rounding error could make it choose others."""
    if step.gate is not None:
        saliency, kept = torch_steps.select(step.gate, x.mean((2, 3)))
        if not saliency.isfinite().all():  # of infinite weights: units that are zero are left out
            return True
        if step.gate.threshold is not None:
            distance = (saliency.abs() - step.gate.threshold).abs()
            return bool((distance <= 1e-4 * (1 + saliency.abs().max())).any())
    else:
        assert step.boost is not None
        saliency = torch.relu(torch.nn.functional.linear(x.abs().mean((2, 3)), step.boost.weight, step.boost.bias))
        kept = torch_steps._greatest(saliency, step.boost.keep)
    least = saliency.where(kept, torch.inf).amin(-1)
    most = saliency.where(~kept, -torch.inf).amax(-1)
    return bool((least - most <= 1e-4 * (1 + saliency.abs().max())).any())


def _shown(result: Any) -> str:
    text = f"{tuple(result.shape)} {result.flatten()[:6].tolist()}" if isinstance(result, Tensor) else repr(result)
    return text[:300]


__all__ = ["UserError", "make", "restore", "run", "store"]
