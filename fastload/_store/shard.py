"""Reads published shards.

A file is checked before it is mapped, and errors name shard and record.
"""

from __future__ import annotations

import errno
import os
import stat
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

import lmdb

from fastload._common import files
from fastload._common.native import core
from fastload._store.environment import Environment, open_environment, raise_file_limit
from fastload._store.lmdb_tree import META_BYTES
from fastload._store.manifest import STAMP_BYTES, Shard, stamp_page
from fastload._store.record import Part, parse_record, salvage_source
from fastload.errors import CorruptShard, RecordError, StoreError

if TYPE_CHECKING:
    from fastload import _core

VERIFY = ("size", "full")
Opened = TypeVar("Opened", bound="_Opened")
_NETWORK = frozenset(
    ("9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3")
)


class _Opened(Protocol):
    @property
    def entries(self) -> int: ...


class ShardReader:
    """Reads the records of one shard. Several threads may share one reader.

    The file is opened at the first read, in the process that reads. ``verify="size"`` checks size
    and stamp before mapping the file; ``"full"`` also checks its SHA-256, once per reader.
    """

    def __init__(self, folder: Path, shard: Shard, *, verify: str = "size") -> None:
        self.shard = shard
        self.path = folder / shard.name
        self.verify = verify
        self._environment: Environment | None = None
        self._map: _core.ShardMap | None = None
        self._last = shard.first + shard.records

    def __getstate__(self) -> tuple[Path, Shard, str]:
        return self.path.parent, self.shard, self.verify

    def __setstate__(self, state: tuple[Path, Shard, str]) -> None:
        folder, shard, verify = state
        self.__init__(folder, shard, verify=verify)  # type: ignore[misc]

    def get(self, sample_id: int) -> memoryview:
        """Returns the unchecked bytes of a record, not copied; valid while this reader exists."""
        environment = self._environment or self._opened()
        if not self.shard.first <= sample_id < self._last:
            raise IndexError(
                f"sample {sample_id}: {self.shard.name} has samples {self.shard.first} to "
                f"{self._last - 1}"
            )
        try:
            value = environment.get(sample_id.to_bytes(8, "big"))
        except lmdb.Error as error:
            self.damaged(sample_id, str(error))
        if value is None:
            self.damaged(sample_id, "the record is missing")
        return value

    def find(self, sample_id: int) -> memoryview:
        """Like ``lease``, but through the native core's map if the core is installed.

        The loader then needs only that map.
        """
        if core() is None:
            return self.lease(sample_id)
        try:
            return self.map().find(sample_id)
        except KeyError as error:
            self.damaged(sample_id, str(error.args[0]))

    def record(self, sample_id: int) -> list[Part]:
        """Checks a record and returns its parts as views that keep the file mapped."""
        return self.check(sample_id, self.lease(sample_id))

    def lease(self, sample_id: int) -> memoryview:
        """Like ``get``, but the returned view keeps the file mapped."""
        value = self.get(sample_id)
        return (self._environment or self._opened()).lease(value)

    def check(self, sample_id: int, value: memoryview) -> list[Part]:
        """Parses the result of ``get``; raises CorruptShard with the original file if readable."""
        try:
            return parse_record(value, sample_id)
        except RecordError as error:
            source = salvage_source(value)
            origin = f"; the original file was probably {source}" if source else ""
            self.damaged(sample_id, f"{error}{origin}")

    def map(self) -> _core.ShardMap:
        """Opens the shard for the native core, with the same checks."""
        module = core()
        if module is None:
            raise RuntimeError("ShardReader.map needs the native core, which is not installed")
        if self._map is None:
            self._map = self._checked(
                lambda descriptor: module.ShardMap(descriptor, self.shard.size)
            )
        return self._map

    def _opened(self) -> Environment:
        def open_file(descriptor: int) -> Environment:
            status = os.fstat(descriptor)
            return open_environment(descriptor, (status.st_dev, status.st_ino), status.st_size)

        self._environment = self._checked(open_file)
        return self._environment

    def _checked(self, open_file: Callable[[int], Opened]) -> Opened:
        """Checks size, stamp and digest, calls ``open_file``, then checks the record count."""
        descriptor = open_checked(self.path, self.shard)
        try:
            if self.verify == "full":
                _check_digest(descriptor, self.path, self.shard)
            opened = open_file(descriptor)
        except (lmdb.Error, RuntimeError) as error:
            raise _cannot_map(error, self.path) from error
        finally:
            os.close(descriptor)
        if opened.entries != self.shard.records:
            raise CorruptShard(
                f"opening {self.path}: {opened.entries} records, expected "
                f"{self.shard.records}. {_advice(self.path)}",
                shard=self.shard.name,
            )
        return opened

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


def open_checked(path: Path, shard: Shard) -> int:
    """Opens a regular file and checks its size and stamp; raises CorruptShard or StoreError."""
    try:
        descriptor, size = files.open_regular(path)
    except OSError as error:
        if error.errno == errno.EMFILE and raise_file_limit():
            return open_checked(path, shard)
        raise _cannot_open(error, path) from None
    try:
        _check_size(path, size, shard)
        found = os.pread(descriptor, STAMP_BYTES, max(0, size - STAMP_BYTES))
        if found != stamp_page(shard.first, shard.records, shard.stamp):
            raise CorruptShard(
                f"opening {path}: its last {STAMP_BYTES} bytes differ from the stamp in the "
                "manifest: another shard, a shard of another dataset, or damaged. "
                f"{_advice(path)}",
                shard=shard.name,
            )
    except OSError as error:
        os.close(descriptor)
        raise error if isinstance(error, StoreError) else _cannot_open(error, path) from None
    return descriptor


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
    """Checks size and SHA-256 of a shard without mapping it; raises CorruptShard."""
    descriptor = open_checked(path, shard)
    try:
        _check_digest(descriptor, path, shard)
    finally:
        os.close(descriptor)


def network_file_system(folder: Path, mounts: str) -> str:
    """Returns the type of a network or FUSE file system that holds ``folder``, else ''.

    ``mounts`` is the text of /proc/self/mountinfo.
    """
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        mount, _, rest = line.partition(" - ")
        kind = rest.split(" ", 1)[0]
        if mount.split(" ")[2:3] == [number] and (kind in _NETWORK or kind.startswith("fuse")):
            return kind
    return ""


_warned: set[str] = set()


def warn_if_remote(folder: Path) -> None:
    """Warns once per process and type of network file system."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return  # not Linux, or /proc is not mounted
    kind = network_file_system(folder, mounts)
    if kind and kind not in _warned:
        _warned.add(kind)
        warnings.warn(
            f"{folder} is on a network file system ({kind}): if the server becomes unreachable "
            "while a shard is mapped, SIGBUS kills the process. Copy the dataset to a local disk.",
            RuntimeWarning,
            stacklevel=3,
        )


def _check_digest(descriptor: int, path: Path, shard: Shard) -> None:
    try:
        found = files.sha256_of(descriptor, first_last=META_BYTES)
    except OSError as error:
        raise _cannot_open(error, path) from error
    if found != shard.sha256:
        raise CorruptShard(
            f"verifying {path}: SHA-256 {found}, expected {shard.sha256}. {_advice(path)}",
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


def _cannot_map(error: Exception, path: Path) -> StoreError:
    if os.strerror(errno.EMFILE) in str(error):
        return _too_many_files(path)
    # Only from the native core. lmdb maps as many bytes as the file claims, so there ENOMEM is
    # damage.
    if isinstance(error, RuntimeError) and os.strerror(errno.ENOMEM) in str(error):
        return StoreError(
            f"opening {path}: not enough address space to map {path.stat().st_size} bytes; raise "
            "ulimit -v or vm.max_map_count"
        )
    if "already open" in str(error):
        return StoreError(
            f"opening {path}: this process already opened the file with lmdb, which allows only "
            "one environment per file; close that environment first"
        )
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
