"""nvImageCodec on the CPU and Triton without a GPU, for tests."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import pytest


def needs(module: str, name: str) -> None:
    """Skips the test without an optional package; fails it under FASTLOAD_REQUIRE_<NAME>=1."""
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        if os.environ.get(f"FASTLOAD_REQUIRE_{name.upper()}") == "1":
            pytest.fail(f"not run: {name} is not installed")
        pytest.skip(f"not run: {name} is not installed")


def needs_nvimgcodec() -> None:
    """Skips without nvImageCodec."""
    needs("nvidia.nvimgcodec", "nvImageCodec")


def needs_triton() -> None:
    """Skips without Triton."""
    needs("triton", "Triton")


@functools.cache
def nvjpeg() -> Any:
    """One for the whole test run, on the CPU."""
    needs_nvimgcodec()
    from fastload._decode.gpu.nvjpeg import NvjpegBackend

    return NvjpegBackend(threads=2)
