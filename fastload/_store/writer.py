"""Writing one shard: under a temporary name until it is whole and synced, then by its name, forever."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from fastload._common import files
from fastload._common.native import core
from fastload._store.lmdb_tree import META_BYTES, Bytes, TreePages
from fastload._store.manifest import SHARD_NAME, Shard, stamp_page
from fastload._store.record import HEADER, MAX_RECORD
from fastload.errors import ConfigError

FLUSH_BYTES = 1 << 20  # collected before they are written and digested, aside
_WRITE_EARLY = 32 << 20  # handed to the system since the disk was told to begin


def shard_name(number: int) -> str:
    """``shard-00007.lmdb`` for 7."""
    name = f"shard-{number:05d}.lmdb"
    if not SHARD_NAME.fullmatch(name):
        raise ConfigError(
            f"shard number {number}: expected 0 to 9999999; pack with a larger shard size"
        )
    return name


class ShardWriter:
    """Writes samples ``first``, ``first + 1``, ... into one shard; nothing has its name before ``publish``.

    A thread of its own writes and digests, one flush behind. Memory: two flushes plus the largest record. As a context
    manager it aborts whatever was not published.
    """

    def __init__(self, folder: Path, number: int, *, first: int) -> None:
        self.name = shard_name(number)
        self.path = folder / self.name
        self.first = first
        self.records = 0
        self._temporary = files.temporary_path(self.path)
        self._pieces: list[Bytes] = []  # collected for the next flush,
        self._n_bytes = 0  # of so many bytes
        self._tree = TreePages(self._collect)
        self._stamp = hashlib.sha256()
        self._digest = hashlib.sha256()
        self._unwritten = 0  # by the disk, as far as we know
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fastload-pack-write")
        self._written: Future[None] | None = None
        self._temporary.unlink(missing_ok=True)  # a killed process had our pid
        try:
            self._file = os.open(
                self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
            )
            os.lseek(self._file, META_BYTES, os.SEEK_SET)
        except OSError as error:
            raise files.write_error(error, self.path, needed=META_BYTES) from error

    def add(self, sample_id: int, value: Bytes) -> None:
        """Appends the next sample's record."""
        if sample_id != self.first + self.records or not 0 < len(value) <= MAX_RECORD:
            raise ConfigError(
                f"{self.name}: sample {sample_id} with {len(value)} bytes: expected sample "
                f"{self.first + self.records} with 1 to {MAX_RECORD}"
            )
        self._tree.add(
            sample_id, value if isinstance(value, bytes) else bytes(value)
        )  # a view may change before it is written
        self._stamp.update(value[: HEADER.size])
        self.records += 1
        if self._n_bytes >= FLUSH_BYTES:
            self._flush()

    def publish(self) -> Shard:
        """Makes the shard durable and gives it its name; returns its row for the manifest."""
        if not self.records:
            raise ConfigError(f"{self.name}: a shard needs at least one record")
        self._tree.end()
        stamp = self._stamp.hexdigest()
        self._collect(stamp_page(self.first, self.records, stamp))
        self._flush()
        meta = self._tree.meta()
        try:
            self._wait()
            size = os.lseek(self._file, 0, os.SEEK_END)
            os.lseek(self._file, 0, os.SEEK_SET)
            files.write_all(self._file, [meta])
            os.fsync(self._file)
            files.publish(self._temporary, self.path)
        except OSError as error:
            self.abort()
            raise files.write_error(error, self.path, needed=self.size_bytes) from error
        self._digest.update(meta)
        self._close()
        return Shard(self.name, size, self.records, self.first, self._digest.hexdigest(), stamp)

    def abort(self) -> None:
        """Drops what was written; harmless after publish and when called twice."""
        self._close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.abort()

    @property
    def size_bytes(self) -> int:
        """What the file takes so far, but for the tree's last pages."""
        return self._tree.n_bytes

    def _flush(self) -> None:
        """Hands what is collected to the thread, which has done with what was before."""
        try:
            self._wait()
        except OSError as error:
            self.abort()
            raise files.write_error(error, self.path, needed=self._n_bytes) from error
        self._written = self._thread.submit(self._write, self._pieces)
        self._pieces = []
        self._n_bytes = 0

    def _collect(self, data: Bytes) -> None:
        self._pieces.append(data)
        self._n_bytes += len(data)

    def _wait(self) -> None:
        if self._written is not None:
            self._written.result()

    def _write(self, pieces: list[Bytes]) -> None:
        files.write_all(self._file, pieces)
        for piece in pieces:
            self._digest.update(piece)
            self._unwritten += len(piece)
        module = core()
        if (
            self._unwritten >= _WRITE_EARLY and module is not None
        ):  # else publishing waits until the disk has written all
            self._unwritten = 0
            module.start_writeback(self._file)

    def _close(self) -> None:
        self._thread.shutdown(wait=True)
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
