"""The GPU backends on the CPU, for tests, and what is allowed between them and the exact reference."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

# DALI repeats the edge pixel, the others leave out what is outside and renormalize. A triangle centerd on an outermost pixel has at most
# 1/8 of its weight outside: 255 / 8 = 32 levels, and 255 * (1 - (7/8)^2) = 60 in a corner. Inside both are the same sum, rounded.
INTERIOR, RING, CORNER = 1, 32, 60


def needs_dali() -> None:
    """Skips the test without DALI; fails it under FASTLOAD_REQUIRE_DALI=1."""
    if (
        importlib.util.find_spec("nvidia") is None
        or importlib.util.find_spec("nvidia.dali") is None
    ):
        if os.environ.get("FASTLOAD_REQUIRE_DALI") == "1":
            pytest.fail("not run: DALI is not installed")
        pytest.skip("not run: DALI is not installed")


@functools.cache
def dali() -> Any:
    """One for the whole test run, on the CPU."""
    needs_dali()
    from fastload._decode.gpu.dali import DaliBackend

    return DaliBackend(threads=2)


def worst(one: NDArray[Any], other: NDArray[Any]) -> tuple[int, int, int]:
    """(interior, ring, corners): the largest difference of two images (H, W, C)."""
    off = np.abs(np.asarray(one, np.int64) - np.asarray(other, np.int64))
    corners = max(int(off[y, x].max()) for y in (0, -1) for x in (0, -1))
    off[[0, 0, -1, -1], [0, -1, 0, -1]] = 0
    inside = off[1:-1, 1:-1]
    ring = (
        int(off.max())
        if not inside.size
        else max(int(side.max()) for side in (off[0], off[-1], off[:, 0], off[:, -1]))
    )
    return (int(inside.max()) if inside.size else 0), ring, corners
