"""Fields of a sample: each has a name and a kind. Their values are stored as parts of a record."""

from __future__ import annotations

import copy
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
SPLIT = "split"  # name of the int field whose classes are the names of the splits
ALL_SPLITS = "all"  # what users pass as split= for all samples


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
        along: The boxes or points field that this field describes: one entry per row of it, as the
            classes of boxes. The loader drops the entries of boxes that it drops. The field is an
            array, boxes, points or json list with one entry per row, or a list with one item per
            row. If ``along`` is a list, item i of this list belongs to item i of that one. Default:
            the field describes the whole sample.

    Raises:
        ConfigError: The name or the kind is not valid, ``classes`` is set for another kind, or a
            value of this kind cannot have one entry per row.

    Examples:
        >>> fastload.Field("label", "int", classes=("cat", "dog"))
        >>> fastload.Field("intrinsics", "matrix", list=True, image="cameras")
        >>> fastload.Field("classes", "array", along="boxes")
    """

    name: str
    kind: FieldKind
    list: bool = False
    classes: tuple[str, ...] = ()
    image: str = ""
    along: str = ""

    def __init__(
        self,
        name: str,
        kind: FieldKind | str,
        list: bool = False,
        classes: tuple[str, ...] = (),
        image: str = "",
        *,
        along: str = "",
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
        if along and (known.decoded_by_pool or not (list or known.has_rows)):
            raise ConfigError(
                f"field {name!r}: along={along!r:.70}: expected kind "
                f"{', '.join(each.name for each in KINDS.values() if each.has_rows)}, or a list, "
                f"found {'a list of ' if list else ''}{kind}"
            )
        for attribute, value in (
            ("name", name),
            ("kind", known),
            ("list", list),
            ("classes", classes),
            ("image", image),
            ("along", along),
        ):
            object.__setattr__(self, attribute, value)


def with_classes(field: Field, classes: tuple[str, ...]) -> Field:
    """Returns the same field with other class names."""
    changed = copy.copy(field)
    object.__setattr__(changed, "classes", classes)
    return changed


def splits_of(fields: Sequence[Field]) -> tuple[str, ...]:
    """Returns the names of the splits: the classes of the int field ``split``, or ()."""
    return next((each.classes for each in fields if each.name == SPLIT), ())


def kind_text(field: Field) -> str:
    """Returns the kind as in ``fastload.pack(fields=...)``: "list of points along boxes"."""
    along = f" along {field.along}" if field.along else ""
    return f"{'list of ' if field.list else ''}{field.kind}{along}"


def image_of(field: Field, fields: Sequence[Field]) -> str:
    """Returns the image field that a mask, boxes, points or matrix moves with, or "" for none.

    This is ``field.image`` if it is set, otherwise the image of the field that it is along,
    otherwise the first image field. A single value does not belong to a list of images by default:
    a bird's-eye mask next to six cameras moves with none.
    """
    if not field.kind.moves_with_image:
        return ""
    if field.image:
        return field.image
    if field.along:
        return image_of(next(each for each in fields if each.name == field.along), fields)
    first = next((each for each in fields if each.kind.is_image), None)
    return first.name if first is not None and (field.list or not first.list) else ""


def check_references(fields: Sequence[Field]) -> None:
    """Raises ConfigError if ``image`` or ``along`` of a field does not name a suitable field."""
    by_name = {each.name: each for each in fields}
    for each in fields:
        image = by_name.get(each.image)
        if each.image and not (image and image.kind.is_image):
            raise ConfigError(
                f"field {each.name!r}: image={each.image!r:.70}: expected the name of an image "
                "field"
            )
        if not each.along:
            continue
        rows = by_name.get(each.along)
        if rows is None or not rows.kind.row_widths or rows.along:
            raise ConfigError(
                f"field {each.name!r}: along={each.along!r:.70}: expected the name of a boxes or "
                "points field that is along no other field"
            )
        if rows.list and not (each.list and each.kind.has_rows):
            raise ConfigError(
                f"field {each.name!r}: along={each.along!r:.70}, which is a list: expected a list "
                "as well, with one array per item"
            )
        if each.image and each.image != image_of(rows, fields):
            raise ConfigError(
                f"field {each.name!r}: image={each.image!r:.70}: expected the image of "
                f"{each.along!r}, which it is along"
            )


def misaligned(field: Field, value: Any, rows: Field, of: Any) -> str:
    """Returns why a decoded value does not have one entry per row of ``of``, or "" if it has.

    ``of`` is the decoded value of ``rows``, the field that ``field`` is along.
    """
    if not rows.list:
        value, of = [value], [of]
    value = value or [None] * len(of)  # an absent list has no rows
    of = of or [None] * len(value)
    if len(value) != len(of):
        return f"found {len(value)} items, expected {len(of)}, one per item of {rows.name!r}"
    for found, expected in zip(map(_n_rows, value), map(_n_rows, of), strict=True):
        if found != expected:
            what = "a single value" if found is None else found
            why = f"found {what}, expected {expected}, one entry per row of {rows.name!r}"
            if field.kind.row_widths and not field.list:
                why += ". Pack several points per row as a list of points"
            return why
    return ""


def _n_rows(value: Any) -> int | None:
    """Returns the length of an array or list; None for another value."""
    if value is None:
        return 0
    has_length = isinstance(value, list) or getattr(value, "ndim", None)
    return len(value) if has_length else None


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
