"""Reads runs of bytes from shard files with threads: warm, cold, or bypassing the page cache."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastload.errors import ConfigError

PIECE = 1 << 20  # bytes per read call
_DIRECT_PIECE = 4 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Run:
    """Contiguous bytes of a file: a record, or a block of records."""

    path: Path
    offset: int
    length: int


def read_runs(runs: Sequence[Run], *, readers: int, most_s: float) -> float:
    """Reads ``runs`` in this order with ``readers`` threads and returns bytes per second.

    Stops after ``most_s`` seconds even if some runs are left.
    """
    return _read(runs, readers=readers, most_s=most_s, piece=PIECE)


def read_direct(paths: Sequence[Path], *, readers: int, most_s: float) -> float:
    """Reads files sequentially with O_DIRECT, ``readers`` pieces at a time; bytes per second.

    Raises OSError if the file system does not support O_DIRECT.
    """
    if not hasattr(os, "O_DIRECT"):
        raise OSError(errno.EINVAL, "not supported on this system")
    runs = [
        Run(path, start, _DIRECT_PIECE)
        for path in paths
        for start in range(0, path.stat().st_size, _DIRECT_PIECE)
    ]
    return _read(runs, readers=readers, most_s=most_s, piece=_DIRECT_PIECE, flags=os.O_DIRECT)


def _read(runs: Sequence[Run], *, readers: int, most_s: float, piece: int, flags: int = 0) -> float:
    paths = {run.path for run in runs}
    files = {path: os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags) for path in paths}
    pending = iter(runs)
    lock = threading.Lock()
    begin = time.perf_counter()

    def read_pending(_: int) -> int:
        total = 0
        buffer = memoryview(mmap.mmap(-1, piece))  # O_DIRECT needs page alignment
        while time.perf_counter() - begin < most_s:
            with lock:
                run = next(pending, None)
            if run is None:
                break
            for start in range(0, run.length, piece):
                view = buffer[: min(piece, run.length - start)]
                total += os.preadv(files[run.path], [view], run.offset + start)
        return total

    try:
        with ThreadPoolExecutor(readers) as pool:
            n_bytes = sum(pool.map(read_pending, range(readers)))
        return n_bytes / (time.perf_counter() - begin)
    finally:
        for descriptor in files.values():
            os.close(descriptor)


def evict(paths: Sequence[Path]) -> float:
    """Drops files from the page cache; returns the share of their pages that stays in memory."""
    pages = resident = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(descriptor)  # the kernel does not drop dirty pages
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            in_memory = resident_pages(descriptor)
        finally:
            os.close(descriptor)
        resident += sum(in_memory)
        pages += len(in_memory)
    return resident / max(pages, 1)


def resident_pages(descriptor: int) -> list[bool]:
    """Which pages of a file are in memory, according to mincore."""
    size = os.fstat(descriptor).st_size
    if not size:
        return []
    count = -(-size // mmap.PAGESIZE)
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED) as mapped:
        found = (ctypes.c_ubyte * count)()
        address = int(np.frombuffer(mapped, np.uint8, 1).__array_interface__["data"][0])
        if _LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), found):
            raise ConfigError(f"mincore failed: {os.strerror(ctypes.get_errno())}")
        return [bool(byte & 1) for byte in bytes(found)]
