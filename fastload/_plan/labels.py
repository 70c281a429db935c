"""Moves labels with their image: boxes, points, polylines and camera matrices.

Coordinates are continuous, in pixels of the upright image, as in COCO: the left edge of the first
pixel is 0 and its center is 0.5. Arithmetic is float64, results are float32. The *area* is the part
of the canvas that the image covers; the rest is padding.

* **Boxes** (x0, y0, x1, y1) are moved and clipped to the area. A rotated box becomes the
  axis-aligned box around its visible part. Boxes without area or with NaN are dropped.
* **Points** (x, y, and an optional third number that stays unmodified) are moved. They are neither
  clipped nor dropped; a flag reports whether a point lies in the area, edges included. A flip does
  not swap the meaning of points ("left eye"); check ``PlanRow.flip``.
* **Matrices** *to* the image (intrinsics K, projections P = K [R | t], homographies of a plane)
  become A M. Matrices *from* the image become M A⁻¹. A is the 3x3 matrix of the plan row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastload._plan.geometry import Flags, Floats, moved_hulls, rotates
from fastload._plan.rows import Frame, PlanRow, PlanRows
from fastload._store import kinds
from fastload._store.fields import Field
from fastload._store.kinds import FieldKind
from fastload.errors import ConfigError

Float32 = NDArray[np.float32]
Kept = NDArray[np.intp]

_EDGE = 1e-6  # pixels: keeps a corner of the image inside the area despite rounding


def move_boxes(
    boxes: ArrayLike, row: PlanRow, *, min_visible: float = 0.0, min_side: float = 0.0
) -> tuple[Float32, Kept]:
    """Moves the boxes of one image and drops boxes that are not visible.

    Args:
        boxes: (n, 4) array of x0, y0, x1, y1 in pixels of the source image.
        row: Plan row of the sample.
        min_visible: Smallest fraction of the area of a box, 0 to 1, that must remain visible.
            Default 0: any positive area.
        min_side: Smallest width and height of the visible part, in pixels of the output. Default 0.

    Returns:
        (k, 4) boxes in pixels of the output, and their k indices in the input. Use the indices to
        select the classes of the boxes.

    Raises:
        ConfigError: The shape is not (n, 4), or a limit is out of range.

    Examples:
        >>> from fastload import transforms as T
        >>> row = T.compile([T.Crop(left=0.5)]).rows([0], [(100, 200)], seed=0, epoch=0)[0]
        >>> boxes, kept = move_boxes([[0, 0, 50, 50], [80, 0, 140, 50]], row)
        >>> boxes.tolist(), kept.tolist()
        ([[0.0, 0.0, 40.0, 50.0]], [1])
    """
    joined = _shaped("boxes", boxes, (4,)).astype(np.float64)
    moved, keep = _boxes(joined, row.frame, min_visible, min_side)
    kept = np.flatnonzero(keep)
    return moved[kept].astype(np.float32), kept


def move_boxes_batch(
    boxes: Sequence[ArrayLike],
    rows: PlanRows,
    *,
    min_visible: float = 0.0,
    min_side: float = 0.0,
) -> list[tuple[Float32, Kept]]:
    """Moves the boxes of a batch, like ``move_boxes`` for each sample but faster.

    Args:
        boxes: One (n, 4) array per sample, in pixels of its source image.
        rows: Plan rows of the batch.
        min_visible: Smallest fraction of the area of a box, 0 to 1, that must remain visible.
            Default 0.
        min_side: Smallest width and height of the visible part, in pixels of the output. Default 0.

    Returns:
        Boxes and indices of each sample, as ``move_boxes`` returns them.

    Raises:
        ConfigError: The numbers of samples differ, a shape is not (n, 4), or a limit is out of
            range.

    Examples:
        >>> from fastload import transforms as T
        >>> rows = T.compile([T.Crop(left=20)]).rows([0, 1], [(100, 200)] * 2, seed=0, epoch=0)
        >>> [kept.tolist() for _, kept in move_boxes_batch([[[0, 0, 50, 50]], []], rows)]
        [[0], []]
    """
    joined, counts, slots = _joined("boxes", boxes, (4,), rows)
    moved, keep = _boxes(joined, rows.frame.at(slots), min_visible, min_side)
    kept = np.flatnonzero(keep)
    starts = np.cumsum([0, *counts])
    ends = np.searchsorted(kept, starts).tolist()
    positions = kept - starts[slots[kept]]
    result = moved[kept].astype(np.float32)
    return [(result[first:last], positions[first:last]) for first, last in pairwise(ends)]


def clip_boxes_batch(boxes: Sequence[ArrayLike], rows: PlanRows) -> list[tuple[Float32, None]]:
    """Moves the boxes of a batch without dropping any; boxes outside of the area have no area."""
    joined, counts, slots = _joined("boxes", boxes, (4,), rows)
    moved, _ = _boxes(joined, rows.frame.at(slots))
    result = moved.astype(np.float32)
    return [
        (result[first:last], None) for first, last in pairwise(np.cumsum([0, *counts]).tolist())
    ]


def move_points(points: ArrayLike, row: PlanRow) -> tuple[Float32, Flags]:
    """Moves the points of one image.

    Args:
        points: (n, 2) or (n, 3) array of x, y in pixels of the source image, and an optional number
            that stays unmodified, such as COCO's visibility flag.
        row: Plan row of the sample.

    Returns:
        The points in pixels of the output, and a flag per point: True if it lies in the image.

    Raises:
        ConfigError: The shape is neither (n, 2) nor (n, 3).

    Examples:
        >>> from fastload import transforms as T
        >>> row = T.compile([T.Crop(left=20)]).rows([0], [(100, 200)], seed=0, epoch=0)[0]
        >>> points, visible = move_points([[50, 50], [10, 50]], row)
        >>> points.tolist(), visible.tolist()
        ([[30.0, 50.0], [-10.0, 50.0]], [True, False])
    """
    moved, visible = _points(_shaped("points", points, (2, 3)).astype(np.float64), row.frame)
    return moved.astype(np.float32), visible


def move_points_batch(points: Sequence[ArrayLike], rows: PlanRows) -> list[tuple[Float32, Flags]]:
    """Moves the points of a batch, like ``move_points`` for each sample but faster.

    Args:
        points: One (n, 2) or (n, 3) array per sample, with the same number of columns.
        rows: Plan rows of the batch.

    Returns:
        Points and flags of each sample, as ``move_points`` returns them.

    Raises:
        ConfigError: The numbers of samples or of columns differ, or a shape is wrong.

    Examples:
        >>> from fastload import transforms as T
        >>> rows = T.compile([T.Crop(left=20)]).rows([0], [(100, 200)], seed=0, epoch=0)
        >>> [visible.tolist() for _, visible in move_points_batch([[[50, 50], [10, 50]]], rows)]
        [[True, False]]
    """
    joined, counts, slots = _joined("points", points, (2, 3), rows)
    moved, visible = _points(joined, rows.frame.at(slots))
    result = moved.astype(np.float32)
    return [
        (result[first:last], visible[first:last])
        for first, last in pairwise(np.cumsum([0, *counts]).tolist())
    ]


def move_polylines(lines: Sequence[ArrayLike], row: PlanRow) -> list[tuple[Float32, Flags]]:
    """Moves the polylines of one image. Lines are neither clipped nor dropped.

    Args:
        lines: One (n, 2) or (n, 3) array of points per line, in pixels of the source image.
        row: Plan row of the sample.

    Returns:
        Points and flags of each line, as ``move_points`` returns them.

    Raises:
        ConfigError: A shape is neither (n, 2) nor (n, 3).

    Examples:
        >>> from fastload import transforms as T
        >>> row = T.compile([T.Crop(left=20)]).rows([0], [(100, 200)], seed=0, epoch=0)[0]
        >>> [points.tolist() for points, _ in move_polylines([[[50, 50], [60, 70]]], row)]
        [[[30.0, 50.0], [40.0, 70.0]]]
    """
    return [move_points(line, row) for line in lines]


def move_to_image(matrix: ArrayLike, row: PlanRow) -> Float32:
    """Moves a matrix that maps to the image: intrinsics, projection, homography of a plane.

    Args:
        matrix: (3, 3) or (3, 4) matrix, or a stack of them.
        row: Plan row of the sample.

    Returns:
        The matrix that maps to pixels of the output, with the same shape.

    Raises:
        ConfigError: The matrix has another shape.

    Examples:
        >>> from fastload import transforms as T
        >>> row = T.compile([T.Crop(left=20)]).rows([0], [(100, 200)], seed=0, epoch=0)[0]
        >>> move_to_image([[500, 0, 100], [0, 500, 50], [0, 0, 1]], row).tolist()
        [[500.0, 0.0, 80.0], [0.0, 500.0, 50.0], [0.0, 0.0, 1.0]]
    """
    return (row.matrix @ _camera(matrix, (3, 4))).astype(np.float32)


def move_to_image_batch(matrices: Sequence[Any], rows: PlanRows) -> list[tuple[Float32, None]]:
    return [
        ((move @ matrix).astype(np.float32), None)
        for move, matrix in zip(rows.matrices, matrices, strict=True)
    ]


def move_from_image(matrix: ArrayLike, row: PlanRow) -> Float32:
    """Moves a matrix that maps from the image: inverse intrinsics, image-to-ground homography.

    Args:
        matrix: (n, 3) matrix, or a stack of them.
        row: Plan row of the sample.

    Returns:
        The matrix that maps from pixels of the output, with the same shape.

    Raises:
        ConfigError: The matrix has another shape.

    Examples:
        >>> from fastload import transforms as T
        >>> row = T.compile([T.Crop(left=20)]).rows([0], [(100, 200)], seed=0, epoch=0)[0]
        >>> move_from_image([[1, 0, 0], [0, 1, 0], [0, 0, 1]], row).tolist()
        [[1.0, 0.0, 20.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    return (_camera(matrix, (3,)) @ np.linalg.inv(row.matrix)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class LabelMove:
    """Moves a batch of values of one field kind."""

    batch: Callable[[Sequence[Any], PlanRows], Sequence[tuple[Any, Any]]]
    # Name of the second value that ``batch`` returns per sample, as in "boxes.kept"; "" if none.
    detail: str = ""


# None means that the values stay unmodified. The decode threads move masks with their image.
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


def check_box_limits(min_visible: object, min_side: object) -> None:
    """Raises ConfigError if a limit is out of range."""
    if not (isinstance(min_visible, int | float) and 0.0 <= min_visible <= 1.0):
        raise ConfigError(f"min_visible={min_visible!r}: expected a fraction from 0 to 1")
    if not (isinstance(min_side, int | float) and 0.0 <= min_side < float("inf")):
        raise ConfigError(f"min_side={min_side!r}: expected a number of pixels, 0 or more")


def label_move(field: Field, *, min_visible: float, min_side: float) -> LabelMove | None:
    """Returns the move of a field; the limits apply to boxes.

    Boxes that are along another field stay or go with the rows of that field.
    """
    if field.kind is not kinds.BOXES:
        return LABEL_MOVES[field.kind]
    if field.along:
        return LabelMove(clip_boxes_batch)
    return LabelMove(partial(move_boxes_batch, min_visible=min_visible, min_side=min_side), "kept")


def _boxes(
    boxes: Floats, frame: Frame, min_visible: float = 0.0, min_side: float = 0.0
) -> tuple[Floats, Flags]:
    """Returns the moved boxes and a flag per box: True to keep it.

    In a warped image, boxes are clipped to the crop first.
    """
    matrix, area, crop = frame
    check_box_limits(min_visible, min_side)
    used = boxes if crop is None else _clipped(boxes, crop)
    corners = moved_hulls(boxes, matrix)
    clipped = _clipped(corners if crop is None else moved_hulls(used, matrix), area)
    sides = clipped[:, 2:] - clipped[:, :2]
    remains = sides[:, 0] * sides[:, 1]
    keep = (used[:, 2] > used[:, 0]) & (used[:, 3] > used[:, 1]) & (remains > 0)
    if min_side:
        keep &= (sides >= min_side - _EDGE).all(axis=1)
    if min_visible:  # an infinite box must pass min_visible=0, and 0 * inf is NaN
        whole = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
        # A box inside of the area must pass min_visible=1. Both areas are computed from the same
        # rounded corners, except for the clipping.
        keep &= remains >= min_visible * whole * (1 - 1e-12)
    return clipped, keep


def _clipped(boxes: Floats, to: Floats) -> Floats:
    return np.clip(
        boxes,
        np.concatenate([to[..., :2]] * 2, axis=-1),
        np.concatenate([to[..., 2:]] * 2, axis=-1),
    )


def _points(points: Floats, frame: Frame) -> tuple[Floats, Flags]:
    matrix, area, crop = frame
    moved = points.copy()
    moved[:, 0] = points[:, 0] * matrix[..., 0, 0] + matrix[..., 0, 2]
    moved[:, 1] = points[:, 1] * matrix[..., 1, 1] + matrix[..., 1, 2]
    if rotates(matrix):
        with np.errstate(invalid="ignore"):  # points at infinity
            moved[:, 0] += points[:, 1] * matrix[..., 0, 1]
            moved[:, 1] += points[:, 0] * matrix[..., 1, 0]
    visible = _inside(moved, area)
    return moved, visible if crop is None else visible & _inside(points, crop)


def _inside(points: Floats, box: Floats) -> Flags:
    xy = points[:, :2]
    inside: Flags = np.all((xy >= box[..., :2] - _EDGE) & (xy <= box[..., 2:] + _EDGE), axis=1)
    return inside


def _joined(
    what: str, arrays: Sequence[ArrayLike], columns: tuple[int, ...], rows: PlanRows
) -> tuple[Floats, list[int], NDArray[Any]]:
    if len(arrays) != len(rows):
        raise ConfigError(
            f"{what}: expected one array per plan row ({len(rows)}), found {len(arrays)}"
        )
    shaped = [_shaped(what, each, columns) for each in arrays]
    counts = [len(each) for each in shaped]
    filled = [each for each in shaped if len(each)]
    widths = {each.shape[1] for each in filled or shaped}
    if filled and len(widths) > 1:
        raise ConfigError(
            f"{what}: expected the same number of columns in all samples of a batch, "
            f"found {sorted(widths)}"
        )
    joined = (
        np.concatenate(filled).astype(np.float64, copy=False)
        if filled
        else np.empty((0, max(widths, default=columns[0])))
    )
    return joined, counts, np.repeat(np.arange(len(rows)), counts)


def _shaped(what: str, values: ArrayLike, columns: tuple[int, ...]) -> NDArray[Any]:
    array = np.asarray(values)
    if not array.size and array.ndim < 2:
        array = array.reshape(0, columns[0])
    if array.ndim != 2 or array.shape[1] not in columns:
        raise ConfigError(
            f"{what}: expected shape (n, {' or '.join(map(str, columns))}), found {array.shape}"
        )
    return array


def _camera(matrix: ArrayLike, columns: tuple[int, ...]) -> Floats:
    array = np.asarray(matrix, np.float64)
    rows_wrong = columns == (3, 4) and array.ndim >= 2 and array.shape[-2] != 3
    if array.ndim < 2 or array.shape[-1] not in columns or rows_wrong:
        expected = "(3, 3) or (3, 4)" if columns == (3, 4) else "(n, 3)"
        raise ConfigError(
            f"matrix: expected shape {expected}, or a stack of such matrices, found {array.shape}"
        )
    return array
