"""How the values of each field kind follow their image: one row per kind.

Apart from ``labels`` so that ``import fastload.transforms`` loads neither Pillow nor the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastload._plan.labels import move_boxes_batch, move_points_batch, move_to_image_batch
from fastload._plan.rows import PlanRows
from fastload._store import kinds
from fastload._store.kinds import FieldKind


@dataclass(frozen=True, slots=True)
class LabelMove:
    """How a batch of values of one kind follows its images."""

    batch: Callable[[Sequence[Any], PlanRows], Sequence[tuple[Any, Any]]]
    detail: str = ""  # what ``batch`` returns next to each value: "boxes.kept"; "" = nothing


# None: the values stay as they are. Masks move in the decode threads, together with their image.
LABEL_MOVES: dict[FieldKind, LabelMove | None] = {
    kinds.IMAGE: None,
    kinds.MASK: None,
    kinds.BOXES: LabelMove(move_boxes_batch, "kept"),
    kinds.POINTS: LabelMove(move_points_batch, "visible"),
    kinds.MATRIX: LabelMove(move_to_image_batch),
    kinds.NUMBERS: None,
    kinds.INT: None,
    kinds.FLOAT: None,
    kinds.STR: None,
    kinds.JSON: None,
    kinds.BYTES: None,
}
