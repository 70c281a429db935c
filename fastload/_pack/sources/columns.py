"""Chooses the field of a list column and converts its values.

Pure, except for the check that images exist.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fastload._pack.files import is_image_name
from fastload._pack.sources.base import Json, Value
from fastload._pack.sources.numbers import TABLES, float_array
from fastload._store.fields import RESERVED
from fastload._store.kinds import (
    BOXES,
    BYTES,
    FLOAT,
    INT,
    JSON,
    KINDS,
    MATRIX,
    NUMBERS,
    POINTS,
    STR,
    FieldKind,
)
from fastload.errors import BadImage, ConfigError

CLASS = "class"  # an int field with the distinct texts as class names
# Text columns with these names become classes.
CLASS_NAMES = ("label", "class", "category", "target", "split")
_INT = re.compile(r"[+-]?(0|[1-9]\d{0,18})")  # "007" is a name, not a number
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf)", re.IGNORECASE)
_TRUTH = {"true": 1, "false": 0}


@functools.cache
def field_name(column: str) -> str:
    """Returns a valid field name: lower case, "_" for other characters and after reserved names."""
    name = re.sub(r"[^a-z0-9]+", "_", column.strip().lower()).strip("_")[:60] or "column"
    name = name if name[0].isalpha() else f"c_{name}"
    return f"{name}_" if name in RESERVED else name


def infer_kind(column: str, values: Sequence[Json], exists: Callable[[str], bool]) -> str:
    """Returns the kind of a column from sample values, for image lists with ``"list of "``.

    ``exists`` returns whether a text names an existing file. Raises ConfigError if all values are
    image names and none of the files exists.
    """
    known = [value for value in values if value not in (None, "")]
    if not known:
        return "str"
    if all(isinstance(value, str) for value in known):
        return _kind_of_text(column, [str(value) for value in known], exists)
    if all(isinstance(value, int) for value in known):  # bool is one
        return "int"
    if all(isinstance(value, (int, float)) for value in known):
        return "float"
    if all(isinstance(value, list) for value in known):
        flat = [item for value in known if isinstance(value, list) for item in value]
        if flat and all(isinstance(item, str) and is_image_name(item) for item in flat):
            _check_exist(column, [str(item) for item in flat], exists)
            return "list of image"
        if flat and all(_rectangular(value) for value in known):
            return "array"
    return "json"


def _kind_of_text(column: str, texts: Sequence[str], exists: Callable[[str], bool]) -> str:
    if all(is_image_name(text) for text in texts):
        _check_exist(column, texts, exists)
        return "image"
    # Stripped, because hand-written lists contain "a.jpg, 10".
    numbers = [bare for text in texts if (bare := text.strip())]
    if numbers and all(_INT.fullmatch(text) or text.lower() in _TRUTH for text in numbers):
        return "int"
    if (
        numbers
        and all(_FLOAT.fullmatch(text) for text in numbers)
        and not any(_long_digits(text) for text in numbers)
    ):
        return "float"
    if all(text[:1] in ("[", "{") for text in texts) and all(_is_json(text) for text in texts):
        return "json"
    return CLASS if field_name(column) in CLASS_NAMES else "str"


def _check_exist(column: str, names: Sequence[str], exists: Callable[[str], bool]) -> None:
    if not any(exists(name) for name in names[:20]):
        raise ConfigError(
            f"column {column!r}: contains image names, but none of the first {len(names[:20])} "
            f"exists ({names[0]!r:.80}). Pass their folder with --root DIR, or "
            f"pass --type {column}=str"
        )


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The target type of a column or file extension."""

    kind: FieldKind
    is_list: bool = False  # of file names
    is_class: bool = False  # text values are the classes of an int field

    @classmethod
    def parse(cls, column: str, text: str) -> ColumnType:
        """Parses ``"mask"``, ``"list of image"`` or ``"class"``. Raises ConfigError."""
        name = text.removeprefix("list of ")
        kind = INT if name == CLASS else KINDS.get(name)
        is_list = name != text
        if kind is None or (is_list and not kind.decoded_by_pool):
            raise ConfigError(
                f"column {column!r}: kind {text!r:.40}: "
                f"expected one of {', '.join((*KINDS, CLASS))}"
            )
        return cls(kind, is_list, name == CLASS)


def convert(value: Json, kind: FieldKind, column: str, where: str) -> Value:
    """Converts one value to a kind without file or class names. Returns None for an empty value."""
    bare = value.strip() if isinstance(value, str) and kind.in_column else value
    if value is None or (bare == "" and kind is not STR):
        return None
    return _CONVERTERS[kind](value, column, where)


def grouped(values: Iterable[Json], kind: FieldKind, name: str, where: str) -> Value:
    """Joins number columns into one points or boxes field. Returns None if all are empty."""
    listed = list(values)
    if all(value in (None, "") for value in listed):
        return None
    numbers = [convert(value, FLOAT, name, where) for value in listed]
    if any(number is None for number in numbers):
        raise BadImage(f"field {name!r}: some of its columns are empty", source=where)
    width = kind.row_widths[0]
    rows = [numbers[i : i + width] for i in range(0, len(numbers), width)]
    return float_array(
        rows, shape=(None, width), what=f"field {name!r}", source=where, finite=False
    )


def _to_table(kind: FieldKind, value: Json, column: str, where: str) -> Value:
    return TABLES[kind](_to_json(value, column, where), what=f"column {column!r}", source=where)


def _to_array(value: Json, column: str, where: str) -> Value:
    parsed = _to_json(value, column, where)
    if not isinstance(parsed, list) or not _rectangular(parsed):
        raise BadImage(
            f"column {column!r}: expected numbers in lists of equal length, found {parsed!r:.60}",
            source=where,
        )
    return np.asarray(parsed)


def _to_float(value: Json, column: str, where: str) -> float:
    # Stripped here: float() keeps some control characters that strip() removes.
    bare = value.strip() if isinstance(value, str) else value
    if isinstance(bare, (int, float)) or (isinstance(bare, str) and _FLOAT.fullmatch(bare)):
        with contextlib.suppress(OverflowError):  # an integer above every float
            return float(bare)
    raise _misfit(value, FLOAT, column, where)


def _to_str(value: Json, column: str, where: str) -> str:
    return _checked_text(value if isinstance(value, str) else json.dumps(value), column, where)


def _to_bytes(value: Json, column: str, where: str) -> bytes:
    return _checked_text(str(value), column, where).encode()


def _to_int(value: Json, column: str, where: str) -> int:
    number: int | None = None
    if isinstance(value, str):
        text = value.strip().lower()
        number = int(text) if re.fullmatch(r"[+-]?\d{1,19}", text) else _TRUTH.get(text)
    elif isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        number = int(value)
    if number is None or not -(2**63) <= number < 2**63:
        raise _misfit(value, INT, column, where)
    return number


def _to_json(value: Json, column: str, where: str) -> Json:
    try:
        parsed: Json = json.loads(value) if isinstance(value, str) else value
        json.dumps(parsed, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadImage(
            f"column {column!r}: not strict JSON ({error}): {value!r:.60}", source=where
        ) from None
    return parsed


def _checked_text(text: str, column: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadImage(f"column {column!r}: not UTF-8 text: {text!a:.60}", source=where) from None
    return text


def _misfit(value: Json, kind: FieldKind, column: str, where: str) -> BadImage:
    return BadImage(
        f"column {column!r}: expected {kind}, found {value!r:.60}. Correct it, or choose another "
        f"type, e.g. --type {column}=str",
        source=where,
    )


def _rectangular(value: Json) -> bool:
    """Returns whether a value is a rectangular nested list of finite numbers."""

    def shape(item: Json) -> tuple[int, ...] | None:
        if isinstance(item, list):
            inner = {shape(part) for part in item}
            if len(inner) > 1 or None in inner:
                return None
            return (len(item), *(inner.pop() or () if inner else ()))
        number = (
            abs(item) < 2**63 if type(item) is int else type(item) is float and math.isfinite(item)
        )
        return () if number else None

    return shape(value) is not None


def _long_digits(text: str) -> bool:
    return text.lstrip("+-")[:1] == "0" and text.lstrip("+-").isdigit() and len(text) > 1


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


_CONVERTERS: dict[FieldKind, Callable[[Json, str, str], Value]] = {
    BOXES: functools.partial(_to_table, BOXES),
    POINTS: functools.partial(_to_table, POINTS),
    MATRIX: functools.partial(_to_table, MATRIX),
    NUMBERS: _to_array,
    INT: _to_int,
    FLOAT: _to_float,
    STR: _to_str,
    JSON: _to_json,
    BYTES: _to_bytes,
}
