"""A work as a file for the C++ driver (native/tests/driver.cpp), which runs it without Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.works import Work


def write_job(work: Work, path: Path, output: tuple[int, int, int, int] | None = None) -> None:
    """Requests and sources of a work; ``output``: channels, planar, dtype, color, as numbers (native/pixels/output.h)."""
    height, width, channels = work.shape
    head = np.array(
        [len(work.requests), len(work.sources), height, width, *(output or (channels, 0, 0, 0))],
        "<i8",
    )
    sizes = np.array([len(data) for data in work.sources], "<u8")
    with path.open("wb") as file:
        for part in (head.tobytes(), work.requests.tobytes(), sizes.tobytes(), *work.sources):
            file.write(part)
