"""Writing one shard: under a temporary name until it is whole, synced and digested, then by its name, forever."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import lmdb

from fastload.errors import ConfigError, StoreError
from fastload.store import files
from fastload.store.manifest import SHARD_NAME, Shard, stamp_page
from fastload.store.record import HEADER, MAX_RECORD

COMMIT_BYTES = 16 * 1024 * 1024     # LMDB holds an open transaction's pages in memory: this bounds it
_FIRST_MAP = 1 << 30                # address space only; grows when a shard does
# LMDB 1.0, which lmdb >= 3 bundles too and takes when LMDB_DEFAULT_LIB_VERSION says so, writes another format.
_ENGINE: dict[str, Any] = {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}


def shard_name(number: int) -> str:
    """``shard-00007.lmdb`` for 7."""
    name = f"shard-{number:05d}.lmdb"
    if not SHARD_NAME.fullmatch(name):
        raise ConfigError(f"shard number {number}: expected 0 to 9999999; pack with a larger shard size")
    return name


class ShardWriter:
    """Writes samples ``first``, ``first + 1``, ... into one shard; nothing has its name before ``publish``.

    Memory: about ``COMMIT_BYTES`` plus the largest record. As a context manager it aborts whatever was not published.
    """

    def __init__(self, folder: Path, number: int, *, first: int) -> None:
        self.name = shard_name(number)
        self.path = folder / self.name
        self.first = first
        self.records = 0
        self.payload_bytes = 0              # of the record values
        self._temporary = files.partly(self.path)
        self._pages = 3                     # LMDB's two meta pages, and the stamp
        self._stamp = hashlib.sha256()
        self._uncommitted = 0
        self._map_size = _FIRST_MAP
        self._transaction: Any = None       # Any: what lmdb hands out
        self._temporary.unlink(missing_ok=True)         # a killed process had our pid
        try:
            # sync=False: the pages may reach the disk in any order, so a crash leaves rubbish. Under a temporary name
            # nobody reads it, and publish() syncs before the rename. No writemap: it turns a full disk into SIGBUS.
            self._env: Any = lmdb.open(str(self._temporary), map_size=self._map_size, subdir=False, lock=False,
                                       sync=False, max_spare_txns=0, **_ENGINE)
        except lmdb.Error as error:
            raise self._failed(error) from error
        self._page = int(self._env.stat()["psize"])

    def add(self, sample_id: int, value: bytes | bytearray | memoryview) -> None:
        """Appends the next sample's record."""
        if sample_id != self.first + self.records or not 0 < len(value) <= MAX_RECORD:
            raise ConfigError(f"{self.name}: sample {sample_id} with {len(value)} bytes: expected sample "
                              f"{self.first + self.records} with 1 to {MAX_RECORD}")
        try:
            self._make_room(len(value))
            if self._transaction is None:
                self._transaction = self._env.begin(write=True)
            self._transaction.put(sample_id.to_bytes(8, "big"), value, append=True)
        except lmdb.Error as error:
            raise self._failed(error) from error
        self._stamp.update(value[:HEADER.size])
        self.records += 1
        self.payload_bytes += len(value)
        self._uncommitted += len(value)
        if self._uncommitted >= COMMIT_BYTES:
            self.commit()

    def commit(self) -> None:
        """Writes what LMDB holds back. In the thread that added it: behind that, another one may publish."""
        if self._transaction is None:
            return
        try:
            self._transaction.commit()
        except lmdb.Error as error:
            raise self._failed(error) from error
        finally:
            self._transaction = None
            self._uncommitted = 0

    def publish(self) -> Shard:
        """Makes the shard durable and gives it its name; returns its row for the manifest."""
        if not self.records:
            raise ConfigError(f"{self.name}: a shard needs at least one record")
        self.commit()
        try:
            self._env.sync(True)
        except lmdb.Error as error:
            raise self._failed(error) from error
        self._env.close()
        stamp = self._stamp.hexdigest()
        try:
            with self._temporary.open("rb+") as file:
                file.seek(0, os.SEEK_END)
                file.write(stamp_page(self.first, self.records, stamp))
                size = file.tell()
                file.flush()
                os.fsync(file.fileno())
                digest = files.sha256_of(file.fileno())
            files.publish(self._temporary, self.path)
        except OSError as error:
            self.abort()
            raise files.write_error(error, self.path, needed=self.size_bytes) from error
        return Shard(self.name, size, self.records, self.first, digest, stamp)

    def abort(self) -> None:
        """Drops what was written; harmless after publish and when called twice."""
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None
        self._env.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.abort()

    @property
    def size_bytes(self) -> int:
        """What the file takes so far, a little more than the records."""
        return self._pages * self._page

    def _make_room(self, n_bytes: int) -> None:
        # A value above half a page gets pages of its own (16 bytes of header); its node, and the copies that LMDB makes
        # of inner pages with each commit, are covered by one page more. An eighth of the map is kept free for the rest.
        self._pages += -(-(n_bytes + 16) // self._page) + 1
        if self.size_bytes > self._map_size * 7 // 8:
            self.commit()
            while self.size_bytes > self._map_size * 7 // 8:
                self._map_size *= 2
            self._env.set_mapsize(self._map_size)

    def _failed(self, error: Exception) -> StoreError:
        """Translates an LMDB error; the temporary file is gone afterwards, and with it the space it took."""
        code = error.args[1] if len(error.args) > 1 and isinstance(error.args[1], int) else _errno_in(str(error))
        needed = max(COMMIT_BYTES, self._uncommitted)
        failure = files.write_failure(code, str(error), self.path, needed=needed)
        if hasattr(self, "_env"):
            self.abort()
        else:
            self._temporary.unlink(missing_ok=True)         # lmdb leaves it when it cannot write the first pages
        return failure


def _errno_in(message: str) -> int:
    # lmdb.Error carries the text of strerror(3) and no number.
    return next((code for code in (errno.ENOSPC, errno.EDQUOT, errno.EIO) if os.strerror(code) in message), 0)
