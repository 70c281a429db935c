"""Plan rows of a batch and of one sample: integers for the decoder, a matrix for the labels."""

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
NEAREST = 2  # number of this filter in the native core


class Frame(NamedTuple):
    """The data that labels are moved with, for one sample or stacked for many."""

    matrix: Floats  # (..., 3, 3): source → canvas
    area: Floats  # (..., 4): x0, y0, x1, y1 of the image on the canvas
    crop: Floats | None  # (..., 4): x0, y0, x1, y1 of the crop in the source; None if not warped

    def at(self, slots: int | NDArray[np.intp]) -> Frame:
        crop = None if self.crop is None else self.crop[slots]
        return Frame(self.matrix[slots], self.area[slots], crop)


@dataclass(frozen=True, slots=True)
class PlanRows:
    """Crop, size, flip, matrix and operation parameters of a batch. ``rows[i]`` is a PlanRow.

    The decoder crops (x, y, w, h), resizes to (out_w, out_h), mirrors if ``flip`` is set, and puts
    the result at (pad_left, pad_top) of the canvas. All lengths are in pixels. Then ``ops`` run
    with ``parameters``.

    Examples:
        >>> from fastload import transforms as T
        >>> rows = T.compile([T.CenterCrop(224)]).rows([0, 1], [(375, 500)] * 2, seed=0, epoch=0)
        >>> len(rows), rows.x.tolist(), rows[1].w
        (2, [138, 138], 224)
    """

    ids: NDArray[np.uint64]
    source_w: Ints  # after EXIF orientation
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
    canvas_w: int  # same for the whole batch
    canvas_h: int
    filter: int  # 0 antialias, 1 bilinear, 2 nearest
    ops: tuple[PixelOp, ...]
    bad: dict[int, str]  # slot → why this image cannot be used; its crop is one pixel

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, slot: int) -> PlanRow:
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
        """Returns the selected rows. None of them may be bad."""
        taken: dict[str, Any] = {name: getattr(self, name)[which] for name in _ARRAYS}
        return replace(self, bad={}, **taken)

    @property
    def warped(self) -> bool:
        """Whether a pixel operation moves pixels of the canvas."""
        return any(op.moves_pixels for op in self.ops)

    @property
    def frame(self) -> Frame:
        """The stacked frames of all samples."""
        return Frame(self.matrices, self.areas, self._crops if self.warped else None)

    @property
    def _crops(self) -> Floats:
        """(n, 4) x0, y0, x1, y1 of the crops in the source."""
        ends = (self.x, self.y, self.x + self.w, self.y + self.h)
        return np.stack(ends, axis=1).astype(np.float64)

    @property
    def areas(self) -> Floats:
        """(n, 4) x0, y0, x1, y1 of the image on the canvas; the rest is padding.

        For a rotated image this is the axis-aligned box around it.
        """
        if self.warped:
            canvas = np.array([self.canvas_w, self.canvas_h] * 2, np.float64)
            return np.clip(moved_hulls(self._crops, self.matrices), 0.0, canvas)
        ends = (self.pad_left, self.pad_top, self.pad_left + self.out_w, self.pad_top + self.out_h)
        return np.stack(ends, axis=1).astype(np.float64)

    @property
    def numbers(self) -> tuple[NDArray[Any], ...]:
        """The columns that the decoder gets, in the order of REQUEST_NAMES."""
        return tuple(getattr(self, name) for name in REQUEST_NAMES)

    def fill(self, requests: NDArray[np.void], *, mask: bool = False) -> None:
        """Writes the rows into a structured array. A ``mask`` is resized with nearest."""
        for name, column in zip(REQUEST_NAMES, self.numbers, strict=True):
            requests[name] = column
        requests["filter"] = NEAREST if mask else self.filter


_ARRAYS = tuple(each.name for each in fields(PlanRows))[:-5]  # the fields before canvas_w


@public()
@dataclass(frozen=True, slots=True, eq=False)
class PlanRow:
    """Crop, size, flip, matrix and operation parameters of one image.

    ``loader.plan(sample_id)`` and ``PlanRows[i]`` return it. Print it, or call ``draw``.

    Attributes:
        sample_id: Id of the sample.
        source_w, source_h: Size of the source image in pixels, after EXIF orientation.
        x, y, w, h: Crop in the source image, in pixels.
        out_w, out_h: Size of the resized crop in pixels.
        pad_left, pad_top: Position of the resized crop on the canvas, in pixels.
        flip: Whether the crop is mirrored left to right.
        canvas_w, canvas_h: Output size in pixels.
        filter: 0 antialias, 1 bilinear, 2 nearest.
        matrix: 3x3 matrix from source to output coordinates.
        frame: Data that the ``move_*`` functions use.
        ops: Pixel operations with their parameters.
        bad: Why the image cannot be used; empty if it can.

    Examples:
        >>> from fastload import transforms as T
        >>> row = T.compile([T.CenterCrop(224)]).rows([7], [(375, 500)], seed=0, epoch=0)[0]
        >>> print(row)
        sample 7: 224x224 at (138, 76) of 500x375 -> 224x224
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
    frame: Frame
    ops: tuple[tuple[PixelOp, tuple[float, ...]], ...]
    bad: str

    @property
    def area(self) -> tuple[float, float, float, float]:
        """x0, y0, x1, y1 of the image on the canvas, in pixels; the rest is padding.

        For a rotated image this is the axis-aligned box around it.
        """
        x0, y0, x1, y1 = self.frame.area.tolist()
        return x0, y0, x1, y1

    def describe(self) -> str:
        """Returns the row as one line of text."""
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

    __str__ = describe

    def draw(
        self, image: Image.Image, *, boxes: ArrayLike | None = None, points: ArrayLike | None = None
    ) -> Image.Image:
        """Draws the source image with its crop next to the output.

        Args:
            image: Source image, upright, with the size that the row was computed for.
            boxes: (n, 4) boxes in pixels of the source, drawn in both images. Default None.
            points: (n, 2) or (n, 3) points in pixels of the source. Default None.

        Returns:
            An RGB image.

        Raises:
            ValueError: The image has another size than the plan row.
        """
        from fastload._plan.draw import draw_row

        return draw_row(self, image, boxes=boxes, points=points)
