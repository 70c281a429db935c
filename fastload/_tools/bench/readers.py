"""Reading runs of bytes out of shard files: by threads, warm or cold, and past the page cache."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """Bytes a second of ``readers`` threads that take one run after another, in this order, until all are read or time is up."""
    files = {path: os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in {run.path for run in runs}}
    taken = iter(runs)
    lock = threading.Lock()
    total = [0] * readers
    begin = time.perf_counter()

    def read(number: int) -> None:
        buffer = bytearray(PIECE)
        view = memoryview(buffer)
        while time.perf_counter() - begin < most_s:
            with lock:
                run = next(taken, None)
            if run is None:
                return
            for start in range(0, run.length, PIECE):
                total[number] += os.preadv(
                    files[run.path], [view[: min(PIECE, run.length - start)]], run.offset + start
                )

    _together(read, readers)
    seconds = time.perf_counter() - begin
    for descriptor in files.values():
        os.close(descriptor)
    return sum(total) / seconds


def read_direct(paths: Sequence[Path], *, readers: int, most_s: float) -> float:
    """Bytes a second in sequence past the page cache (O_DIRECT), ``readers`` pieces at a time; raises OSError where that cannot be."""
    if not hasattr(os, "O_DIRECT"):
        raise OSError(errno.EINVAL, "not on this system")
    files = {path: os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT) for path in paths}
    pieces = iter(
        [(path, start) for path in paths for start in range(0, path.stat().st_size, _DIRECT_PIECE)]
    )
    lock = threading.Lock()
    total = [0] * readers
    wrong = list[OSError]()
    begin = time.perf_counter()

    def read(number: int) -> None:
        with mmap.mmap(-1, _DIRECT_PIECE) as memory:  # aligned to pages, as O_DIRECT wants it
            while time.perf_counter() - begin < most_s:
                with lock:
                    piece = next(pieces, None)
                if piece is None:
                    return
                try:
                    total[number] += os.preadv(files[piece[0]], [memory], piece[1])
                except OSError as error:
                    wrong.append(error)
                    return

    _together(read, readers)
    seconds = time.perf_counter() - begin
    for descriptor in files.values():
        os.close(descriptor)
    if wrong:
        raise wrong[0]
    return sum(total) / seconds


def _together(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


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
        address = _address(mapped)
        if _LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), found):
            raise ConfigError(f"mincore: {os.strerror(ctypes.get_errno())}")
        return [bool(byte & 1) for byte in bytes(found)]


def _address(mapped: mmap.mmap) -> int:
    import numpy as np

    return int(np.frombuffer(mapped, np.uint8, 1).__array_interface__["data"][0])
