"""The frozen list of samples to pack.

It is on disk, so memory stays small and a resumed pack sees the same list. ``listing.jsonl`` has
one JSON value per line. ``listing.offsets`` has, as uint64, the start of each line, the end of the
last line, and the checksums of both files. Both files are written once.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from fastload._common import files
from fastload._common.checksum import crc32c
from fastload._common.files import NewFile
from fastload._pack.sources.base import Ref
from fastload._pack.state import damaged
from fastload.errors import ConfigError

LINES = "listing.jsonl"
OFFSETS = "listing.offsets"
_CHUNK_LINES = 4096  # lines per write


def write_listing(folder: Path, refs: Iterable[Ref], on_progress: Callable[[int], None]) -> None:
    """Writes and publishes both files. The offsets are published last and prove completeness."""
    with NewFile(folder / LINES) as lines, NewFile(folder / OFFSETS) as offsets:
        count = lines_crc = 0
        first = np.zeros(1, "<u8").tobytes()
        offsets.write(first)
        offsets_crc = crc32c(first)
        for chunk in _chunks(refs):
            ends = (lines.size + np.cumsum([len(line) for line in chunk])).astype("<u8").tobytes()
            data = b"".join(chunk)
            lines.write(data)
            offsets.write(ends)
            lines_crc = crc32c(data, lines_crc)
            offsets_crc = crc32c(ends, offsets_crc)
            count += len(chunk)
            on_progress(count)
        offsets.write((lines_crc << 32 | offsets_crc).to_bytes(8, "little"))
        lines.publish()
        offsets.publish()


def _chunks(refs: Iterable[Ref]) -> Iterator[list[bytes]]:
    remaining = iter(refs)
    while chunk := list(itertools.islice(remaining, _CHUNK_LINES)):
        yield [
            json.dumps(ref, allow_nan=False, separators=(",", ":")).encode() + b"\n"
            for ref in chunk
        ]


class Listing:
    """The memory-mapped list: ``listing[i]`` is the ref of source sample i.

    Raises StoreError if the files are damaged.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._lines, lines_crc = _mapped(folder / LINES)
            self._index, _ = _mapped(folder / OFFSETS)
            stored = np.frombuffer(self._index, "<u8")
        except (OSError, ValueError) as error:  # ValueError: the size is not a multiple of 8
            raise damaged(folder / LINES, str(error)) from None
        self._offsets = stored[:-1]
        if not len(self._offsets) or int(stored[-1]) != lines_crc << 32 | crc32c(
            memoryview(self._index)[:-8]
        ):
            raise damaged(folder / LINES, "wrong checksum")

    @staticmethod
    def exists(folder: Path) -> bool:
        """Returns whether the folder has a complete listing."""
        return (folder / OFFSETS).exists()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, i: int) -> Ref:
        if not 0 <= i < len(self):
            raise ConfigError(f"listing entry {i}: expected 0 to {len(self) - 1}")
        ref: Ref = json.loads(self._lines[int(self._offsets[i]) : int(self._offsets[i + 1])])
        return ref

    def close(self) -> None:
        """Unmaps the files. Deleted files keep their disk space while they are mapped."""
        # Drop the references instead of calling close(), which raises BufferError while a thread or
        # a debugger still holds an array over the map.
        self._offsets = np.zeros(1, "<u8")
        self._lines = self._index = b""


def _mapped(path: Path) -> tuple[mmap.mmap | bytes, int]:
    """Returns a mapped file and its CRC-32C. An empty file cannot be mapped."""
    descriptor, size = files.open_regular(path)
    try:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b"", int(
            files.crc32c_of(descriptor), 16
        )
    finally:
        os.close(descriptor)
