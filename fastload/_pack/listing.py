"""The frozen list of what is to be packed: on disk, so that memory stays small and a resumed pack sees the same list.

``listing.jsonl`` has one JSON value a line; ``listing.offsets`` where each line starts, where the last one ends, and the
checksums of both files (uint64). Both are written once.
"""

from __future__ import annotations

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
_TOGETHER = 4096  # lines written at a time


def write_listing(folder: Path, refs: Iterable[Ref], on_progress: Callable[[int], None]) -> None:
    """Writes the list and names both files when they are whole; the offsets come last, so they prove it."""
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
    chunk: list[bytes] = []
    for ref in refs:
        chunk.append(
            json.dumps(ref, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
            + b"\n"
        )
        if len(chunk) == _TOGETHER:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class Listing:
    """The list, mapped: ``len`` and ``listing[i]`` → the ref of the i-th source sample. Raises StoreError if it is damaged."""

    def __init__(self, folder: Path) -> None:
        try:
            self._lines, lines_crc = _mapped(folder / LINES)
            self._index, _ = _mapped(folder / OFFSETS)
            stored = np.frombuffer(self._index, "<u8")
        except (OSError, ValueError) as error:  # numpy: half a number
            raise damaged(folder / LINES, str(error)) from None
        self._offsets = stored[:-1]
        if not len(self._offsets) or int(stored[-1]) != lines_crc << 32 | crc32c(
            memoryview(self._index)[:-8]
        ):
            raise damaged(folder / LINES, "its checksum is wrong")

    @staticmethod
    def exists(folder: Path) -> bool:
        """A whole listing is there."""
        return (folder / OFFSETS).exists()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, i: int) -> Ref:
        if not 0 <= i < len(self):
            raise ConfigError(f"entry {i} of a list of {len(self)}")
        ref: Ref = json.loads(self._lines[int(self._offsets[i]) : int(self._offsets[i + 1])])
        return ref

    def close(self) -> None:
        """Lets go of the files: removed ones keep their space as long as they are mapped."""
        # By dropping them: closing a map raises BufferError while anybody, a thread or a debugger, still looks at an array over it.
        self._offsets = np.zeros(1, "<u8")
        self._lines = self._index = b""


def _mapped(path: Path) -> tuple[mmap.mmap | bytes, int]:
    """A file's bytes, mapped (an empty file cannot be), and their CRC-32C."""
    descriptor, size = files.open_regular(path)
    try:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b"", int(
            files.crc32c_of(descriptor), 16
        )
    finally:
        os.close(descriptor)
