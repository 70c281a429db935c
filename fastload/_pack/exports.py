"""What ``fastload export`` and the source ``exported`` agree on: the description of the fields, the
names of files, and the JSON form of values.

``fastload.json`` is next to the exported data. It is untrusted input, and so is the data.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._common import files, strict_json
from fastload._common.strict_json import Json, Row
from fastload._pack.files import EXPORT_DESCRIPTION
from fastload._pack.sources.base import Info, Value
from fastload._pack.sources.numbers import parse_npy
from fastload._store.fields import SPLIT, Field
from fastload._store.kinds import BYTES, FLOAT
from fastload._store.manifest import field_json, parse_fields
from fastload.errors import BadImage, ConfigError

FORMAT = "fastload export"
VERSION = 1
MAX_BYTES = 64 << 20
MAX_DEPTH = 8
TARGETS = ("files", "webdataset", "parquet")
TABLE = "samples.jsonl"  # of the target "files"
SOURCE = "source"  # key or column with the original path; fields cannot have this name
EXACT = "_exact"  # Parquet column with the values that have no exact form in their own column
MAX_NAME_BYTES = 100  # of a file name without suffix
_KEYS = frozenset(("format", "version", "to", "fields", "info"))
_UNSAFE = re.compile(r"[^\w .()+,=@~#-]")

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Description:
    """The contents of fastload.json."""

    to: str  # one of TARGETS
    fields: tuple[Field, ...]
    info: Info

    def dump(self) -> bytes:
        values: dict[str, Json] = {
            "format": FORMAT,
            "version": VERSION,
            "to": self.to,
            "fields": [field_json(each) for each in self.fields],
            "info": self.info,
        }
        return (json.dumps(values, ensure_ascii=False, allow_nan=False, indent=1) + "\n").encode()

    @classmethod
    def parse(cls, data: bytes) -> Description:
        """Raises ValueError for anything that ``dump`` does not write."""
        row = Row.of("the file", strict_json.loads(data, max_depth=MAX_DEPTH), _KEYS)
        found = (row.values["format"], row.values["version"])
        if found != (FORMAT, VERSION):
            raise ValueError(
                f"format and version {found!r:.80}: expected {(FORMAT, VERSION)}. A newer fastload "
                "may support it"
            )
        if row.values["to"] not in TARGETS:
            raise ValueError(f"to {row.values['to']!r:.40}: expected one of {', '.join(TARGETS)}")
        return cls(
            str(row.values["to"]),
            tuple(parse_fields(row.get("fields", list))),
            row.get("info", dict),
        )


def read_description(folder: Path) -> Description:
    """Reads and checks fastload.json in a folder. Raises ConfigError."""
    path = folder / EXPORT_DESCRIPTION
    try:
        return Description.parse(files.read_regular(path, max_bytes=MAX_BYTES))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(
            f"{path}: {error}. Export the dataset again, or pass --format to read the folder "
            "without this file"
        ) from None


def primary_image(fields: Sequence[Field]) -> str:
    """Returns the image field that stands for the sample, or "": the first that is not a list."""
    return next((each.name for each in fields if each.kind.is_image and not each.list), "")


def label_field(fields: Sequence[Field]) -> Field | None:
    """Returns the field whose classes are folders: ``label``, or the first one with classes."""
    named = [each for each in fields if each.classes and each.name != SPLIT]
    return next((each for each in named if each.name == "label"), next(iter(named), None))


def safe_name(text: str) -> str:
    """Returns a visible file name without separators and special characters, never "" or "..".

    Different texts may have the same name.
    """
    name = _UNSAFE.sub("_", text).lstrip(". ").encode()[:MAX_NAME_BYTES].decode(errors="ignore")
    return name.rstrip(". ") or "_"


def safe_names(texts: Iterable[str]) -> list[str]:
    """Returns a file name for each text, all different, also without regard to case."""
    names: list[str] = []
    used: set[str] = set()
    for number, text in enumerate(texts):
        name = safe_name(text)
        while name.casefold() in used:
            name = f"{name}-{number}"
        used.add(name.casefold())
        names.append(name)
    return names


def split_names(splits: Iterable[str]) -> list[str]:
    """Returns the prefix of the shards of each split: Hugging Face allows only these characters."""
    return safe_names(re.sub(r"[^A-Za-z0-9_]", "_", split) for split in splits)


def nested(field: Field, array: Array, dtype: np.dtype[Any] | None = None) -> Json:
    """Returns an array as nested lists, or None if the lists do not restore dtype and shape.

    ``dtype`` is known to the reader. Default: the reader sees only the numbers.
    """
    found: Json = array.tolist()
    if dtype is None and not np.isfinite(array).all():
        return None  # no JSON
    try:
        back = from_nested(field, found, dtype)
    except ConfigError:
        return None
    return found if isinstance(found, list) and _same_type(back, array) else None


def _same_type(one: Array, two: Array) -> bool:
    return one.dtype == two.dtype and one.shape == two.shape


def from_nested(field: Field, value: object, dtype: np.dtype[Any] | None = None) -> Array:
    """Returns the array of nested lists. Raises ConfigError."""
    try:
        array = np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"field {field.name!r}: {error}") from None
    found: Array = field.kind.decode(field, field.kind.encode(0, 0, field, array))
    return found


def npy_file(array: Array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)
    return stream.getvalue()


def packed_json(key: str, data: bytes) -> Json:
    """Returns bytes as JSON: ``{"npy": ...}`` or ``{"bytes": ...}`` in base64."""
    return {key: base64.b64encode(data).decode()}


def unpacked(key: str, value: object, source: str) -> bytes:
    """Returns the bytes of ``packed_json``. Raises BadImage."""
    text = value.get(key) if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(text, str):
        raise BadImage(
            f"expected an object with the key {key!r}, found {value!r:.60}", source=source
        )
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise BadImage(f"{key}: not base64: {error}", source=source) from None


class JsonValues:
    """Converts values that are not images or masks to strict JSON and back.

    Classes are written as names, or as numbers if a name occurs twice.
    """

    def __init__(self, fields: Iterable[Field]) -> None:
        self._names: dict[str, list[Json]] = {}
        self._numbers: dict[str, dict[str, int]] = {}
        for each in fields:
            if not each.classes:
                continue
            counts = Counter(each.classes)
            self._names[each.name] = [
                name if counts[name] == 1 else number for number, name in enumerate(each.classes)
            ]
            self._numbers[each.name] = {name: i for i, name in enumerate(each.classes)}

    def dump(self, field: Field, value: Any) -> Json:
        """Returns one value as JSON. Raises BadImage for a class without a name."""
        if field.kind.is_array:
            lists = nested(field, value)
            return packed_json("npy", npy_file(value)) if lists is None else lists
        if field.kind is BYTES:
            return packed_json("bytes", value)
        if field.classes:
            return self._names[field.name][check_class(field, value)]
        if field.kind is FLOAT and not math.isfinite(value):
            return str(value)  # nan, inf or -inf, which are not JSON
        found: Json = value
        return found

    def load(self, field: Field, value: Json, source: str) -> Value:
        """Returns a value from JSON. The packer checks its type. Raises BadImage."""
        if field.kind.is_array:
            if isinstance(value, dict):
                return parse_npy(unpacked("npy", value, source), source)
            try:
                return from_nested(field, value)
            except ConfigError as error:
                raise BadImage(str(error), source=source) from None
        if field.kind is BYTES:
            return unpacked("bytes", value, source)
        if field.classes and isinstance(value, str):
            if value not in self._numbers[field.name]:
                raise BadImage(
                    f"field {field.name!r}: {value!r:.60} is not one of {len(field.classes)} "
                    "classes",
                    source=source,
                )
            return self._numbers[field.name][value]
        if field.kind is FLOAT and value in ("nan", "inf", "-inf"):
            return float(str(value))
        return value


def check_class(field: Field, number: int) -> int:
    """Returns the number of a class. Raises BadImage if the field has no such class."""
    if not 0 <= number < len(field.classes):
        raise BadImage(
            f"field {field.name!r}: class {number}, expected 0 to {len(field.classes) - 1}"
        )
    return number
