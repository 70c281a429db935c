"""Files whose pages are, or are not, in memory."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest


def pages_here(path: Path) -> list[bool]:
    """Which pages of a file are in memory."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        found = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        assert not ctypes.CDLL(None).mincore(ctypes.byref(ctypes.c_char.from_buffer(mapped)), ctypes.c_size_t(len(mapped)), found)
        return [bool(each & 1) for each in found]


def thrown_out(path: Path) -> Path:
    """A file none of whose pages is in memory."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if any(pages_here(path)):
        pytest.skip("this file system keeps its files in memory")
    return path
