"""How fast the dataset's disk reads: real files, past the page cache, for a bounded time."""

from __future__ import annotations

import mmap
import os
import random
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastload._tools.doctor.finding import BAD, LOOK, OK, Check

MOST_SECONDS = 3.0  # for each of the two ways of reading
MOST_BYTES = 512 << 20  # more than the cache of any drive of this speed class
LEAST_BYTES = 16 << 20  # below that opening files is all that is measured
MOST_FILES = 2000
IN_ONE_GO = 8 << 20  # a block of a packed dataset
AT_RANDOM = 128 << 10  # a photo
SLOW_MB_S = 100.0  # a hard disk or a network share; 1,000 photos/s of 110 kB want 110 MB/s
FAIR_MB_S = 500.0  # a SATA SSD; an NVMe gives 2,000 and more
NETWORK = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "lustre", "gluster", "beegfs", "afs")


@dataclass(frozen=True, slots=True)
class Reading:
    """``direct``: past the page cache. Otherwise the kernel was asked to forget the file, which it may not do."""

    bytes: int
    seconds: float
    direct: bool

    @property
    def mb_s(self) -> float:
        """Megabytes a second."""
        return self.bytes / max(self.seconds, 1e-9) / 1e6


def disk_checks(folder: Path | None) -> list[Check]:
    """Nothing is written. Without a folder it is said how to get a figure."""
    if folder is None:
        return [
            Check(
                "disk",
                OK,
                "not measured: give --data DIR, the folder of your images or of the packed dataset",
            )
        ]
    files = list(some_files(folder))
    if not files:
        why = "no file in it that can be read" if folder.exists() else "there is no such folder"
        return [
            Check(
                "disk",
                LOOK,
                f"{folder}: {why}",
                "give --data the folder of your images or of the packed dataset",
            )
        ]
    kind = file_system(folder)
    # Large files first: that is where reading in sequence can be seen at all.
    files.sort(key=lambda path: -path.stat().st_size)
    in_sequence = read(files, piece=IN_ONE_GO, shuffled=False)
    at_random = read(files, piece=AT_RANDOM, shuffled=True)
    if in_sequence.bytes < LEAST_BYTES and in_sequence.seconds < MOST_SECONDS:
        return [
            Check(
                "disk",
                OK,
                f"{folder}: {in_sequence.bytes / 1e6:.0f} MB could be read, too little to measure a disk",
            )
        ]
    return [_judged(in_sequence, at_random, kind)]


def _judged(in_sequence: Reading, at_random: Reading, kind: str) -> Check:
    speed = in_sequence.mb_s
    found = (
        f"{speed:,.0f} MB/s in sequence, {at_random.mb_s:,.0f} MB/s in pieces of 128 KiB at random "
        f"({in_sequence.bytes / 1e6:.0f} MB read{', ' + kind if kind else ''}"
        f"{'' if in_sequence.direct else ', perhaps partly out of the page cache'})"
    )
    if speed < SLOW_MB_S:
        return Check(
            "disk", BAD, found, "too slow to feed a GPU: copy the data to a local NVMe, or into RAM"
        )
    if speed < FAIR_MB_S:
        return Check(
            "disk", LOOK, found, "enough for one GPU if it is read in sequence: fastload pack"
        )
    if kind.startswith(NETWORK):
        return Check(
            "disk",
            LOOK,
            found,
            "a network share is fast until others use it too: keep a local copy",
        )
    if at_random.mb_s < speed / 10:
        return Check(
            "disk",
            LOOK,
            found,
            "single files are read at a tenth of the speed: fastload pack makes reading sequential",
        )
    return Check("disk", OK, found)


def some_files(folder: Path) -> Iterator[Path]:
    """Regular files below the folder, the first ones found, no links to folders; a single file is itself."""
    if folder.is_file():
        yield folder
        return
    found = 0
    for top, folders, names in os.walk(folder, onerror=None, followlinks=False):
        folders.sort()
        for name in sorted(names):
            path = Path(top) / name
            try:
                mode = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(mode.st_mode) and mode.st_size:
                found += 1
                yield path
                if found >= MOST_FILES:
                    return


def read(files: list[Path], *, piece: int, shuffled: bool) -> Reading:
    """Reads pieces until time or bytes are used up."""
    sizes = {path: path.stat().st_size for path in files}
    pieces = [
        (path, offset) for path in files for offset in range(0, min(sizes[path], MOST_BYTES), piece)
    ]
    if shuffled:
        random.Random(0).shuffle(pieces)
    done = 0
    direct = True
    spent = 0.0
    buffer = mmap.mmap(-1, piece)  # page-aligned, as O_DIRECT demands
    try:
        for path, offset in pieces:
            if spent > MOST_SECONDS or done >= MOST_BYTES:
                break
            started = time.perf_counter()
            # No more than is there: O_DIRECT holds every page of the buffer, used or not.
            wanted = min(piece, -(-(sizes[path] - offset) // mmap.PAGESIZE) * mmap.PAGESIZE)
            n, was_direct = _read_piece(path, offset, buffer, wanted)
            spent += time.perf_counter() - started
            done = done + n
            direct = direct and was_direct
    finally:
        buffer.close()
    return Reading(done, spent, direct)


def _read_piece(path: Path, offset: int, buffer: mmap.mmap, wanted: int) -> tuple[int, bool]:
    for flag in (getattr(os, "O_DIRECT", 0), 0):
        try:
            file = os.open(path, os.O_RDONLY | flag)
        except OSError:  # tmpfs and some network file systems know no O_DIRECT
            continue
        try:
            if not flag and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file, offset, wanted, os.POSIX_FADV_DONTNEED)
            with memoryview(buffer) as view, view[:wanted] as part:
                return os.preadv(file, [part], offset), bool(flag)
        except OSError:
            continue
        finally:
            os.close(file)
    return 0, False


def file_system(folder: Path) -> str:
    """Type of the file system a folder is on: the mount with the longest path that holds it."""
    import psutil

    here = str(folder.resolve())
    mounts = [
        (len(part.mountpoint), part.fstype)
        for part in psutil.disk_partitions(all=True)
        if here == part.mountpoint or here.startswith(part.mountpoint.rstrip("/") + "/")
    ]
    return max(mounts)[1] if mounts else ""
