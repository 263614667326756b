"""Values out of JSON or TOML, changed so that they stay values: other numbers, other types, another order."""

import copy
from collections.abc import Callable
from random import Random
from typing import Any

NUMBERS = (
    *(-1, 0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 255, 256, 1000, 1024, 4096, 4097, 10_000),
    *(
        65535,
        65536,
        10**6,
        1 << 20,
        2**24,
        2**30,
        2**31 - 1,
        2**31,
        2**32 - 1,
        2**32,
        2**32 + 1,
        2**40,
        2**62,
        2**63 - 1,
    ),
    *(-2, -3, -8, -(2**31), -(2**31) - 1, -(2**32), -(2**63)),
)
FLOATS = (0.0, -0.0, 0.5, 1.0, -1.0, 2.5, 1e-30, 1e20, 1e38, -1e38, 1e300)
TEXTS = (
    "",
    "x",
    "y",
    "identity",
    "relu",
    "relu6",
    "max",
    "average",
    "bilinear",
    "bicubic",
    "\x1b[31m",
    "\ud800",
    "a" * 20,
)
FILES = ("", "[]", "null", "{}", '{"format": 2}', "[" * 2000, '{"a":' * 2000, "1" * 5000, "\ud800")
Place = tuple[Any, Any]  # a list or dict, and the index or key


def places(value: Any) -> list[Place]:
    """Everything inside."""
    found: list[Place] = []
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += [(value, key), *places(part)]
    return found


def change_value(value: Any, rng: Random) -> Any:
    """The value with something in it changed; now and then another one in its place."""
    found = places(value)
    if not found or rng.random() < 0.01:
        return other_value(value, rng)
    owner, key = rng.choice(found)
    match rng.randrange(10):
        case 0:
            del owner[key]
        case 1:
            other, place = rng.choice(found)
            owner[key] = copy.deepcopy(other[place]) if place in _keys(other) else None
        case 2 if isinstance(owner, dict):
            owner[rng.choice((*TEXTS, *owner))] = owner.pop(key)
        case 3 if isinstance(owner, list):
            owner[key:key] = owner[:100]
        case _:
            owner[key] = other_value(owner[key], rng)
    return value


def other_value(old: Any, rng: Random) -> Any:
    """Rather one of the same type."""
    if type(old) is int and rng.random() < 0.7:
        return rng.choice((rng.choice(NUMBERS), old + rng.choice((-1, 1)), old * 2, -old, old + 2**32))
    if type(old) is float and rng.random() < 0.7:
        return rng.choice((rng.choice(FLOATS), -old, old * 2, 1 - old))
    if type(old) is str and rng.random() < 0.7:
        return rng.choice((rng.choice(TEXTS), old * 2, old[:-1], old.upper()))
    makers: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice(FLOATS),
        lambda: rng.choice(TEXTS),
        lambda: [],
        lambda: {},
        lambda: [rng.choice(NUMBERS) for _ in range(rng.randrange(5))],
        lambda: {rng.choice(TEXTS): rng.choice(NUMBERS)},
        lambda: [copy.deepcopy(old)],
    )
    return rng.choice(makers)()


def _keys(owner: Any) -> Any:
    return owner.keys() if isinstance(owner, dict) else range(len(owner))
