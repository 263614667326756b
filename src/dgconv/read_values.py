"""Values out of a file, checked key by key before anything is made of them: people edit files by hand."""

import json
import math
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from .errors import UserError, unknown_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
TABLE = "a table of keys and values"
LARGEST = 2**63 - 1
LONGEST = 80  # characters of a wrong value that are shown
T = TypeVar("T", bound="DataclassInstance")


def load_json(text: str, nan: float | None = math.nan) -> Any:
    """A ``ValueError`` where it is no JSON, or has a number too large for a computer's. ``nan`` stands for NaN."""
    try:
        return json.loads(text, parse_int=_whole_number, parse_float=_number, parse_constant=lambda name: nan)
    except RecursionError:
        raise ValueError("too many brackets within brackets") from None


def _whole_number(digits: str) -> int:
    number = int(digits)
    if abs(number) > LARGEST:
        raise ValueError(f"the number {_short(digits)} is too large")
    return number


def _number(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"the number {_short(digits)} is too large")
    return number


def read_values(target: type[T], values: Any, source: str, *, ignore_unknown: bool = False) -> T:
    """A dataclass from values out of a file, every key and type checked; ``source`` says which file."""
    kinds = get_type_hints(target)
    if not isinstance(values, dict):
        raise UserError(f"{source} must be {TABLE}, got {_short(values)}")
    converted = {}
    for key, value in values.items():
        if key in kinds:
            converted[key] = _convert(value, kinds[key], f"{source}: {key}")
        elif not ignore_unknown:
            raise UserError(f"{source}: {unknown_name('key', key, kinds)}")
    for field in fields(target):
        if field.default is MISSING and field.name not in converted:
            raise _missing(source, field.name, kinds[field.name])
    try:
        return target(**converted)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def check_table(kind: Any, values: Any, source: str) -> None:
    """That values are as a ``TypedDict`` has them. Keys it does not name are free, and null stands for none."""
    _check_keys(kind, values, source, f"{source}: ")


def check_option(value: Any, kind: Any, name: str) -> None:
    """That one value is of a kind; what ``name`` begins the message with."""
    _convert(value, kind, name)


def _check_keys(kind: Any, values: Any, name: str, before_keys: str) -> None:
    if not isinstance(values, dict):
        raise UserError(f"{name} must be {TABLE}, got {_short(values)}")
    for key, wanted in get_type_hints(kind).items():
        if values.get(key) is not None:
            _convert(values[key], wanted, f"{before_keys}{key}")
        elif key in kind.__required_keys__:
            raise _missing(before_keys.removesuffix(": ").removesuffix("."), key, wanted)


def _missing(source: str, key: str, kind: Any) -> UserError:
    return UserError(f"{source}: the key {key!r} is missing; it must be {_describe(kind)}")


def _convert(value: Any, kind: Any, name: str) -> Any:
    """The value as a field of this type holds it; an error that begins with its name where it does not fit."""
    if is_typeddict(kind):
        _check_keys(kind, value, name, f"{name}.")
        return value
    if get_origin(kind) is dict and isinstance(value, dict):
        return {key: _convert(item, get_args(kind)[1], f"{name}.{key}") for key, item in value.items()}
    try:
        return _fit(value, kind)
    except TypeError:
        raise UserError(f"{name} must be {_describe(kind)}, got {_short(value)}") from None


def _fit(value: Any, kind: Any) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _fit_one_of(value, parts)
    if origin is Literal and value in parts:
        return value
    if origin is tuple and isinstance(value, list | tuple):
        kinds = [parts[0]] * len(value) if parts[-1] is ... else parts
        if len(kinds) != len(value):
            raise TypeError
        return tuple(_fit(item, item_kind) for item, item_kind in zip(value, kinds, strict=True))
    if origin is list and isinstance(value, list):
        return [_fit(item, parts[0]) for item in value]
    if origin is dict and isinstance(value, dict):
        return {key: _fit(item, parts[1]) for key, item in value.items()}
    if kind is float and type(value) in (int, float):
        return float(value)
    if type(value) is kind or not _is_known(kind):  # and not isinstance: True is no number here
        return value
    raise TypeError


def _fit_one_of(value: Any, kinds: tuple[Any, ...]) -> Any:
    for kind in kinds:
        try:
            return _fit(value, kind)
        except TypeError:
            continue
    raise TypeError


def _is_known(kind: Any) -> bool:
    """Whether it is one that is checked; of a layer or backbone of the user's, an option may be of any."""
    return kind in KINDS or kind is NoneType or get_origin(kind) in (Literal, tuple, list, dict)


def _describe(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(_describe(part) for part in parts if part is not NoneType)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin is tuple and parts[-1] is not ...:
        return f"a list of {len(parts)}, each item {_describe(parts[0])}"
    if origin in (tuple, list):
        return "a list, each item " + _describe(parts[0])
    if origin is dict or is_typeddict(kind):
        return TABLE
    return KINDS.get(kind, "something else")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."
