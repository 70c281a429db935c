"""Combines the crops, resizes and flips of a list into one crop, one resize and one flip.

Coordinates are continuous: pixel i covers [i, i + 1) and its center is i + 0.5. A flip of a canvas
of width W maps x to W - x. Along each axis, a sequence of crops, resizes, paddings and flips is one
linear map from source to canvas between two edges. The edges are floating-point numbers, rounded to
whole pixels once, at the end. The result is a crop of whole source pixels, resized to a whole
number of canvas pixels. The matrix computed from these integers is therefore exact.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fastload._plan.arguments import Range, Size
from fastload._plan.rng import Draws

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Flags = NDArray[np.bool_]

N_TRIES = 10  # same as torchvision


class CropGeometry:
    """The canvas of each image in a batch, and the part of the source that it shows.

    Arrays are (2, n): x first, then y.
    """

    __slots__ = ("bad", "dst0", "dst1", "size", "source", "src0", "src1")

    def __init__(self, source: Floats) -> None:
        self.source = source
        self.size = source  # of the canvas, in whole pixels
        # Source coordinates src0 and src1 map to canvas coordinates dst0 and dst1. A mirrored image
        # has src0 > src1.
        self.src0 = np.zeros_like(source)
        self.src1 = source
        self.dst0 = self.src0
        self.dst1 = source
        self.bad: dict[int, str] = {}  # slot → reason why the crop is empty

    def crop(self, offset: Floats, size: Floats, *, by: str) -> None:
        """Keeps a window of the canvas. A window that exceeds the canvas adds padding."""
        first = np.maximum(self.dst0, offset)
        last = np.minimum(self.dst1, offset + size)
        empty = np.any(last <= first, axis=0)
        if empty.any():
            self._mark_bad(empty, by)
            first = np.where(empty, self.dst0, first)
            last = np.where(empty, self.dst1, last)
        scale = (self.src1 - self.src0) / (self.dst1 - self.dst0)
        self.src0 = self.src0 + (first - self.dst0) * scale
        self.src1 = self.src1 + (last - self.dst1) * scale
        self.dst0 = first - offset
        self.dst1 = last - offset
        self.size = np.maximum(self._per_sample(size), 1.0)

    def resize(self, size: Floats) -> None:
        """Stretches the canvas and its content to a new size in whole pixels."""
        # Multiply first: whole numbers stay exact, and an edge on the border stays on the border.
        self.dst0 = self.dst0 * size / self.size
        self.dst1 = self.dst1 * size / self.size
        self.size = self._per_sample(size)

    def place(self, offset: Floats, size: Floats) -> None:
        """Places the canvas on a larger canvas."""
        self.dst0 = self.dst0 + offset
        self.dst1 = self.dst1 + offset
        self.size = self._per_sample(size)

    def flip(self, which: Flags) -> None:
        """Mirrors the selected images left to right."""
        mirror = np.zeros(self.size.shape, bool)
        mirror[0] = which
        src0 = self.src0
        self.src0 = np.where(mirror, self.src1, src0)
        self.src1 = np.where(mirror, src0, self.src1)
        dst0 = self.dst0
        self.dst0 = np.where(mirror, self.size - self.dst1, dst0)
        self.dst1 = np.where(mirror, self.size - dst0, self.dst1)

    def rounded(self) -> tuple[Ints, Flags]:
        """Returns (8, n) integers and a flip per image.

        The integers are x, y, w, h, out_w, out_h, pad_left, pad_top, as in ``PlanRows``. Each
        edge is rounded to the nearest whole pixel, halves up. At least one pixel remains.
        """
        low = np.minimum(self.src0, self.src1)
        high = np.maximum(self.src0, self.src1)
        first, last = _rounded_edges(low, high, self.source)
        left, right = _rounded_edges(self.dst0, self.dst1, self.size)
        box = np.concatenate([first, last - first, right - left, left])
        return box.astype(np.int32, order="C"), self.src0[0] > self.src1[0]

    def _per_sample(self, size: Floats) -> Floats:
        spread = np.empty_like(self.size)
        spread[:] = size
        return spread

    def _mark_bad(self, empty: Flags, by: str) -> None:
        for slot in np.flatnonzero(empty).tolist():
            width, height = self.source[:, slot].astype(int).tolist()
            why = f"{by} leaves nothing of an image of {width}x{height} (width x height) pixels"
            self.bad.setdefault(slot, why)


def xy(size: Size) -> Floats:
    """Returns (height, width) as a (2, 1) array, x first, for the (2, n) arrays of CropGeometry."""
    return np.array([[size[1]], [size[0]]], np.float64)


def source_to_canvas(box: Ints, flipped: Flags) -> Floats:
    """Returns the (n, 3, 3) matrices for the result of ``CropGeometry.rounded``."""
    x, y, w, h, out_w, out_h, left, top = box.astype(np.float64)
    result = np.zeros((len(x), 3, 3))
    scale = out_w / w
    result[:, 0, 0] = np.where(flipped, -scale, scale)
    result[:, 0, 2] = np.where(flipped, left + out_w + x * scale, left - x * scale)
    result[:, 1, 1] = scale = out_h / h
    result[:, 1, 2] = top - y * scale
    result[:, 2, 2] = 1.0
    return result


def random_boxes(
    sizes: Floats, draws: Draws, *, skip: int, scale: Range, ratio: Range, margin: int = 0
) -> tuple[Floats, Floats, Flags]:
    """Draws a box per canvas: (2, n) offsets, (2, n) sizes, and a flag that is False on failure.

    The algorithm is torchvision's: the area is uniform in ``scale`` (a fraction of the canvas), the
    logarithm of width / height is uniform in ``ratio``, and the first of ten tries that fits wins.
    A box must be ``margin`` pixels smaller than the canvas. Each try uses one block of ``draws``
    after the first ``skip`` blocks. More blocks are drawn only for the samples that need them.
    """
    log_ratio = (math.log(ratio[0]), math.log(ratio[1]))
    offset, extent, found = _first_fit(sizes, draws.values[4 * skip :], scale, log_ratio, margin)
    if not found.all():
        drawn = len(draws.values) // 4 - skip
        left = np.flatnonzero(~found)
        values = draws.more(left, skip + drawn, N_TRIES - drawn)
        offset[:, left], extent[:, left], found[left] = _first_fit(
            sizes[:, left], values, scale, log_ratio, margin
        )
    return offset, extent, found


def _first_fit(
    sizes: Floats, values: Floats, scale: Range, log_ratio: Range, margin: int
) -> tuple[Floats, Floats, Flags]:
    """Returns the first box that fits. ``values`` is (4 * tries, n): area, ratio, x, y."""
    tries = values.reshape(len(values) // 4, 4, values.shape[1])
    area = (sizes[0] * sizes[1]) * (scale[0] + tries[:, 0] * (scale[1] - scale[0]))
    # np.exp is the only function here that may differ in the last bit between machines. That moves
    # about one crop in 1e13 by one pixel.
    ratio = np.exp(log_ratio[0] + tries[:, 1] * (log_ratio[1] - log_ratio[0]))
    extents = np.rint(np.sqrt([area * ratio, area / ratio]))  # (2, tries, n)
    fits = np.all((extents >= 1) & (extents <= sizes[:, None] - margin), axis=0)  # (tries, n)
    first = fits.argmax(axis=0)
    every = np.arange(fits.shape[1])
    extent = extents[:, first, every]
    offset = np.floor(tries[first, 2:, every].T * (sizes - extent + 1))
    return offset, extent, fits[first, every]


def moved_hulls(boxes: Floats, matrix: Floats) -> Floats:
    """Returns the axis-aligned bounding boxes of transformed (n, 4) boxes.

    ``matrix`` is one matrix for all boxes, or one per box.
    """
    x = boxes[:, 0::2] * matrix[..., 0, 0, None] + matrix[..., 0, 2, None]
    y = boxes[:, 1::2] * matrix[..., 1, 1, None] + matrix[..., 1, 2, None]
    if rotates(matrix):
        with np.errstate(invalid="ignore"):  # infinite boxes
            x = np.concatenate(
                [x + boxes[:, side, None] * matrix[..., 0, 1, None] for side in (1, 3)], axis=1
            )
            y = np.concatenate(
                [y + boxes[:, side, None] * matrix[..., 1, 0, None] for side in (0, 2)], axis=1
            )
    return np.stack([x.min(axis=1), y.min(axis=1), x.max(axis=1), y.max(axis=1)], axis=1)


def rotates(matrix: Floats) -> bool:
    """Whether a matrix does more than scale and translate along the axes."""
    return bool(matrix[..., 0, 1].any() or matrix[..., 1, 0].any())


def _rounded_edges(low: Floats, high: Floats, limit: Floats) -> tuple[Floats, Floats]:
    # np.clip costs three times as much as np.minimum and np.maximum.
    first = np.minimum(np.maximum(np.floor(low + 0.5), 0.0), limit - 1)
    return first, np.minimum(np.maximum(np.floor(high + 0.5), first + 1), limit)
