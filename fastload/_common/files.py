"""Opens, hashes and publishes the files of a dataset: shards, columns and the manifest."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from blake3 import blake3

from fastload._common.checksum import crc32c
from fastload.errors import StoreError

_CHUNK = 1 << 18  # fits in the L2 cache
_MAX_PIECES = 1024  # buffers that Linux accepts in one writev call
# An unpublished file is called NAME.tmp-OWNER.NUMBER.
_TEMPORARY = re.compile(r".+\.tmp-([0-9]+(?:-[0-9a-f]{8})?)(?:\.[0-9]+)?", re.DOTALL)
_count = itertools.count()
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)
_NO_FOLDER_SYNC = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)


def open_regular(path: Path) -> tuple[int, int]:
    """Returns (descriptor, size) of a regular file; does not follow links. Raises OSError."""
    # O_NONBLOCK, because opening a FIFO would otherwise wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor, status.st_size


def read_regular(path: Path, *, max_bytes: int) -> bytes:
    """Reads a regular file; raises OSError, also if it has more than ``max_bytes`` bytes."""
    descriptor, size = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        if size > max_bytes:
            raise OSError(errno.EFBIG, f"{size} bytes, expected at most {max_bytes}", str(path))
        return file.read(size + 1)


def blake3_of(descriptor: int, *, first_last: int = 0) -> str:
    """Returns the BLAKE3 digest of an open file. Its first ``first_last`` bytes are hashed last."""
    digest = blake3()
    for chunk in _chunks(descriptor, first_last):
        digest.update(chunk)
    digest.update(os.pread(descriptor, first_last, 0))
    return digest.hexdigest()


def crc32c_of(
    descriptor: int, start: int = 0, crc: int = 0, *, copy: memoryview | None = None
) -> str:
    """Returns the CRC-32C of an open file from ``start`` on, after ``crc``, as 8 hex digits.

    If ``copy`` is not empty, it receives the bytes, and only as many as fit are read.
    """
    position = 0
    for chunk in _chunks(descriptor, start):
        used = chunk[: len(copy) - position] if copy else chunk
        if copy:
            copy[position : position + len(used)] = used
        crc = crc32c(used, crc)
        position += len(used)
    return f"{crc:08x}"


def _chunks(descriptor: int, position: int = 0) -> Iterator[memoryview]:
    """Yields the contents of a file; each chunk is valid until the next one."""
    buffer = memoryview(bytearray(_CHUNK))
    while n_bytes := os.preadv(descriptor, [buffer], position):
        yield buffer[:n_bytes]
        position += n_bytes


def write_all(descriptor: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
    """Appends all pieces without copying them; raises OSError."""
    for start in range(0, len(pieces), _MAX_PIECES):
        some = pieces[start : start + _MAX_PIECES]
        written = os.writev(descriptor, some)
        left = (
            memoryview(b"")
            if written == sum(map(len, some))
            else memoryview(b"".join(some))[written:]
        )
        while left:  # a short write on a nearly full disk; the next call raises
            left = left[os.write(descriptor, left) :]


def owner() -> str:
    """Identifies this process among all machines: containers often have equal process ids."""
    return f"{os.getpid()}-{_random_part(os.getpid())}"


@functools.cache
def _random_part(_pid: int) -> str:  # another one after a fork
    return secrets.token_hex(4)


def temporary_path(path: Path) -> Path:
    """Returns a new name in the same folder, so that a rename publishes the file."""
    return path.with_name(f"{path.name}.tmp-{owner()}.{next(_count)}")


def owner_of(name: str) -> str:
    """Returns the owner in a name from ``temporary_path``, or '' for other names."""
    found = _TEMPORARY.fullmatch(name)
    return found[1] if found else ""


def is_temporary(name: str) -> bool:
    """Returns True for a name from ``temporary_path``: a file of a running or a killed pack."""
    return bool(owner_of(name))


def sync_dir(folder: Path) -> None:
    """Syncs a folder, so that renames in it survive a power loss.

    Some network and FUSE file systems cannot do it; there, the server decides.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def publish(temporary: Path, path: Path, *, replace: bool = True) -> bool:
    """Renames a complete, synced file atomically and syncs the folder.

    If ``replace`` is False, an existing file is kept and the result is False. Of several machines
    that publish at the same time, one succeeds. Without hard links, two that find no file at the
    same moment both succeed, and the file of the second one stays.
    """
    if replace:
        temporary.rename(path)
    else:
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno in _NO_HARD_LINKS and not path.exists():
                temporary.rename(path)
            elif error.errno not in (errno.EEXIST, *_NO_HARD_LINKS):
                raise
            else:
                temporary.unlink()
                return False
        else:
            temporary.unlink()
    sync_dir(path.parent)
    return True


def write_atomically(path: Path, data: bytes, *, replace: bool = True) -> bool:
    """Writes a small file. Readers, also after a crash, see all of it or the previous version.

    ``replace`` and the result are those of ``publish``.
    """
    temporary = temporary_path(path)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return publish(temporary, path, replace=replace)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise write_error(error, path, needed=len(data)) from error


def write_error(error: OSError, path: Path, *, needed: int) -> StoreError:
    """Returns the error for a failed write; for a full disk it has the needed and free bytes."""
    code = error.errno or errno.EIO
    free = _free_bytes(path.parent)
    # A full disk may be reported as EIO, so the free space decides.
    if code == errno.EIO and free < needed:
        code = errno.ENOSPC
    reasons = {errno.ENOSPC: "disk full", errno.EDQUOT: "quota exceeded"}
    if code in reasons:
        failure = StoreError(
            f"writing {path.name}: {reasons[code]}: {needed} bytes needed, {free} free on "
            f"{path.parent}. Free some space and run the same command again."
        )
    else:
        failure = StoreError(
            f"writing {path}: {error}. Check the permissions of the folder and the disk (dmesg), "
            "then run the same command again."
        )
    failure.errno = code
    return failure


def _free_bytes(folder: Path) -> int:
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize


@contextlib.contextmanager
def writing(path: Path, *, needed: int) -> Iterator[None]:
    """Converts an OSError in its body with ``write_error``."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise write_error(error, path, needed=needed) from error


class NewFile:
    """Appends to a temporary file; ``publish`` syncs and renames it.

    Leaving the context manager deletes an unpublished file. Writes are unbuffered: on a full disk,
    a buffer would fail a second time, with another error, when it is closed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._temporary = temporary_path(path)
        with writing(path, needed=4096):
            self._file = self._temporary.open("wb", buffering=0)

    def write(self, data: bytes) -> None:
        with writing(self.path, needed=len(data)):
            view = memoryview(data)
            while view:  # a write may be partial
                view = view[self._file.write(view) :]
        self.size += len(data)

    def publish(self, *, replace: bool = True) -> bool:
        """Syncs and renames the file. ``replace`` and the result are those of ``publish``."""
        with writing(self.path, needed=4096):
            os.fsync(self._file.fileno())
            self._file.close()
            return publish(self._temporary, self.path, replace=replace)

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)
