"""The plan of a batch and of one sample: integers for the decoder, a matrix for the labels."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastload._common.public import public
from fastload._plan.geometry import Floats, Ints, moved_hulls
from fastload._plan.transform import PixelOp, op_columns

if TYPE_CHECKING:
    from PIL import Image

REQUEST_NAMES = ("x", "y", "w", "h", "out_w", "out_h", "pad_left", "pad_top", "flip")
NEAREST = 2  # in the native core's numbers of filters


class Frame(NamedTuple):
    """What labels are moved by: one for all of them, or one for each."""

    matrix: Floats  # (..., 3, 3): source → canvas
    area: Floats  # (..., 4): where the image lies on the canvas
    crop: Floats | None  # (..., 4): the used part of the source, if warped and so not upright

    def at(self, slots: int | NDArray[np.intp]) -> Frame:
        """The frame of one sample, or those of some."""
        crop = None if self.crop is None else self.crop[slots]
        return Frame(self.matrix[slots], self.area[slots], crop)


@dataclass(frozen=True, slots=True)
class PlanRows:
    """What happens to the images of a batch, one row per sample.

    The decoder crops (x, y, w, h), resizes to (out_w, out_h), mirrors where ``flip`` and puts the
    result at (pad_left, pad_top) of the canvas. Then ``ops`` run with ``parameters``. ``rows[i]`` is
    the PlanRow of sample i.
    """

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
    parameters: NDArray[np.float32]  # (n, columns of all operations)
    canvas_w: int  # the same for the whole batch
    canvas_h: int
    filter: int  # 0 antialias, 1 bilinear, 2 nearest
    ops: tuple[PixelOp, ...]
    bad: dict[int, str]  # slot → why this image cannot be used; its row is one harmless pixel

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, slot: int) -> PlanRow:
        """The plan of one sample."""
        numbers = {
            name: int(getattr(self, name)[slot])
            for name in ("source_w", "source_h", *REQUEST_NAMES[:-1])
        }
        params = self.parameters[slot].tolist()
        return PlanRow(
            sample_id=int(self.ids[slot]),
            flip=bool(self.flip[slot]),
            canvas_w=self.canvas_w,
            canvas_h=self.canvas_h,
            filter=self.filter,
            matrix=self.matrices[slot],
            frame=self.take(np.array([slot])).frame.at(0),
            ops=tuple((op, tuple(params[columns])) for op, columns in op_columns(self.ops)),
            bad=self.bad.get(slot, ""),
            **numbers,
        )

    def take(self, which: slice | NDArray[np.intp]) -> PlanRows:
        """Some rows, in the order given; none of them may be bad."""
        taken: dict[str, Any] = {name: getattr(self, name)[which] for name in _ARRAYS}
        return replace(self, bad={}, **taken)

    @property
    def warped(self) -> bool:
        """Whether an operation moves the pixels of the canvas once more."""
        return any(op.moves_pixels for op in self.ops)

    @property
    def frame(self) -> Frame:
        """One for each sample."""
        return Frame(self.matrices, self.areas, self._crops if self.warped else None)

    @property
    def _crops(self) -> Floats:
        """(n, 4) x0, y0, x1, y1: the used part of the source."""
        ends = (self.x, self.y, self.x + self.w, self.y + self.h)
        return np.stack(ends, axis=1).astype(np.float64)

    @property
    def areas(self) -> Floats:
        """(n, 4) x0, y0, x1, y1: where the image lies on the canvas; the rest is padding.

        For a rotated image, the upright box around it.
        """
        if self.warped:
            canvas = np.array([self.canvas_w, self.canvas_h] * 2, np.float64)
            return np.clip(moved_hulls(self._crops, self.matrices), 0.0, canvas)
        ends = (self.pad_left, self.pad_top, self.pad_left + self.out_w, self.pad_top + self.out_h)
        return np.stack(ends, axis=1).astype(np.float64)

    @property
    def numbers(self) -> tuple[NDArray[Any], ...]:
        """What the decoder gets, in the order of REQUEST_NAMES."""
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
        """Writes the numbers into a structured array; pixels of a ``mask`` are never mixed."""
        for name, column in zip(REQUEST_NAMES, self.numbers, strict=True):
            requests[name] = column
        requests["filter"] = NEAREST if mask else self.filter


_ARRAYS = tuple(each.name for each in fields(PlanRows))[:-5]  # all before canvas_w


@public()
@dataclass(frozen=True, slots=True, eq=False)
class PlanRow:
    """What happens to one image: print it, or ``draw`` it.

    The names are those of PlanRows. ``matrix`` maps source to output coordinates, ``ops`` pairs
    each pixel operation with its parameters, and ``bad`` says why the image cannot be used.
    """

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
    frame: Frame  # for all labels of the sample
    ops: tuple[tuple[PixelOp, tuple[float, ...]], ...]
    bad: str

    @property
    def area(self) -> tuple[float, float, float, float]:
        """x0, y0, x1, y1: where the image lies on the canvas; the rest is padding.

        For a rotated image, the upright box around it.
        """
        x0, y0, x1, y1 = self.frame.area.tolist()
        return x0, y0, x1, y1

    def describe(self) -> str:
        """One line of text."""
        text = f"sample {self.sample_id}: "
        if self.bad:
            return text + self.bad
        text += f"{self.w}x{self.h} at ({self.x}, {self.y}) of {self.source_w}x{self.source_h}"
        text += f" -> {self.out_w}x{self.out_h}"
        if (self.out_w, self.out_h) != (self.canvas_w, self.canvas_h):
            text += f" at ({self.pad_left}, {self.pad_top}) of {self.canvas_w}x{self.canvas_h}"
        text += ", mirrored" * self.flip
        for op, params in self.ops:
            text += f", {op.name} {' '.join(f'{value:.4g}' for value in params)}"
        return text

    def __str__(self) -> str:
        return self.describe()

    def draw(
        self, image: Image.Image, *, boxes: ArrayLike | None = None, points: ArrayLike | None = None
    ) -> Image.Image:
        """The source with its crop marked, beside the output; labels are those of the source."""
        from fastload._plan.draw import draw_row

        return draw_row(self, image, boxes=boxes, points=points)
