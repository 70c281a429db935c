"""What a sample consists of: named fields, each of one kind, and their values as parts of a record."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastload._common.public import public
from fastload._store.kinds import INT, KINDS, FieldKind, describe_value
from fastload._store.record import DATA, SOURCE_FIELD, Part
from fastload.errors import ConfigError, RecordError

FIELD_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
RESERVED = ("id", "source")  # every sample has them: its number and its original path


@public()
@dataclass(frozen=True, slots=True, init=False)
class Field:
    """One named part of every sample.

    ``kind`` may be given by name and is a ``FieldKind`` from then on. ``classes`` names the values
    of an ``int`` field (a label). ``image`` says which image field a mask, boxes, points or matrix
    belongs to, so that the loader moves it together with that image; "" = the first image field.

        fastload.Field("label", "int", classes=("cat", "dog"))
        fastload.Field("intrinsics", "matrix", list=True, image="cameras")
    """

    name: str
    kind: FieldKind
    list: bool = False
    classes: tuple[str, ...] = ()
    image: str = ""

    def __init__(
        self,
        name: str,
        kind: FieldKind | str,
        list: bool = False,
        classes: tuple[str, ...] = (),
        image: str = "",
    ) -> None:
        if not FIELD_NAME.fullmatch(name) or name in RESERVED:
            raise ConfigError(
                f"field name {name!r:.80}: expected {FIELD_NAME.pattern}, and not one of "
                f"{', '.join(RESERVED)}"
            )
        known = KINDS.get(str(kind))
        if known is None:
            raise ConfigError(
                f"field {name!r}: kind {kind!r:.40}: expected one of {', '.join(KINDS)}"
            )
        if classes and (known is not INT or list):
            raise ConfigError(f"field {name!r}: class names belong to an int field, this is {kind}")
        for attribute, value in (
            ("name", name),
            ("kind", known),
            ("list", list),
            ("classes", classes),
            ("image", image),
        ):
            object.__setattr__(self, attribute, value)


def image_of(field: Field, fields: Sequence[Field]) -> str:
    """The image field that a mask, boxes, points or matrix moves with; "" = none.

    It is the one that the field names, else the first. Without a name, one value cannot belong to a
    list of images: a bird's-eye mask next to six cameras moves with none of them.
    """
    if not field.kind.moves_with_image:
        return ""
    if field.image:
        return field.image
    first = next((each for each in fields if each.kind.is_image), None)
    return first.name if first is not None and (field.list or not first.list) else ""


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
