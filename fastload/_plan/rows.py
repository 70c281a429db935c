"""What a plan says about a batch, and about one sample: integers for the decoder, a matrix for the labels. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastload._common.public import public
from fastload._plan.base import Step, step_columns
from fastload._plan.geometry import moved_hulls
from fastload._plan.warps import WARPS

if TYPE_CHECKING:
    from PIL import Image

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]

REQUEST_NAMES = ("x", "y", "w", "h", "out_w", "out_h", "pad_left", "pad_top", "flip")
NEAREST = 2


class Frame(NamedTuple):
    """What labels are moved by: one for all of them, or one for each."""

    matrix: Floats  # (..., 3, 3): source → canvas
    area: Floats  # (..., 4): where the image lies on the canvas
    crop: (
        Floats | None
    )  # (..., 4): what is used of the source, where that is turned and so no box on the canvas

    def at(self, slots: NDArray[np.intp]) -> Frame:
        """Of some samples."""
        return Frame(
            self.matrix[slots], self.area[slots], None if self.crop is None else self.crop[slots]
        )


@dataclass(frozen=True, slots=True)
class PlanRows:
    """One row a sample. Crop (x, y, w, h), resize to (out_w, out_h), mirror where ``flip``, put at (pad_left, pad_top) of the canvas."""

    ids: NDArray[np.uint64]
    source_w: Ints  # of the image as shown: orientation applied
    source_h: Ints
    x: Ints
    y: Ints
    w: Ints
    h: Ints
    out_w: Ints
    out_h: Ints
    pad_left: Ints
    pad_top: Ints
    flip: NDArray[np.bool_]
    matrices: Floats  # (n, 3, 3): source → canvas, continuous coordinates
    parameters: NDArray[np.float32]  # (n, columns of all steps)
    canvas_w: int  # the same for the whole batch
    canvas_h: int
    filter: int  # 0 antialias, 1 bilinear, 2 nearest
    steps: tuple[Step, ...]
    bad: dict[int, str]  # slot → why this image cannot be used; its row is a harmless single pixel

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, slot: int) -> PlanRow:
        """The plan of one sample."""
        numbers = {
            name: int(getattr(self, name)[slot])
            for name in ("source_w", "source_h", *REQUEST_NAMES[:-1])
        }
        return PlanRow(
            sample_id=int(self.ids[slot]),
            flip=bool(self.flip[slot]),
            canvas_w=self.canvas_w,
            canvas_h=self.canvas_h,
            filter=self.filter,
            matrix=self.matrices[slot],
            colours=self._colours(slot),
            bad=self.bad.get(slot, ""),
            **numbers,
        )

    def part(self, first: int, last: int) -> PlanRows:
        """The rows from ``first`` to ``last``, none of them bad."""
        found: dict[str, Any] = {name: getattr(self, name)[first:last] for name in _ARRAYS}
        return PlanRows(
            **found,
            canvas_w=self.canvas_w,
            canvas_h=self.canvas_h,
            filter=self.filter,
            steps=self.steps,
            bad={},
        )

    @property
    def warped(self) -> bool:
        """What is on the canvas is moved once more, by a step."""
        return any(step.kind in WARPS for step in self.steps)

    @property
    def frame(self) -> Frame:
        """One for each sample."""
        return Frame(self.matrices, self.areas, self._crops if self.warped else None)

    @property
    def _crops(self) -> Floats:
        """(n, 4) x0, y0, x1, y1: what is used of the source."""
        return np.stack((self.x, self.y, self.x + self.w, self.y + self.h), axis=1).astype(
            np.float64
        )

    @property
    def areas(self) -> Floats:
        """(n, 4) x0, y0, x1, y1: where the image lies on the canvas; the rest is padding. The box around it where it is turned."""
        if self.warped:
            return _on_canvas(moved_hulls(self._crops, self.matrices), self.canvas_w, self.canvas_h)
        ends = (self.pad_left, self.pad_top, self.pad_left + self.out_w, self.pad_top + self.out_h)
        return np.stack(ends, axis=1).astype(np.float64)

    @property
    def numbers(self) -> tuple[NDArray[Any], ...]:
        """What ``fill`` writes, in the order of REQUEST_NAMES."""
        return (
            self.x,
            self.y,
            self.w,
            self.h,
            self.out_w,
            self.out_h,
            self.pad_left,
            self.pad_top,
            self.flip,
        )

    def fill(self, requests: NDArray[np.void], *, mask: bool = False) -> None:
        """Writes the integers into a structured array with these names; ``mask``: pixels are picked, never mixed."""
        for name, column in zip(REQUEST_NAMES, self.numbers, strict=True):
            requests[name] = column
        requests["filter"] = NEAREST if mask else self.filter

    def put(self, slots: NDArray[np.intp], other: PlanRows) -> PlanRows:
        """These rows with those of ``other`` in some slots: substitutes for bad samples."""
        if (other.canvas_w, other.canvas_h, other.steps) != (
            self.canvas_w,
            self.canvas_h,
            self.steps,
        ):
            raise ValueError(
                f"rows of another plan: canvas {other.canvas_w}x{other.canvas_h}, expected {self.canvas_w}x{self.canvas_h}"
            )
        changed: dict[str, Any] = {}
        for each in fields(self):
            old = getattr(self, each.name)
            if isinstance(old, np.ndarray):
                changed[each.name] = new = old.copy()
                new[slots] = getattr(other, each.name)
        places = {int(slot): place for place, slot in enumerate(slots)}
        bad = {slot: why for slot, why in self.bad.items() if slot not in places}
        bad |= {slot: other.bad[place] for slot, place in places.items() if place in other.bad}
        return replace(self, bad=bad, **changed)

    def _colours(self, slot: int) -> tuple[tuple[str, tuple[float, ...]], ...]:
        values = self.parameters[slot].tolist()
        return tuple(
            (str(step.kind), tuple(values[columns])) for step, columns in step_columns(self.steps)
        )


def _on_canvas(boxes: Floats, width: int, height: int) -> Floats:
    return np.clip(boxes, 0.0, np.array([width, height, width, height], np.float64))


_ARRAYS = tuple(each.name for each in fields(PlanRows))[:-5]  # all before canvas_w


@public()
@dataclass(frozen=True, slots=True, eq=False)
class PlanRow:
    """What happens to one image: print it, or ``draw`` it."""

    sample_id: int
    source_w: int
    source_h: int
    x: int
    y: int
    w: int
    h: int
    out_w: int
    out_h: int
    pad_left: int
    pad_top: int
    flip: bool
    canvas_w: int
    canvas_h: int
    filter: int
    matrix: Floats
    colours: tuple[tuple[str, tuple[float, ...]], ...]
    bad: str

    @property
    def warped(self) -> bool:
        """What is on the canvas is moved once more, by a step."""
        return any(kind in WARPS for kind, _ in self.colours)

    @property
    def frame(self) -> Frame:
        """For all its labels."""
        return Frame(
            self.matrix, np.array(self.area, np.float64), self._crop if self.warped else None
        )

    @property
    def _crop(self) -> Floats:
        """x0, y0, x1, y1: what is used of the source."""
        return np.array((self.x, self.y, self.x + self.w, self.y + self.h), np.float64)

    @property
    def area(self) -> tuple[float, float, float, float]:
        """x0, y0, x1, y1: where the image lies on the canvas; the rest is padding. The box around it where it is turned."""
        if self.warped:
            hull = moved_hulls(self._crop[None], self.matrix)
            x0, y0, x1, y1 = _on_canvas(hull, self.canvas_w, self.canvas_h)[0].tolist()
            return x0, y0, x1, y1
        return self.pad_left, self.pad_top, self.pad_left + self.out_w, self.pad_top + self.out_h

    def describe(self) -> str:
        """One line."""
        if self.bad:
            return f"sample {self.sample_id}: {self.bad}"
        text = f"sample {self.sample_id}: {self.w}x{self.h} at ({self.x}, {self.y}) of {self.source_w}x{self.source_h}"
        text += f" -> {self.out_w}x{self.out_h}"
        if (self.out_w, self.out_h) != (self.canvas_w, self.canvas_h):
            text += f" at ({self.pad_left}, {self.pad_top}) of {self.canvas_w}x{self.canvas_h}"
        text += ", mirrored" * self.flip
        return text + "".join(
            f", {kind} {' '.join(f'{value:.4g}' for value in values)}"
            for kind, values in self.colours
        )

    def __str__(self) -> str:
        return self.describe()

    def draw(
        self, image: Image.Image, *, boxes: ArrayLike | None = None, points: ArrayLike | None = None
    ) -> Image.Image:
        """The source with its crop marked, beside the output; labels are those of the source."""
        from fastload._plan.draw import draw_row

        return draw_row(self, image, boxes=boxes, points=points)
