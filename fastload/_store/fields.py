"""What a sample consists of: named fields, each of one kind. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fastload.errors import ConfigError

KINDS = (
    "image",
    "mask",
    "boxes",
    "points",
    "matrix",
    "array",
    "int",
    "float",
    "str",
    "json",
    "bytes",
)
FIELD_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
MOVED = ("mask", "boxes", "points", "matrix")  # kinds whose values are places in an image
RESERVED = (
    "id",
    "source",
)  # every sample has these two by itself: its number, and where it came from


@dataclass(frozen=True, slots=True)
class Field:
    """One named part of every sample.

    ``classes`` names the values of an ``int`` field (a label). ``image`` says which image field a mask, boxes, points
    or matrix belongs to, so that the loader moves it together with that image; empty = the first image field.

        fastload.Field("label", "int", classes=("cat", "dog")), fastload.Field("intrinsics", "matrix", list=True, image="cameras")
    """

    name: str
    kind: str
    list: bool = False
    classes: tuple[str, ...] = ()
    image: str = ""

    def __post_init__(self) -> None:
        if not FIELD_NAME.fullmatch(self.name) or self.name in RESERVED:
            raise ConfigError(
                f"field name {self.name!r:.80}: expected {FIELD_NAME.pattern}, and not one of "
                f"{', '.join(RESERVED)}"
            )
        if self.kind not in KINDS:
            raise ConfigError(
                f"field {self.name!r}: kind {self.kind!r:.40}: expected one of {', '.join(KINDS)}"
            )
        if self.classes and (self.kind != "int" or self.list):
            raise ConfigError(
                f"field {self.name!r}: class names belong to an int field, this is {self.kind}"
            )


def image_of(field: Field, fields: Sequence[Field]) -> str:
    """The image field that a mask, boxes, points or matrix moves with: the one it names, else the first; '' = none.

    Without a name, one value cannot belong to a list of images: a bird's-eye mask beside six cameras moves with none of them.
    """
    if field.image or field.kind not in MOVED:
        return field.image if field.kind in MOVED else ""
    first = next((each for each in fields if each.kind == "image"), None)
    return first.name if first is not None and (field.list or not first.list) else ""
