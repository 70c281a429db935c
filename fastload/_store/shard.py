"""Reading a published shard: checked before it is mapped, opened where it is used, every fault named."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
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
    def entries(self) -> int:
        """How many records it holds."""


class ShardReader:
    """Reads the records of one shard. It opens at the first read, in the process that reads; several threads may.

    ``verify="size"`` compares the file's size and stamp before mapping it, ``"full"`` its SHA-256 too, once a reader.
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
        """A record's bytes in the map, unchecked, without a copy; valid while this reader lives. See ``record``."""
        environment = self._environment or self._opened()
        if not self.shard.first <= sample_id < self._last:
            raise IndexError(
                f"sample {sample_id} is not in {self.shard.name} ({self.shard.first} to {self._last - 1})"
            )
        try:
            value = environment.get(sample_id.to_bytes(8, "big"))
        except lmdb.Error as error:
            self.damaged(sample_id, str(error))
        if value is None:
            self.damaged(sample_id, "the record is missing")
        return value

    def find(self, sample_id: int) -> memoryview:
        """What ``lease`` returns, through the native core's map where there is a core: the loader then needs no other."""
        if core() is None:
            return self.lease(sample_id)
        try:
            return self.map().find(sample_id)
        except KeyError as error:
            self.damaged(sample_id, str(error.args[0]))

    def record(self, sample_id: int) -> list[Part]:
        """A record's parts, checked (id, length, checksum, table), as views that keep the file mapped."""
        return self.check(sample_id, self.lease(sample_id))

    def lease(self, sample_id: int) -> memoryview:
        """What ``get`` returns, keeping the file mapped as long as it is used."""
        value = self.get(sample_id)
        environment = self._environment or self._opened()
        return environment.lease(value)

    def check(self, sample_id: int, value: memoryview) -> list[Part]:
        """Parses what ``get`` returned; raises CorruptShard naming shard, record and, where readable, original file."""
        try:
            return parse_record(value, sample_id)
        except RecordError as error:
            source = salvage_source(value)
            self.damaged(
                sample_id,
                str(error) + (f"; its original file seems to be {source}" if source else ""),
            )

    def map(self) -> _core.ShardMap:
        """The shard as the native core reads it, whole batches at a time; checked like any other reading."""
        module = core()
        if module is None:
            raise RuntimeError("the native core is not here")
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
        """What ``open_file`` makes of the file, once its size, stamp, digest (where asked for) and number of records are right."""
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
                f"opening {self.path}: it holds {opened.entries} records, expected "
                f"{self.shard.records}. {_advice(self.path)}",
                shard=self.shard.name,
            )
        return opened

    def damaged(self, sample_id: int, why: str) -> NoReturn:
        """Raises CorruptShard for a record, saying why, where and what to do."""
        raise self.fault(sample_id, why) from None

    def fault(self, sample_id: int, why: str) -> CorruptShard:
        """What ``damaged`` raises."""
        number = sample_id - self.shard.first
        return CorruptShard(
            f"reading sample {sample_id}: {why} ({self.path}, record {number}). {_advice(self.path)}",
            shard=self.shard.name,
            record=number,
        )


def open_checked(path: Path, shard: Shard) -> int:
    """Opens a regular file of the right size and stamp; raises CorruptShard or StoreError. Nothing is mapped."""
    try:
        descriptor, size = files.open_regular(path)
    except OSError as error:
        if error.errno == errno.EMFILE and raise_file_limit():
            return open_checked(path, shard)
        raise cannot_open(error, path) from None
    if size != shard.size:
        os.close(descriptor)
        raise wrong_size(path, size, shard)
    try:
        found = os.pread(descriptor, STAMP_BYTES, max(0, size - STAMP_BYTES))
    except OSError as error:
        os.close(descriptor)
        raise cannot_open(error, path) from None
    if found != stamp_page(shard.first, shard.records, shard.stamp):
        os.close(descriptor)
        raise CorruptShard(
            f"opening {path}: its last {STAMP_BYTES} bytes are not the manifest's stamp: another "
            f"shard, another dataset's, or damaged. {_advice(path)}",
            shard=shard.name,
        )
    return descriptor


def wrong_size(path: Path, size: int, shard: Shard) -> CorruptShard:
    """For a shard that was cut, extended or exchanged."""
    return CorruptShard(
        f"opening {path}: {size} bytes, expected {shard.size}: cut off, still being copied, or another "
        f"dataset's. {_advice(path)}",
        shard=shard.name,
    )


def verify_file(path: Path, shard: Shard) -> None:
    """Compares a whole file with its size and SHA-256 in the manifest, without mapping it; raises CorruptShard."""
    descriptor = open_checked(path, shard)
    try:
        _check_digest(descriptor, path, shard)
    finally:
        os.close(descriptor)


def network_file_system(folder: Path, mounts: str) -> str:
    """The type of ``folder``'s file system if it is a remote one or FUSE, else ''; ``mounts`` as in mountinfo."""
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
    """Warns once a process for each kind of remote file system: maps of remote files end the process when it fails."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return  # not Linux, or no /proc: nothing can be said
    kind = network_file_system(folder, mounts)
    if kind and kind not in _warned:
        _warned.add(kind)
        warnings.warn(
            f"{folder} is on {kind}: if the server goes away while a shard is mapped, the process is killed "
            "(SIGBUS); copy the dataset to a local disk",
            RuntimeWarning,
            stacklevel=3,
        )


def _check_digest(descriptor: int, path: Path, shard: Shard) -> None:
    try:
        found = files.sha256_of(descriptor, first_last=META_BYTES)
    except OSError as error:
        raise cannot_open(error, path) from error
    if found != shard.sha256:
        raise CorruptShard(
            f"verifying {path}: SHA-256 {found}, expected {shard.sha256}. {_advice(path)}",
            shard=shard.name,
        )


def cannot_open(error: OSError, path: Path) -> StoreError:
    """What to raise for a shard that cannot be opened at all."""
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
        why = "a link" if error.errno == errno.ELOOP else error.strerror
        return CorruptShard(
            f"opening {path}: {why}; expected a regular file, links are not followed. {_advice(path)}",
            shard=path.name,
        )
    return StoreError(f"opening {path}: {error.strerror}")


def _cannot_map(error: Exception, path: Path) -> StoreError:
    if os.strerror(errno.EMFILE) in str(error):
        return _too_many_files(path)
    if isinstance(error, RuntimeError) and os.strerror(errno.ENOMEM) in str(
        error
    ):  # lmdb maps what the file says: damage
        return StoreError(
            f"opening {path}: no address space to map its {path.stat().st_size} bytes: ulimit -v, or vm.max_map_count"
        )
    if "already open" in str(error):
        return StoreError(
            f"opening {path}: this process has it open through lmdb itself, which allows that once; "
            "close that environment first"
        )
    return CorruptShard(f"opening {path}: {error}. {_advice(path)}", shard=path.name)


def _too_many_files(path: Path) -> StoreError:
    return StoreError(
        f"opening {path}: too many open files; a dataset takes one for each shard: raise the limit "
        "(ulimit -Hn), or pack with larger shards"
    )


def _advice(path: Path) -> str:
    return (
        f"Run 'fastload verify {path.parent}' to list what is damaged; restore {path.name} from a copy, or pack "
        "again from the source"
    )
