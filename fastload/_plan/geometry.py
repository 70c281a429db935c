"""Crops, resizes and flips folded into one: which box of the source lies where on the canvas. Pure.

Coordinates are continuous: pixel i covers [i, i + 1), its centre is i + 0.5. A flip of a W wide canvas takes x to W - x.
Along each axis a list of crops, resizes, paddings and flips is one straight line, source → canvas, between two edges. They are
followed here as floating point numbers; only at the end are they rounded to whole pixels, once. What the caller gets is a
crop of whole source pixels, resized to a whole number of canvas pixels: the matrix made from those integers is exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


class Views:
    """For each image of a batch: its canvas so far, and what lies on it. Arrays are (2, n): across (x) first, then down (y)."""

    __slots__ = ("bad", "dst0", "dst1", "size", "source", "src0", "src1")

    def __init__(self, source: Floats) -> None:
        self.source = source
        self.size = source  # of the canvas: whole numbers
        self.src0, self.src1 = (
            np.zeros_like(source),
            source,
        )  # source coordinates at the canvas coordinates dst0, dst1;
        self.dst0, self.dst1 = self.src0, source  # mirrored: src0 > src1
        self.bad: dict[int, str] = {}  # slot → why nothing of the image is left

    def crop(self, offset: Floats, size: Floats, *, by: str) -> None:
        """Keeps the window at ``offset`` of the canvas; where it reaches beyond the canvas there is padding."""
        first, last = np.maximum(self.dst0, offset), np.minimum(self.dst1, offset + size)
        empty = np.any(last <= first, axis=0)
        if empty.any():
            self._refuse(empty, by)
            first, last = np.where(empty, self.dst0, first), np.where(empty, self.dst1, last)
        scale = (self.src1 - self.src0) / (self.dst1 - self.dst0)
        self.src0, self.src1 = (
            self.src0 + (first - self.dst0) * scale,
            self.src1 + (last - self.dst1) * scale,
        )
        self.dst0, self.dst1 = first - offset, last - offset
        self.size = np.maximum(self._spread(size), 1.0)

    def resize(self, size: Floats) -> None:
        """Stretches the canvas, and what lies on it, to a new size in whole pixels."""
        # Multiply first: whole numbers then stay exact, and an edge at the canvas's edge stays there.
        self.dst0, self.dst1 = self.dst0 * size / self.size, self.dst1 * size / self.size
        self.size = self._spread(size)

    def place(self, offset: Floats, size: Floats) -> None:
        """Puts the canvas on a larger one."""
        self.dst0, self.dst1 = self.dst0 + offset, self.dst1 + offset
        self.size = self._spread(size)

    def flip(self, which: NDArray[np.bool_]) -> None:
        """Mirrors some images, left to right."""
        across = np.zeros(self.size.shape, bool)
        across[0] = which
        self.src0, self.src1 = (
            np.where(across, self.src1, self.src0),
            np.where(across, self.src0, self.src1),
        )
        self.dst0, self.dst1 = (
            np.where(across, self.size - self.dst1, self.dst0),
            np.where(across, self.size - self.dst0, self.dst1),
        )

    def rounded(self) -> tuple[Ints, NDArray[np.bool_]]:
        """(8, n) integers x, y, w, h (of the source), out_w, out_h, pad_left, pad_top (on the canvas); and flip.

        Each edge goes to the nearest whole pixel, halves upwards, and at least one pixel is left.
        """
        low, high = np.minimum(self.src0, self.src1), np.maximum(self.src0, self.src1)
        flipped = self.src0[0] > self.src1[0]
        first, last = _edges(low, high, self.source)
        left, right = _edges(self.dst0, self.dst1, self.size)
        return np.concatenate([first, last - first, right - left, left]).astype(
            np.int32, order="C"
        ), flipped

    def _spread(self, size: Floats) -> Floats:
        spread = np.empty_like(self.size)
        spread[:] = size
        return spread

    def _refuse(self, empty: NDArray[np.bool_], by: str) -> None:
        for slot in np.flatnonzero(empty).tolist():
            width, height = self.source[:, slot].astype(int).tolist()
            self.bad.setdefault(
                slot, f"{by} leaves nothing of an image of {width}x{height} (width x height) pixels"
            )


def moved_hulls(boxes: Floats, matrix: Floats) -> Floats:
    """(n, 4) boxes x0, y0, x1, y1 → the smallest boxes around them, moved; ``matrix`` is one for all boxes, or one for each."""
    x = boxes[:, 0::2] * matrix[..., 0, 0, None] + matrix[..., 0, 2, None]
    y = boxes[:, 1::2] * matrix[..., 1, 1, None] + matrix[..., 1, 2, None]
    if turns(matrix):
        with np.errstate(invalid="ignore"):  # of a box without end nothing can be said
            x = np.concatenate(
                [x + boxes[:, side, None] * matrix[..., 0, 1, None] for side in (1, 3)], axis=1
            )
            y = np.concatenate(
                [y + boxes[:, side, None] * matrix[..., 1, 0, None] for side in (0, 2)], axis=1
            )
    return np.stack([x.min(axis=1), y.min(axis=1), x.max(axis=1), y.max(axis=1)], axis=1)


def turns(matrix: Floats) -> bool:
    """Whether a matrix does more than scale and shift along the axes."""
    return bool(matrix[..., 0, 1].any() or matrix[..., 1, 0].any())


def _edges(low: Floats, high: Floats, limit: Floats) -> tuple[Floats, Floats]:
    # np.clip costs three times as much as the two that it is made of.
    first = np.minimum(np.maximum(np.floor(low + 0.5), 0.0), limit - 1)
    return first, np.minimum(np.maximum(np.floor(high + 0.5), first + 1), limit)


def matrices(box: Ints, flipped: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(n, 3, 3): from source to canvas coordinates, for what ``Views.rounded`` gave."""
    x, y, w, h, out_w, out_h, left, top = box.astype(np.float64)
    result = np.zeros((len(x), 3, 3))
    scale = out_w / w
    result[:, 0, 0] = np.where(flipped, -scale, scale)
    result[:, 0, 2] = np.where(flipped, left + out_w + x * scale, left - x * scale)
    result[:, 1, 1] = scale = out_h / h
    result[:, 1, 2] = top - y * scale
    result[:, 2, 2] = 1.0
    return result
