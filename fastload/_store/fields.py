"""What a sample consists of: named fields, each of one kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fastload._common.public import public
from fastload._store.kinds import INT, KINDS, FieldKind
from fastload.errors import ConfigError

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
