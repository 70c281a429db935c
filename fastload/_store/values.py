"""Field values to parts and back, for every kind of field."""

from __future__ import annotations

import os
from typing import Any

from fastload._store.fields import Field
from fastload._store.kinds import describe_value
from fastload._store.record import DATA, SOURCE_FIELD, Part
from fastload.errors import ConfigError, RecordError


def encode_value(number: int, field: Field, value: object) -> list[Part]:
    """The parts of field ``number``; none for None. Raises ConfigError for a value of another kind.

    Images are uint8 or uint16 arrays here and are stored raw; the packer stores encoded files.
    """
    if value is None:
        return []
    encode = field.kind.encode
    if not field.list:
        return [encode(number, 0, field, value)]
    if not isinstance(value, list | tuple):
        raise ConfigError(
            f"field {field.name!r}: expected a list of {field.kind}, found {describe_value(value)}"
        )
    return [encode(number, item, field, each) for item, each in enumerate(value)]


def decode_value(field: Field, parts: list[Part], *, copy: bool = True) -> Any:
    """The value of a field from its parts, sorted by item; None, or [] for a list, where there are none.

    Without ``copy``, arrays are read-only views of the record.
    """
    found = [part for part in parts if part.role == DATA]
    if not field.list and len(found) > 1:
        raise RecordError(
            f"number of parts of field {field.name!r}", len(found), "1, it is no list"
        )
    values = [field.kind.decode(field, part) for part in found]
    if copy and field.kind.is_array:
        values = [value.copy() for value in values]
    if field.list:
        return values
    return values[0] if values else None


def source_part(path: str) -> Part:
    """The original path of a sample. A name that is not UTF-8 is kept readable, as ``caf\\xe9.jpg``."""
    return Part(SOURCE_FIELD, os.fsencode(path).decode("utf-8", "backslashreplace").encode())
