"""Opening, digesting and publishing files: what shards, columns and the manifest have in common."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fastload._common.checksum import crc32c
from fastload.errors import StoreError

_CHUNK = 1 << 18  # stays in the second-level cache: SHA-256 is then a tenth faster than with 1 MiB
_MOST_PIECES = 1024  # that Linux takes in one call
_TEMPORARY_SUFFIX = ".tmp-"  # NAME.tmp-PID: a file that is not published yet


def open_regular(path: Path) -> tuple[int, int]:
    """(descriptor, size) of a regular file; links are not followed and nothing blocks; raises OSError."""
    # O_NONBLOCK: opening a FIFO somebody put there would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor, status.st_size


def read_regular(path: Path, *, most: int) -> bytes:
    """All bytes of a regular file; raises OSError, also for a file of more than ``most`` bytes."""
    descriptor, size = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        if size > most:
            raise OSError(errno.EFBIG, f"{size} bytes, at most {most}", str(path))
        return file.read(size + 1)


def sha256_of(descriptor: int, *, first_last: int = 0) -> str:
    """Hex digest of a whole open file, piece by piece; its first ``first_last`` bytes, if there are so many, come last."""
    digest = hashlib.sha256()
    _each_chunk(descriptor, digest.update, start=first_last)
    digest.update(os.pread(descriptor, first_last, 0))
    return digest.hexdigest()


def crc32c_of(descriptor: int) -> str:
    """CRC-32C of a whole open file, 8 hex digits."""
    crc = 0

    def update(piece: memoryview) -> None:
        nonlocal crc
        crc = crc32c(piece, crc)

    _each_chunk(descriptor, update)
    return f"{crc:08x}"


def _each_chunk(descriptor: int, update: Callable[[memoryview], object], start: int = 0) -> None:
    buffer = memoryview(bytearray(_CHUNK))
    position = start
    while n_bytes := os.preadv(descriptor, [buffer], position):
        update(buffer[:n_bytes])
        position += n_bytes


def write_all(descriptor: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
    """Appends all of them, uncopied; raises OSError."""
    for start in range(0, len(pieces), _MOST_PIECES):
        some = pieces[start : start + _MOST_PIECES]
        written = os.writev(descriptor, some)
        left = (
            memoryview(b"")
            if written == sum(map(len, some))
            else memoryview(b"".join(some))[written:]
        )
        while left:  # a disk that is nearly full: the next call says so
            left = left[os.write(descriptor, left) :]


def temporary_path(path: Path) -> Path:
    """Where a file is written before it is published: same folder, so that a rename is enough."""
    return path.with_name(f"{path.name}{_TEMPORARY_SUFFIX}{os.getpid()}")


def is_temporary(name: str) -> bool:
    """Whether a file name is one of ``temporary_path``'s: left behind by a pack that was killed, or still being written."""
    _, mark, pid = name.rpartition(_TEMPORARY_SUFFIX)
    return bool(mark) and pid.isdecimal()


def sync_dir(folder: Path) -> None:
    """Makes renames in a folder survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: Path, path: Path) -> None:
    """Gives a finished, synced file its name; afterwards it is whole or not there, whatever happens."""
    temporary.rename(path)
    sync_dir(path.parent)


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a small file so that a reader, or the next start after a crash, sees all of it or none."""
    temporary = temporary_path(path)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        publish(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise write_error(error, path, needed=len(data)) from error


def write_error(error: OSError, path: Path, *, needed: int) -> StoreError:
    """What to raise for a failed write: a full disk says so, with what it takes and what there is."""
    return write_failure(error.errno or 0, str(error), path, needed=needed)


def write_failure(code: int, message: str, path: Path, *, needed: int) -> StoreError:
    """The same for errors that are no OSError. LMDB reports a full disk as EIO, so the free space decides."""
    free = _free_bytes(path.parent)
    if code in (errno.ENOSPC, errno.EDQUOT) or (code == errno.EIO and free < needed):
        why = "quota exceeded" if code == errno.EDQUOT else "disk full"
        failure = StoreError(
            f"writing {path.name}: {why}: {needed} bytes needed, {free} free on {path.parent}; "
            "free some space and run the same command again"
        )
    else:
        failure = StoreError(
            f"writing {path}: {message}; check the folder's permissions and the disk (dmesg), then "
            "run the same command again"
        )
        why = ""
    failure.errno = {"disk full": errno.ENOSPC, "quota exceeded": errno.EDQUOT}.get(
        why, code or errno.EIO
    )
    return failure


def _free_bytes(folder: Path) -> int:
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize


@contextlib.contextmanager
def writing(path: Path, *, needed: int) -> Iterator[None]:
    """Turns a failed write into a StoreError that names the file, and says so where the disk is full."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise write_error(error, path, needed=needed) from error


class NewFile:
    """Appends to a file under a temporary name; ``publish`` makes it durable and names it. Aborts as a context manager.

    Unbuffered: a buffer would fail a second time, and with another error, when it is closed on a full disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._temporary = temporary_path(path)
        with writing(path, needed=4096):
            self._file = self._temporary.open("wb", buffering=0)

    def write(self, data: bytes) -> None:
        """Appends all of it."""
        with writing(self.path, needed=len(data)):
            view = memoryview(data)
            while view:  # a write may be short
                view = view[self._file.write(view) :]
        self.size += len(data)

    def publish(self) -> None:
        """Syncs the file and gives it its name."""
        with writing(self.path, needed=4096):
            os.fsync(self._file.fileno())
            self._file.close()
            publish(self._temporary, self.path)

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)
