"""EXIF orientation as numbers: what turns a stored image into the one that is shown. Pure."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)

# For each orientation: transpose first, then flip left-right, then flip top-bottom.
STEPS = {1: (False, False, False), 2: (False, True, False), 3: (False, True, True), 4: (False, False, True),
         5: (True, False, False), 6: (True, True, False), 7: (True, True, True), 8: (True, False, True)}


def orient(pixels: NDArray[Scalar], orientation: int) -> NDArray[Scalar]:
    """The image as it is shown; (H, W, ...) in, a view where possible out. 0 and 1 mean: as stored."""
    transpose, mirror, flip = STEPS.get(orientation, STEPS[1])
    if transpose:
        pixels = pixels.swapaxes(0, 1)
    if mirror:
        pixels = pixels[:, ::-1]
    return pixels[::-1] if flip else pixels
