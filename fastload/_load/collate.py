"""How the values of each field kind are collated into one entry of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fastload._store import kinds
from fastload._store.kinds import FieldKind


class Stack(Enum):
    """When values are stacked to one tensor, unless the user passes ``ragged=``."""

    NEVER = 0
    SAME_SHAPE = 1  # if all samples have the same shape
    ALWAYS = 2


@dataclass(frozen=True, slots=True)
class Collate:
    stack: Stack = Stack.NEVER
    shapes: tuple[tuple[int, ...], ...] = ()  # allowed shapes of one value; () allows any
    as_tensor: bool = True  # False: a list of Python objects


# The decode threads write images, and masks that belong to an image, directly into one tensor.
COLLATE: dict[FieldKind, Collate] = {
    kinds.IMAGE: Collate(),
    kinds.MASK: Collate(Stack.SAME_SHAPE),
    kinds.BOXES: Collate(),
    kinds.POINTS: Collate(Stack.SAME_SHAPE),
    kinds.MATRIX: Collate(Stack.ALWAYS, shapes=((3, 3), (3, 4))),
    kinds.NUMBERS: Collate(Stack.SAME_SHAPE),
    kinds.INT: Collate(),
    kinds.FLOAT: Collate(),
    kinds.STR: Collate(as_tensor=False),
    kinds.JSON: Collate(as_tensor=False),
    kinds.BYTES: Collate(as_tensor=False),
}
