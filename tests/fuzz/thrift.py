"""Thrift's compact protocol, in which the notes of Parquet files are written: read to values, and written again."""

import copy
from random import Random
from typing import Any, NamedTuple

from tests.fuzz.values import NUMBERS

STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)


class Field(NamedTuple):
    number: int
    kind: int
    value: Any  # of a struct a list of fields, of a list its kind and its items


def read_struct(data: bytes, place: int = 0) -> tuple[list[Field], int]:
    """Its fields, and where it ends."""
    fields, number = [], 0
    while (head := data[place]) & 15:
        place, kind = place + 1, head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, place = _read(data, place, I16)
        value, place = (None, place) if kind in (TRUE, FALSE) else _read(data, place, kind)
        fields.append(Field(number, kind, value))
    return fields, place + 1


def write_struct(fields: list[Field]) -> bytes:
    parts, last = [], 0
    for field in fields:
        step = field.number - last
        head = bytes([step << 4 | field.kind]) if 0 < step < 16 else bytes([field.kind]) + _write(field.number, I16)
        parts.append(head + (b"" if field.kind in (TRUE, FALSE) else _write(field.value, field.kind)))
        last = field.number
    return b"".join(parts) + bytes([STOP])


def change_struct(fields: list[Field], rng: Random) -> None:
    """One field of it, or of a struct in it."""
    owners = list(_structs(fields))
    owner = rng.choice(owners)
    if not owner:
        return
    index = rng.randrange(len(owner))
    field = owner[index]
    match rng.randrange(8):
        case 0:
            owner.pop(index)
        case 1:
            owner.insert(index, field)
        case 2:
            other = rng.choice([field for fields in owners for field in fields])
            owner[index] = field._replace(kind=other.kind, value=copy.deepcopy(other.value))
        case 3:
            owner[index] = field._replace(number=rng.randrange(20))
        case _ if field.kind in (I16, I32, I64):
            old = field.value
            value = rng.choice((rng.choice(NUMBERS), old + rng.choice((-1, 1, 8)), old * 2, old // 2, -old))
            owner[index] = field._replace(value=value % 2**64 - 2**63 if abs(value) >= 2**63 else value)
        case _ if field.kind == LIST and field.value[1]:
            kind, items = field.value
            items = rng.choice((items[:-1], items * 2, items[::-1], items * 50))
            owner[index] = field._replace(value=(kind, items))
        case _ if field.kind == BINARY:
            owner[index] = field._replace(value=field.value[: rng.randrange(len(field.value) + 1)] * rng.choice((1, 2)))


def _structs(fields: list[Field]) -> Any:
    yield fields
    for field in fields:
        if field.kind == STRUCT:
            yield from _structs(field.value)
        elif field.kind == LIST and field.value[0] == STRUCT:
            for item in field.value[1]:
                yield from _structs(item)


def _read(data: bytes, place: int, kind: int) -> tuple[Any, int]:
    if kind in (I16, I32, I64):
        number, place = _unsigned(data, place)
        return number >> 1 ^ -(number & 1), place
    if kind in (TRUE, FALSE, BYTE):  # of a list
        return data[place], place + 1
    if kind == DOUBLE:
        return data[place : place + 8], place + 8
    if kind == BINARY:
        length, place = _unsigned(data, place)
        return data[place : place + length], place + length
    if kind == STRUCT:
        return read_struct(data, place)
    assert kind in (LIST, SET), kind
    count, inner, place = data[place] >> 4, data[place] & 15, place + 1
    if count == 15:
        count, place = _unsigned(data, place)
    items = []
    for _ in range(count):
        item, place = _read(data, place, inner)
        items.append(item)
    return (inner, items), place


def _write(value: Any, kind: int) -> bytes:
    if kind in (I16, I32, I64):
        return _varint(value << 1 if value >= 0 else (-value << 1) - 1)
    if kind in (TRUE, FALSE, BYTE):
        return bytes([value])
    if kind == DOUBLE:
        return bytes(value)
    if kind == BINARY:
        return _varint(len(value)) + value
    if kind == STRUCT:
        return write_struct(value)
    inner, items = value
    head = bytes([len(items) << 4 | inner]) if len(items) < 15 else bytes([0xF0 | inner]) + _varint(len(items))
    return head + b"".join(_write(item, inner) for item in items)


def _unsigned(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte, place = data[place], place + 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, place


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
