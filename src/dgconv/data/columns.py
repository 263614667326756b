"""Which columns of a Parquet file hold the images and the labels, by the hub's own notes in the file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import UserError
from ..values import load_json

PREFERRED = ("label", "fine_label")


@dataclass(frozen=True)
class Columns:
    """The names of two columns, and those of the classes (none if the file does not say)."""

    image: str
    label: str
    classes: list[str]


def find_columns(schema: pa.Schema, file: Path, label_column: str | None) -> Columns:
    """The columns, read off the schema of `file`; `label_column` overrules the choice of the label."""
    features = _features(schema)
    label = _label_column(schema, features, file, label_column)
    return Columns(image_column(schema, file), label, _class_names(features, label))


def refuse_other_numbering(schema: pa.Schema, file: Path, columns: Columns) -> None:
    """A file in which the same number is another class: its labels would be read wrong without a word."""
    names = _class_names(_features(schema), columns.label)
    for number, (name, expected) in enumerate(zip(names, columns.classes, strict=False)):
        if name != expected:
            raise UserError(
                f"{file} calls class {number} {name!r}, and the first training file {expected!r}. "
                "Keep only the files of one data set in the folder, or save it again as one."
            )


def _class_names(features: dict[str, dict[str, Any]], label: str) -> list[str]:
    names = features.get(label, {}).get("names")
    return [str(name) for name in names] if isinstance(names, list) else []


def _features(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """What the `datasets` library wrote about each column; nothing if the file is not its work."""
    try:
        features = load_json((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (KeyError, TypeError, AttributeError, ValueError):
        return {}


def image_column(schema: pa.Schema, file: Path) -> str:
    """The column of encoded images, by the hub's notes or because there is no other."""
    features = _features(schema)
    embedded = [field.name for field in schema if holds_bytes(field.type)]
    marked = [name for name in embedded if features.get(name, {}).get("_type") == "Image"]
    candidates = marked or embedded
    if not candidates or (len(candidates) > 1 and not marked):
        problem = "several columns" if candidates else "no column"
        raise UserError(
            f"{file} has {problem} of encoded images (a struct with a field 'bytes'); its columns: "
            f"{describe(schema)}. Expected one: save the data set with its images embedded."
        )
    return candidates[0]


def holds_bytes(kind: pa.DataType) -> bool:
    """Whether a column of this type has encoded images in it, the way the hub stores them."""
    if not pa.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        return False
    inner = kind.field("bytes").type
    return bool(pa.types.is_binary(inner) or pa.types.is_large_binary(inner))


def _label_column(schema: pa.Schema, features: dict[str, dict[str, Any]], file: Path, wanted: str | None) -> str:
    integers = [field.name for field in schema if pa.types.is_integer(field.type)]
    if wanted is not None:
        if wanted not in integers:
            raise UserError(
                f"{file} has no column {wanted!r} of whole numbers to take labels from; its columns: "
                f"{describe(schema)}. Give `label_column` one that has."
            )
        return wanted
    marked = [name for name in integers if features.get(name, {}).get("_type") == "ClassLabel"]
    for name in PREFERRED:
        if name in (marked or integers):
            return name
    if marked:
        return marked[0]
    raise UserError(
        f"{file} does not say which column holds the labels; its columns: {describe(schema)}. "
        "Name one of whole numbers with `label_column`."
    )


def describe(schema: pa.Schema) -> str:
    """The columns with their types, for error messages."""
    return ", ".join(f"{field.name} ({field.type})" for field in schema) or "none"
