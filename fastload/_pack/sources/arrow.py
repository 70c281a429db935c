"""Maps the columns of an Arrow schema to fields.

pyarrow has no type annotations, so this module reads its types only through strings and methods.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any  # pyarrow has no types

import numpy as np

from fastload._pack.sources.base import Json, Value
from fastload._pack.sources.columns import field_name
from fastload._pack.sources.objects import checked, infer_field
from fastload._store.fields import Field
from fastload._store.kinds import NUMBERS, STR
from fastload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Column:
    """A column, its field, and the class names of the numbers in its lists."""

    name: str
    field: Field
    item_names: tuple[str, ...] = ()


def columns_of(
    schema: Any, wanted: Sequence[str], first: Callable[[str], object], where: str
) -> tuple[Column, ...]:
    """Returns the columns as fields, images first.

    ``first`` returns the first value of a column. It is called if the type is ambiguous.
    """
    names = list(wanted) or list(schema.names)
    for name in names:
        if name not in schema.names:
            raise ConfigError(f"{where}: no column {name!r}. Found {', '.join(schema.names)}")
    features = _features(schema)
    made = [
        _column(name, schema.field(name).type, features.get(name), first, where) for name in names
    ]
    if len({column.field.name for column in made}) != len(made):
        raise ConfigError(
            f"{where}: two columns have the same field name. Select columns with --columns"
        )
    return tuple(sorted(made, key=lambda column: not column.field.kind.is_image))


def row_value(value: object, column: Column, where: str) -> Value:
    """Returns one cell as the value of its field."""
    if column.field.kind is NUMBERS and isinstance(value, list) and not value:
        return np.zeros(0, dtype=np.float32)
    if column.field.kind is STR and value is not None and not isinstance(value, str):
        return str(value)  # dates, decimals
    return checked(value, column.field, where)


def _column(
    name: str, kind: Any, feature: Json, first: Callable[[str], object], where: str
) -> Column:
    made = field_name(name)
    description = feature if isinstance(feature, dict) else {}
    if _is_image(kind) or description.get("_type") == "Image":
        return Column(name, Field(made, "image"))
    text = str(kind)
    if _is_list(text):
        inner = description.get("feature")
        if isinstance(feature, list) and feature:
            inner = feature[0]
        if _is_image(kind.value_type):
            return Column(name, Field(made, "image", list=True))
        if _is_number(_innermost(kind)):
            return Column(name, Field(made, "array"), _class_names(inner))
        return Column(name, Field(made, "json"))
    if text.startswith("dictionary"):
        return Column(name, Field(made, "str"))
    if _is_number(text):
        whole = not text.startswith(("float", "double", "halffloat"))
        return Column(
            name,
            Field(
                made,
                "int" if whole else "float",
                classes=_class_names(description) if whole else (),
            ),
        )
    if text in ("string", "large_string", "string_view") or text.startswith(
        ("timestamp", "date", "time", "decimal")
    ):
        return Column(name, Field(made, "str"))
    if text.startswith(("binary", "large_binary", "fixed_size_binary")):
        value = first(name)
        return Column(
            name, infer_field(made, value) if isinstance(value, bytes) else Field(made, "bytes")
        )
    if text.startswith("struct"):
        return Column(name, Field(made, "json"))
    raise ConfigError(
        f"{where}: column {name!r} has the unsupported type {text:.60}. "
        "Select the other columns with --columns"
    )


def _features(schema: Any) -> dict[str, Json]:
    """Returns the column descriptions that ``datasets`` stored, or {}."""
    try:
        loaded = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    except ValueError:
        return {}
    info = loaded.get("info") if isinstance(loaded, dict) else None
    features = info.get("features") if isinstance(info, dict) else None
    return features if isinstance(features, dict) else {}


def _class_names(feature: Json) -> tuple[str, ...]:
    names = (
        feature.get("names")
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        else None
    )
    return tuple(str(name) for name in names) if isinstance(names, list) else ()


def _is_image(kind: Any) -> bool:
    return str(kind).startswith("struct<") and {
        kind.field(i).name for i in range(kind.num_fields)
    } == {
        "bytes",
        "path",
    }


def _is_list(text: str) -> bool:
    return text.startswith(("list", "large_list", "fixed_size_list", "extension"))


def _innermost(kind: Any) -> str:
    while _is_list(str(kind)):
        kind = kind.storage_type if hasattr(kind, "storage_type") else kind.value_type
    return str(kind)


def _is_number(text: str) -> bool:
    return text.startswith(("int", "uint", "float", "double", "halffloat", "bool"))
