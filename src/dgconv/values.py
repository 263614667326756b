"""Values out of a file, checked key by key before anything is made of them: people edit files by hand."""

import json
import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import MISSING, fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from .errors import UserError, unknown_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
TABLE = "a table of keys and values"
LARGEST = 2**63 - 1
MOST_DIGITS = 400  # of a number; what is longer takes long to read, and is none that fits
DEEPEST = 50  # brackets within brackets
LONGEST_JSON = 16 * 2**20  # characters, which may become twenty times as many bytes of values
LONGEST_TOML = 2**16
MOST_DOTS = 500  # on a line of TOML; each in a key is a table, through which every line below goes
LONGEST = 80  # characters of a wrong value that are shown
MOST_COUNT = 10**9  # more is a slip, and torch takes no more than 64 bits
MOST_SIZE = 1_000_000  # of channels, groups or layers
MOST_WEIGHT = 1e30  # float32 ends soon after
T = TypeVar("T", bound="DataclassInstance")


class Allowed(NamedTuple):
    """What a number may be, in code and in words."""

    fits: Callable[[Any], bool]
    words: str
    hint: str = ""

    def check(self, name: str, value: Any) -> None:
        """Refuse a value of the option or argument of this name."""
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not is_number or not self.fits(value):
            raise UserError(f"`{name}` must be {self.words}, got {_short(value)}{self.hint}")


def whole(least: int, most: int = MOST_COUNT, hint: str = "") -> Allowed:
    words = f"a whole number from {least} to {most}"
    return Allowed(lambda value: isinstance(value, Integral) and least <= int(value) <= most, words, hint)


COUNT = whole(1)
SIZE = whole(1, MOST_SIZE)
FACTOR = Allowed(lambda value: 0 <= value <= MOST_WEIGHT, f"a number from 0 to {MOST_WEIGHT:g}")
POSITIVE = Allowed(lambda value: 0 < value <= MOST_WEIGHT, f"above 0 and up to {MOST_WEIGHT:g}")
NUMBER = Allowed(lambda value: abs(value) <= MOST_WEIGHT, "a finite number")
BELOW_ONE = Allowed(lambda value: 0 <= value < 1, "from 0 to below 1")
BETWEEN = Allowed(lambda value: 0 < value < 1, "between 0 and 1")
SHARE = Allowed(lambda value: 0 < value <= 1, "above 0 and up to 1")


def load_json(text: str | bytes, nan: float | None = math.nan) -> Any:
    """What JSON out of a file says. ``nan`` stands for NaN.

    A ``ValueError`` where it is none, where a number does not fit a computer's, and where something is nested so deep,
    or is so long, that it is no file of ours: whoever reads values, compares or prints them may take that for granted.
    """
    text = text.decode() if isinstance(text, bytes) else text
    _refuse_length(text, LONGEST_JSON)
    if text.count("[") + text.count("{") > DEEPEST:
        _refuse_depth(text)
    values = json.loads(text, parse_int=_whole_number, parse_float=_number, parse_constant=lambda name: nan)
    if "\\u" in text:
        json.dumps(values, ensure_ascii=False).encode()  # fails on half a character, which nobody could print
    return values


def load_toml(text: str | bytes) -> dict[str, Any]:
    """What TOML out of a file says; a ``ValueError`` as from :func:`load_json`."""
    text = text.decode() if isinstance(text, bytes) else text
    _refuse_length(text, LONGEST_TOML)
    if any(line.count(".") > MOST_DOTS for line in text.split("\n")):
        raise ValueError(f"a line has more than {MOST_DOTS} dots")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"brackets are nested deeper than {DEEPEST}") from None
    _refuse_odd(values, DEEPEST)
    return values


def _refuse_length(text: str, most: int) -> None:
    if len(text) > most:
        raise ValueError(f"it has {len(text):,} characters; at most {most:,} are read")


def _refuse_depth(text: str) -> None:
    """Counts brackets outside of strings, which costs no recursion, unlike to parse them."""
    depth = 0
    for found in re.finditer(r'"(?:[^"\\]|\\.)*+"?|[][{}]', text, re.DOTALL):
        bracket = found[0][0]
        depth += (bracket in "[{") - (bracket in "]}")
        if depth > DEEPEST:
            raise ValueError(f"brackets are nested deeper than {DEEPEST}")


def _refuse_odd(value: Any, deepest: int) -> None:
    """What JSON cannot hold either: large numbers, and tables within tables without end."""
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError("a number is too large")
    if isinstance(value, dict | list):
        if not deepest:
            raise ValueError(f"tables are nested deeper than {DEEPEST}")
        for item in value.values() if isinstance(value, dict) else value:
            _refuse_odd(item, deepest - 1)


def _whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS or abs(number := int(digits)) > LARGEST:
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
    """Checks that values are as a ``TypedDict`` has them. Keys it does not name are free, and null stands for none."""
    _check_keys(kind, values, source, f"{source}: ")


def check_option(value: Any, kind: Any, name: str) -> None:
    """Checks that one value is of a kind; ``name`` is what the message begins with."""
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
    text = repr(list(value) if isinstance(value, tuple) else value)  # as a file has it, and as it is described
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."
