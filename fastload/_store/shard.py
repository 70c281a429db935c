"""Reads published shards.

A file is checked before it is read, and errors name shard and record.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fastload._common import files
from fastload._common.checksum import crc32c
from fastload._common.native import core
from fastload._store.lmdb_tree import META_BYTES, TreeFile
from fastload._store.manifest import STAMP_BYTES, Shard, stamp_page
from fastload._store.record import Part, parse_record, salvage_source
from fastload.errors import CorruptShard, RecordError, StoreError

if TYPE_CHECKING:
    from fastload import _core

VERIFY = ("size", "full")


class ShardReader:
    """Reads the records of one shard. Several threads may share one reader.

    The file is opened at the first read. ``verify="size"`` checks its size, stamp and index;
    ``"full"`` also checks its BLAKE3 digest, once per reader.
    """

    def __init__(self, folder: Path, shard: Shard, *, verify: str = "size") -> None:
        self.shard = shard
        self.path = folder / shard.name
        self.verify = verify
        self._file: _core.ShardFile | TreeFile | None = None
        self._last = shard.first + shard.records

    def __getstate__(self) -> tuple[Path, Shard, str]:
        return self.path.parent, self.shard, self.verify

    def __setstate__(self, state: tuple[Path, Shard, str]) -> None:
        folder, shard, verify = state
        self.__init__(folder, shard, verify=verify)  # type: ignore[misc]

    def get(self, sample_id: int) -> memoryview:
        """Returns a copy of the unchecked bytes of a record."""
        if not self.shard.first <= sample_id < self._last:
            raise IndexError(
                f"sample {sample_id}: {self.shard.name} has samples {self.shard.first} to "
                f"{self._last - 1}"
            )
        file = self._file or self.file()
        try:
            return memoryview(file.read(self.shard.key(sample_id)))
        except KeyError as error:
            self.damaged(sample_id, str(error.args[0]))

    def find(self, sample_id: int) -> tuple[int, int]:
        """Returns offset and size of a record in the file."""
        try:
            return self.file().find(self.shard.key(sample_id))
        except KeyError as error:
            self.damaged(sample_id, str(error.args[0]))

    def record(self, sample_id: int) -> list[Part]:
        """Checks a record and returns its parts as views of a copy."""
        return self.check(sample_id, self.get(sample_id))

    def check(self, sample_id: int, value: memoryview) -> list[Part]:
        """Parses the result of ``get``; raises CorruptShard with the original file if readable."""
        try:
            return parse_record(value, self.shard.key(sample_id))
        except RecordError as error:
            source = salvage_source(value)
            origin = f"; the original file was probably {source}" if source else ""
            self.damaged(sample_id, f"{error}{origin}")

    def file(self) -> _core.ShardFile | TreeFile:
        """Opens the shard after checking its size, stamp, index and, if requested, its digest."""
        if self._file is None:
            descriptor = open_checked(self.path, self.shard)
            try:
                if self.verify == "full":
                    _check_digest(descriptor, self.path, self.shard)
                opened = open_file(descriptor, self.shard.size)
            except (OSError, RuntimeError) as error:
                raise (
                    error if isinstance(error, StoreError) else _cannot_read(error, self.path)
                ) from error
            finally:
                os.close(descriptor)
            if opened.entries != self.shard.records:
                raise CorruptShard(
                    f"opening {self.path}: {opened.entries} records, expected "
                    f"{self.shard.records}. {_advice(self.path)}",
                    shard=self.shard.name,
                )
            self._file = opened
        return self._file

    def damaged(self, sample_id: int, why: str) -> NoReturn:
        raise self.fault(sample_id, why) from None

    def fault(self, sample_id: int, why: str) -> CorruptShard:
        number = sample_id - self.shard.first
        return CorruptShard(
            f"reading sample {sample_id}: {why} ({self.path}, record {number}). "
            f"{_advice(self.path)}",
            shard=self.shard.name,
            record=number,
        )


def open_file(descriptor: int, size: int) -> _core.ShardFile | TreeFile:
    """Opens a shard for reading its records; raises OSError or RuntimeError.

    Raises the file limit if needed. The descriptor may be closed afterwards.
    """
    module = core()
    try:
        return TreeFile(descriptor, size) if module is None else module.ShardFile(descriptor, size)
    except (OSError, RuntimeError) as error:
        if os.strerror(errno.EMFILE) in str(error) and raise_file_limit():
            return open_file(descriptor, size)
        raise


def raise_file_limit() -> bool:
    """Raises the soft limit of open files to the hard limit; returns False if it cannot.

    Each shard needs one file, and a large dataset has thousands of shards.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True


def open_checked(path: Path, shard: Shard) -> int:
    """Opens a regular file and checks its size, stamp and index.

    Raises CorruptShard or StoreError.
    """
    try:
        descriptor, size = files.open_regular(path)
    except OSError as error:
        if error.errno == errno.EMFILE and raise_file_limit():
            return open_checked(path, shard)
        raise _cannot_open(error, path) from None
    try:
        _check_size(path, size, shard)
        if why := index_fault(descriptor, shard):
            raise CorruptShard(f"opening {path}: {why}. {_advice(path)}", shard=shard.name)
    except OSError as error:
        os.close(descriptor)
        raise error if isinstance(error, StoreError) else _cannot_open(error, path) from None
    return descriptor


def index_fault(descriptor: int, shard: Shard) -> str:
    """Returns why the stamp or the tree pages of a file of the right size are wrong, or ''."""
    found = os.pread(descriptor, STAMP_BYTES, max(0, shard.size - STAMP_BYTES))
    if found != stamp_page(shard.base, shard.records, shard.stamp):
        return (
            f"its last {STAMP_BYTES} bytes differ from the stamp in the manifest: another shard, a "
            "shard of another dataset, or damaged"
        )
    crc = crc32c(os.pread(descriptor, META_BYTES, 0))
    found_crc = files.crc32c_of(descriptor, shard.size - shard.index_size, crc)
    if found_crc != shard.index_crc32c:
        return (
            f"checksum of its index 0x{found_crc}, expected 0x{shard.index_crc32c}: a tree page "
            "is damaged"
        )
    return ""


def check_sizes(folder: Path, shards: Sequence[Shard]) -> None:
    """Finds missing and truncated shards at the start of a run; takes 10 ms for 2,200 shards."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for shard in shards:
            path = folder / shard.name
            try:
                status = os.stat(shard.name, dir_fd=directory, follow_symlinks=False)
            except OSError as error:
                raise _cannot_open(error, path) from None
            if not stat.S_ISREG(status.st_mode):
                raise _cannot_open(OSError(errno.EINVAL, "not a regular file"), path)
            _check_size(path, status.st_size, shard)
    finally:
        os.close(directory)


def _check_size(path: Path, size: int, shard: Shard) -> None:
    if size != shard.size:
        raise CorruptShard(
            f"opening {path}: {size} bytes, expected {shard.size}: truncated, still being copied, "
            f"or a shard of another dataset. {_advice(path)}",
            shard=shard.name,
        )


def verify_file(path: Path, shard: Shard) -> None:
    """Checks size and BLAKE3 digest of a shard; raises CorruptShard."""
    descriptor = open_checked(path, shard)
    try:
        _check_digest(descriptor, path, shard)
    finally:
        os.close(descriptor)


def _check_digest(descriptor: int, path: Path, shard: Shard) -> None:
    try:
        found = files.blake3_of(descriptor, first_last=META_BYTES)
    except OSError as error:
        raise _cannot_open(error, path) from error
    if found != shard.blake3:
        raise CorruptShard(
            f"verifying {path}: BLAKE3 {found}, expected {shard.blake3}. {_advice(path)}",
            shard=shard.name,
        )


def _cannot_open(error: OSError, path: Path) -> StoreError:
    if error.errno == errno.EMFILE:
        return _too_many_files(path)
    if error.errno in (
        errno.ENOENT,
        errno.ELOOP,
        errno.EINVAL,
        errno.EISDIR,
        errno.ENXIO,
        errno.EIO,
    ):
        why = "found a link" if error.errno == errno.ELOOP else error.strerror
        return CorruptShard(
            f"opening {path}: {why}; expected a regular file (links are not followed). "
            f"{_advice(path)}",
            shard=path.name,
        )
    return StoreError(f"opening {path}: {error.strerror}")


def _cannot_read(error: Exception, path: Path) -> StoreError:
    if os.strerror(errno.EMFILE) in str(error):
        return _too_many_files(path)
    return CorruptShard(f"opening {path}: {error}. {_advice(path)}", shard=path.name)


def _too_many_files(path: Path) -> StoreError:
    return StoreError(
        f"opening {path}: too many open files. A dataset needs one per shard: raise the limit "
        "(ulimit -Hn), or pack with larger shards"
    )


def _advice(path: Path) -> str:
    return (
        f"Run 'fastload verify {path.parent}' to list the damaged files; restore {path.name} from "
        "a copy, or pack again from the source"
    )
