"""The frozen list of what is to be packed: on disk, so that memory stays small and a resumed pack sees the same list.

``listing.jsonl`` has one JSON value a line, ``listing.offsets`` where each line starts (uint64), both written once.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from fastload.errors import ConfigError, CorruptManifest
from fastload.pack.sources.base import Ref

LINES, OFFSETS = "listing.jsonl", "listing.offsets"
_FLUSH = 65_536        # offsets kept in memory before they are written


def write_listing(folder: Path, refs: Iterable[Ref], on_progress: Callable[[int], None]) -> None:
    """Writes the list under a temporary name and renames it when it is whole; the offsets come last, so they prove it."""
    offsets: list[int] = [0]
    lines_path, offsets_path = folder / (LINES + ".tmp"), folder / (OFFSETS + ".tmp")
    with lines_path.open("wb") as lines, offsets_path.open("wb") as index:
        end = count = 0
        for count, ref in enumerate(refs, start=1):
            end += lines.write(json.dumps(ref, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n")
            offsets.append(end)
            if len(offsets) >= _FLUSH:
                index.write(np.array(offsets, "<u8").tobytes())
                offsets.clear()
                on_progress(count)
        index.write(np.array(offsets, "<u8").tobytes())
        for file in (lines, index):
            file.flush()
            os.fsync(file.fileno())
    on_progress(count)
    lines_path.replace(folder / LINES)
    offsets_path.replace(folder / OFFSETS)


class Listing:
    """The list, mapped: ``len`` and ``listing[i]`` → the ref of the i-th source sample."""

    def __init__(self, folder: Path) -> None:
        self._offsets = np.memmap(folder / OFFSETS, "<u8", "r")
        size = (folder / LINES).stat().st_size
        if int(self._offsets[-1]) != size:
            raise CorruptManifest(f"{folder / LINES} has {size} bytes, expected {int(self._offsets[-1])}: "
                                  f"remove {folder} and pack again")
        self._map = None
        if size:
            with (folder / LINES).open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @staticmethod
    def exists(folder: Path) -> bool:
        """A whole listing is there."""
        return (folder / OFFSETS).exists()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, i: int) -> Ref:
        if self._map is None or not 0 <= i < len(self):
            raise ConfigError(f"entry {i} of a list of {len(self)}")
        ref: Ref = json.loads(self._map[int(self._offsets[i]):int(self._offsets[i + 1])])
        return ref
