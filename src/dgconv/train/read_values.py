"""Values out of a file, checked key by key against the fields of a dataclass before it is made of them."""

from dataclasses import MISSING, fields
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from ..errors import UserError, unknown_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
T = TypeVar("T", bound="DataclassInstance")


def read_values(target: type[T], values: Any, source: str) -> T:
    """A dataclass from values out of a file, every key and type checked; ``source`` says which file."""
    kinds = get_type_hints(target)
    if not isinstance(values, dict):
        raise UserError(f"{source} must be a table of keys and values, got {values!r}")
    converted = {}
    for key, value in values.items():
        if key not in kinds:
            raise UserError(f"{source}: {unknown_name('key', key, kinds)}")
        try:
            converted[key] = _convert(value, kinds[key])
        except TypeError:
            raise UserError(f"{source}: {key} must be {_describe(kinds[key])}, got {value!r}") from None
    for field in fields(target):
        if field.default is MISSING and field.name not in converted:
            raise UserError(f"{source}: the key {field.name!r} is missing; it must be {_describe(kinds[field.name])}")
    try:
        return target(**converted)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def _convert(value: Any, kind: Any) -> Any:
    """The value as a field of this type holds it; a TypeError where it does not fit."""
    if NoneType in get_args(kind):
        return None if value is None else _convert(value, _without_none(kind))
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        return tuple(_convert(item, get_args(kind)[0]) for item in value)
    if kind is float and type(value) in (int, float):
        return float(value)
    if type(value) is kind:  # and not isinstance: True is no number here
        return value
    raise TypeError


def _describe(kind: Any) -> str:
    if NoneType in get_args(kind):
        return _describe(_without_none(kind))
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if get_origin(kind) is tuple:
        return "a list, each item " + _describe(get_args(kind)[0])
    return KINDS[kind]


def _without_none(kind: Any) -> Any:
    return next(part for part in get_args(kind) if part is not NoneType)
