"""Fields of a sample: each has a name and a kind. Their values are stored as parts of a record."""

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
RESERVED = ("id", "source")  # every sample has an id and an original path


@public()
@dataclass(frozen=True, slots=True, init=False)
class Field:
    """One named part of every sample.

    Args:
        name: Lower-case letters, digits and underscores, at most 64 characters.
        kind: A kind name such as ``"image"`` or ``"int"``, or a ``FieldKind``. The attribute is
            always a ``FieldKind``.
        list: True if a sample holds a list of values of this kind. Default: False.
        classes: Names of the values 0, 1, ... of an ``int`` field. Default: no names.
        image: The image field that a mask, boxes, points or matrix belongs to. The loader crops
            and flips both together. Default: the first image field.

    Raises:
        ConfigError: The name or the kind is not valid, or ``classes`` is set for another kind.

    Examples:
        >>> fastload.Field("label", "int", classes=("cat", "dog"))
        >>> fastload.Field("intrinsics", "matrix", list=True, image="cameras")
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
                f"field name {name!r:.80}: expected {FIELD_NAME.pattern}, except the reserved "
                f"names {', '.join(RESERVED)}"
            )
        known = KINDS.get(str(kind))
        if known is None:
            raise ConfigError(
                f"field {name!r}: kind {kind!r:.40}: expected one of {', '.join(KINDS)}"
            )
        if classes and (known is not INT or list):
            raise ConfigError(
                f"field {name!r}: classes are allowed only for kind int, found "
                f"{'a list of ' if list else ''}{kind}"
            )
        for attribute, value in (
            ("name", name),
            ("kind", known),
            ("list", list),
            ("classes", classes),
            ("image", image),
        ):
            object.__setattr__(self, attribute, value)


def image_of(field: Field, fields: Sequence[Field]) -> str:
    """Returns the image field that a mask, boxes, points or matrix moves with, or "" for none.

    This is ``field.image`` if it is set, otherwise the first image field. A single value does not
    belong to a list of images by default: a bird's-eye mask next to six cameras moves with none.
    """
    if not field.kind.moves_with_image:
        return ""
    if field.image:
        return field.image
    first = next((each for each in fields if each.kind.is_image), None)
    return first.name if first is not None and (field.list or not first.list) else ""


def encode_value(number: int, field: Field, value: object) -> list[Part]:
    """Encodes a value as parts of field ``number``; None has no parts.

    Images must be uint8 or uint16 arrays and are stored raw. The packer stores encoded files.
    Raises ConfigError if the value is not of the field's kind.
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
    """Decodes the parts of a field, sorted by item.

    A field without parts is None, or [] for a list.

    If ``copy`` is False, arrays are read-only views of the record.
    """
    found = [part for part in parts if part.role == DATA]
    if not field.list and len(found) > 1:
        raise RecordError(
            f"number of parts of field {field.name!r}", len(found), "1 (the field is not a list)"
        )
    values = [field.kind.decode(field, part) for part in found]
    if copy and field.kind.is_array:
        values = [value.copy() for value in values]
    return values if field.list else next(iter(values), None)


def source_part(path: str) -> Part:
    """Stores the original path. Bytes that are not UTF-8 are escaped, as in ``caf\\xe9.jpg``."""
    return Part(SOURCE_FIELD, os.fsencode(path).decode("utf-8", "backslashreplace").encode())
