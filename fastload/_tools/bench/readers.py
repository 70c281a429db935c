"""Reading runs of bytes out of shard files: by threads, warm or cold, and past the page cache."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastload.errors import ConfigError

PIECE = 1 << 20  # bytes a read
_DIRECT_PIECE = 4 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of a file that lie together: a record, or a block of records."""

    path: Path
    offset: int
    length: int


def read_runs(runs: Sequence[Run], *, readers: int, most_s: float) -> float:
    """Bytes per second of ``readers`` threads that take one run after another, in this order, until all are read or time is up."""
    return _read(runs, readers=readers, most_s=most_s, piece=PIECE)


def read_direct(paths: Sequence[Path], *, readers: int, most_s: float) -> float:
    """Bytes per second in sequence past the page cache (O_DIRECT), ``readers`` pieces at a time; raises OSError where that cannot be."""
    if not hasattr(os, "O_DIRECT"):
        raise OSError(errno.EINVAL, "not on this system")
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
    totals = [0] * readers
    errors: list[OSError] = []
    begin = time.perf_counter()

    def work(number: int) -> None:
        buffer = memoryview(mmap.mmap(-1, piece))  # aligned to pages, as O_DIRECT needs it
        while time.perf_counter() - begin < most_s:
            with lock:
                run = next(pending, None)
            if run is None:
                return
            try:
                for start in range(0, run.length, piece):
                    view = buffer[: min(piece, run.length - start)]
                    totals[number] += os.preadv(files[run.path], [view], run.offset + start)
            except OSError as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    for descriptor in files.values():
        os.close(descriptor)
    if errors:
        raise errors[0]
    return sum(totals) / seconds


def evict(paths: Sequence[Path]) -> float:
    """Asks the kernel to forget these files; the share of their pages that is still in memory afterwards."""
    pages = resident = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(descriptor)  # dirty pages are not dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            here = pages_here(descriptor)
        finally:
            os.close(descriptor)
        resident += sum(here)
        pages += len(here)
    return resident / max(pages, 1)


def pages_here(descriptor: int) -> list[bool]:
    """Which pages of a file are in memory, by mincore."""
    size = os.fstat(descriptor).st_size
    if not size:
        return []
    count = -(-size // mmap.PAGESIZE)
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED) as mapped:
        found = (ctypes.c_ubyte * count)()
        address = int(np.frombuffer(mapped, np.uint8, 1).__array_interface__["data"][0])
        if _LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), found):
            raise ConfigError(f"mincore: {os.strerror(ctypes.get_errno())}")
        return [bool(byte & 1) for byte in bytes(found)]
