"""Random boxes of a given area and ratio, as torchvision draws them, for whole batches. Pure."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fastload._plan.geometry import Floats
from fastload._plan.rng import Draws

Flags = NDArray[np.bool_]
Range = tuple[float, float]

TRIES = 10  # torchvision's


def random_boxes(
    sizes: Floats, draws: Draws, *, skip: int, scale: Range, ratio: Range, margin: int = 0
) -> tuple[Floats, Floats, Flags]:
    """(2, n) offsets and (2, n) extents of boxes in canvases of ``sizes``, and which of the n succeeded within ten tries.

    Drawn are the area as a share, uniform in ``scale``, and the logarithm of width / height, uniform between those of ``ratio``.
    ``margin``: pixels that a box must be smaller than the canvas. The numbers are those of ``draws`` behind ``skip`` blocks, a block
    a try; tries beyond what has been drawn are drawn here, for those samples only that need them.
    """
    log_ratio = math.log(ratio[0]), math.log(ratio[1])
    offset, extent, found = _first_fit(sizes, draws.values[4 * skip :], scale, log_ratio, margin)
    drawn = len(draws.values) // 4 - skip
    if not found.all():
        left = np.flatnonzero(~found)
        values = draws.more(left, skip + drawn, TRIES - drawn)
        offset[:, left], extent[:, left], found[left] = _first_fit(
            sizes[:, left], values, scale, log_ratio, margin
        )
    return offset, extent, found


def _first_fit(
    sizes: Floats, values: Floats, scale: Range, log_ratio: Range, margin: int
) -> tuple[Floats, Floats, Flags]:
    """``values`` is (4 * tries, n): area, ratio, x, y. Of the tries whose box fits, the first counts."""
    tries = values.reshape(len(values) // 4, 4, values.shape[1])
    area = (sizes[0] * sizes[1]) * (scale[0] + tries[:, 0] * (scale[1] - scale[0]))
    # np.exp is the one function here that may differ in the last bit between machines; it moves a crop by a pixel once in ~1e13.
    ratio = np.exp(log_ratio[0] + tries[:, 1] * (log_ratio[1] - log_ratio[0]))
    extents = np.rint(np.sqrt([area * ratio, area / ratio]))  # (2, tries, n)
    fits = np.all((extents >= 1) & (extents <= sizes[:, None] - margin), axis=0)  # (tries, n)
    first, every = fits.argmax(axis=0), np.arange(fits.shape[1])
    extent = extents[:, first, every]
    offset = np.floor(tries[first, 2:, every].T * (sizes - extent + 1))
    return offset, extent, fits[first, every]
