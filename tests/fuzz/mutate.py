"""Changes of a stored network that know what is in it: numbers, names, types, what stands together, tensors, sizes."""

import copy
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from dgconv.deploy.calls import STORABLE
from tests.fuzz.graphs import Stored, call, listed, slot
from tests.fuzz.networks import valid
from tests.fuzz.values import FILES, FLOATS, NUMBERS, TEXTS, Place, places


def change(stored: Stored, rng: Random) -> None:
    """One change or a few."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if isinstance(stored.graph, str):
            return
        rng.choices(*CHANGES)[0](stored, rng)


def _some(stored: Stored, rng: Random, fits: Callable[[Any, Any], bool]) -> Place | None:
    found = [(owner, key) for owner, key in places(stored.graph) if fits(key, owner[key])]
    return rng.choice(found) if found else None


def _number(stored: Stored, rng: Random) -> None:
    if place := _some(stored, rng, lambda key, value: type(value) is int):
        owner, key = place
        old = owner[key]
        owner[key] = rng.choice((rng.choice(NUMBERS), old + rng.choice((-2, -1, 1, 2)), old * 2, old + 2**32, -old))


def _name(stored: Stored, rng: Random) -> None:
    names = ("input", "output", "residual", "other", "tensor", "activation", "kind", "function")
    if place := _some(stored, rng, lambda key, value: type(value) is str and (key in names or type(key) is int)):
        owner, key = place
        if key == "function":
            owner[key] = rng.choice(list(STORABLE))
            return
        of_its_kind = [o[k] for o, k in places(stored.graph) if type(o[k]) is str and (k == key or rng.random() < 0.1)]
        owner[key] = (
            rng.choice((rng.choice(of_its_kind), rng.choice(TEXTS))) if rng.random() < 0.9 else rng.choice(TEXTS)
        )


def _value(stored: Stored, rng: Random) -> None:
    """Any value by one of another type."""
    if place := _some(stored, rng, lambda key, value: True):
        owner, key = place
        makers: tuple[Callable[[], Any], ...] = (
            lambda: None,
            lambda: rng.random() < 0.5,
            lambda: rng.choice(NUMBERS),
            lambda: rng.choice(FLOATS),
            lambda: rng.choice(TEXTS),
            lambda: [],
            lambda: {},
            lambda: {"tuple": [1, 1]},
            lambda: {"list": []},
            lambda: {"tensor": rng.choice([*stored.tensors, "missing"])},
            lambda: {"float": rng.choice(("inf", "nan", "-inf", "1"))},
            lambda: {"slice": {"list": [rng.choice((None, 0, 1, -1)), None, rng.choice((None, 1, 2))]}},
            lambda: slot(rng.choice((0, 1, -1, 7))),
            lambda: {"dict": {"out": slot(0)}},
        )
        owner[key] = rng.choice(makers)()


def _field(stored: Stored, rng: Random) -> None:
    """A field that is there or not: taken away, or taken from another step."""
    owners = [owner for owner, key in places(stored.graph) if key == "type" and owner]
    if not owners:
        return
    owner, other = rng.choice(owners), rng.choice(owners)
    key = rng.choice(list(other))
    if rng.random() < 0.5:
        owner.pop(rng.choice(list(owner)), None)
    elif key != "type" or rng.random() < 0.3:
        owner[key] = copy.deepcopy(other[key])


def _combine(stored: Stored, rng: Random) -> None:
    """Something that sets one convolution apart, in another one that may be made for something else."""
    donor = valid(rng)
    assert isinstance(donor.graph, dict)
    donors = _convs(donor.graph)
    convs = _convs(stored.graph)
    if not convs or not donors:
        return
    step, other = rng.choice(convs), rng.choice(donors)
    for key in rng.sample(
        ("gate", "picks", "boost", "before", "expansion", "groups", "interleaved", "residual", "dilation", "stride"), 3
    ):
        if key in other:
            step[key] = copy.deepcopy(other[key])
    for name, value in donor.tensors.items():
        stored.tensors.setdefault(name, value)
    if "expansion" in step and isinstance(step["expansion"], dict) and rng.random() < 0.7:
        step["expansion"]["input"] = step.get("input")


def _convs(graph: Any) -> list[Any]:
    return [owner for owner, key in places(graph) if key == "type" and owner[key] == "Conv"]


def _steps(stored: Stored, rng: Random) -> None:
    """The list of steps: one more, one less, another order."""
    assert isinstance(stored.graph, dict)
    steps = stored.graph.get("steps")
    items = steps.get("list") if isinstance(steps, dict) else None
    if not isinstance(items, list) or not items:
        return
    match rng.randrange(4):
        case 0:
            items.insert(rng.randrange(len(items) + 1), copy.deepcopy(rng.choice(items)))
        case 1:
            items.pop(rng.randrange(len(items)))
        case 2:
            rng.shuffle(items)
        case 3:
            last = next((step.get("output") for step in items[::-1] if isinstance(step, dict)), "x")
            items.append(_call(rng, str(last), "z"))
            stored.graph["output"] = "z"


def _call(rng: Random, given: str, result: str) -> Any:
    """Any function, with arguments that it may or may not take."""
    arguments: tuple[Callable[[], Any], ...] = (
        lambda: slot(0),
        lambda: rng.choice(NUMBERS),
        lambda: rng.randint(-2, 6),
        lambda: rng.choice(FLOATS),
        lambda: {"tuple": [rng.randint(-2, 9) for _ in range(rng.randint(0, 5))]},
        lambda: listed(*(rng.choice(NUMBERS) for _ in range(rng.randint(0, 5)))),
        lambda: listed(*(slot(0) for _ in range(rng.randint(0, 5)))),
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.choice(("bilinear", "bicubic", "nearest", "reflect", "constant", "circular", "area")),
        lambda: {"slice": {"list": [None, rng.randint(-3, 5), None]}},
    )
    keywords = (
        "dim",
        "size",
        "scale_factor",
        "mode",
        "out",
        "inplace",
        "alpha",
        "keepdim",
        "antialias",
        "eps",
        "dtype",
    )
    positional = [rng.choice(arguments)() for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 6)))]
    named = {name: rng.choice(arguments)() for name in keywords if rng.random() < 0.05}
    return call([given], result, rng.choice(list(STORABLE)), slot(0), *positional, **named)


def _tensor(stored: Stored, rng: Random) -> None:
    if not stored.tensors:
        return
    name = rng.choice(list(stored.tensors))
    stored.tensors[name] = change_tensor(stored.tensors[name], rng)


def change_tensor(value: Tensor, rng: Random) -> Tensor:
    """Another shape, another type, other numbers."""
    return rng.choice(TENSOR_CHANGES)(value, rng)


def _cut(value: Tensor, rng: Random) -> Tensor:
    if not value.dim():
        return value
    axis = rng.randrange(value.dim())
    return value.narrow(axis, 0, rng.randint(0, value.shape[axis])).contiguous()


def _grow(value: Tensor, rng: Random) -> Tensor:
    if not value.dim() or value.numel() > 50_000:
        return value
    return torch.cat([value, value], rng.randrange(value.dim()))


def _swap(value: Tensor, rng: Random) -> Tensor:
    if value.dim() < 2:
        return value
    first, second = rng.sample(range(value.dim()), 2)
    return value.transpose(first, second).contiguous()


def _fill(value: Tensor, rng: Random) -> Tensor:
    value = value.clone()
    number = rng.choice((0.0, 1.0, float("nan"), float("inf"), -float("inf"), 1e38, 1e-40))
    if value.is_floating_point() and value.numel():
        value.view(-1)[rng.randrange(value.numel()) : rng.randrange(value.numel()) + 1] = number
    return value


TYPES = (torch.int64, torch.bool, torch.float64, torch.uint8, torch.float16, torch.int8)
TENSOR_CHANGES: tuple[Callable[[Tensor, Random], Tensor], ...] = (
    _cut,
    _grow,
    _swap,
    _fill,
    lambda value, rng: value.unsqueeze(rng.randrange(value.dim() + 1)),
    lambda value, rng: value.reshape(-1),
    lambda value, rng: value.nan_to_num().clamp(-100, 100).to(rng.choice(TYPES)),
    lambda value, rng: torch.zeros([rng.randrange(4) for _ in range(rng.randrange(6))]),
)


def _image(stored: Stored, rng: Random) -> None:
    shape = list(stored.shape)
    match rng.randrange(6):
        case 0:
            shape[rng.randrange(len(shape))] = rng.choice((0, 1, 2, 3, 5, 8, 16, 33))
        case 1:
            shape.pop(rng.randrange(len(shape)))
        case 2:
            shape.insert(rng.randrange(len(shape) + 1), rng.choice((1, 2)))
        case 3:
            shape = shape[:2]
        case _:
            shape[-2:] = [rng.choice((1, 2, 4, 7, 12, 19, 31, 50)) for _ in shape[-2:]]
    stored.shape = tuple(shape)


def _bit(stored: Stored, rng: Random) -> None:
    stored.flip = rng.randrange(2), rng.getrandbits(40)


def _text(stored: Stored, rng: Random) -> None:
    """The file itself: no graph at all."""
    stored.graph = rng.choice(FILES)


CHANGES = (
    (_number, _name, _value, _field, _combine, _steps, _tensor, _image, _bit, _text),
    (30, 18, 8, 10, 14, 14, 14, 8, 3, 0.5),
)
