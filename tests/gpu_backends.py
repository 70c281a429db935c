"""The GPU backends on the CPU, and the differences allowed between them and the reference."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

# DALI repeats the edge pixel. The other backends ignore pixels outside of the image and renormalize
# the weights. A triangle centered on an outermost pixel has at most 1/8 of its weight outside,
# which is 255 / 8 = 32 of 255, and 255 * (1 - (7/8)^2) = 60 in a corner. Inside of the image both
# compute the same sum, up to rounding.
INTERIOR, RING, CORNER = 1, 32, 60


def needs(module: str, name: str) -> None:
    """Skips the test without an optional package; fails it if FASTLOAD_REQUIRE_<NAME>=1."""
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        if os.environ.get(f"FASTLOAD_REQUIRE_{name.upper()}") == "1":
            pytest.fail(f"not run: {name} is not installed")
        pytest.skip(f"not run: {name} is not installed")


def needs_dali() -> None:
    needs("nvidia.dali", "DALI")


def needs_nvimgcodec() -> None:
    needs("nvidia.nvimgcodec", "nvImageCodec")


def needs_triton() -> None:
    needs("triton", "Triton")


@functools.cache
def dali() -> Any:
    """Returns a DALI backend on the CPU, shared by the whole test run."""
    needs_dali()
    from fastload._decode.gpu.dali import DaliBackend

    return DaliBackend(threads=2)


@functools.cache
def nvjpeg() -> Any:
    """Returns an nvJPEG backend on the CPU, shared by the whole test run."""
    needs_nvimgcodec()
    from fastload._decode.gpu.nvjpeg import NvjpegBackend

    return NvjpegBackend(threads=2)


def max_differences(one: NDArray[Any], other: NDArray[Any]) -> tuple[int, int, int]:
    """Returns the largest differences of two images (H, W, C): interior, edges, corners."""
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


def assert_close_to_reference(one: NDArray[Any], other: NDArray[Any]) -> None:
    """Asserts that two images (H, W, C) differ no more than DALI may differ from the reference."""
    inside, ring, corners = max_differences(one, other)
    assert inside <= INTERIOR
    assert ring <= RING
    assert corners <= CORNER
