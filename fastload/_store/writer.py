"""Writes a shard to a temporary file and renames it when it is complete and synced."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from fastload._common import files
from fastload._common.checksum import Bytes
from fastload._common.native import core
from fastload._store.lmdb_tree import META_BYTES, TreePages
from fastload._store.manifest import SHARD_NAME, Shard, stamp_page
from fastload._store.record import HEADER, MAX_RECORD
from fastload.errors import ConfigError

FLUSH_BYTES = 1 << 20  # bytes collected before the writer thread writes and hashes them
_WRITEBACK_BYTES = 32 << 20  # bytes written between two requests for writeback


def shard_name(number: int) -> str:
    name = f"shard-{number:05d}.lmdb"
    if not SHARD_NAME.fullmatch(name):
        raise ConfigError(
            f"shard number {number}: expected 0 to 9999999; pack with a larger shard size"
        )
    return name


class ShardWriter:
    """Writes samples ``first``, ``first + 1``, ... to one shard.

    ``publish`` gives the file its name.

    A background thread writes and hashes one buffer while the next one fills. Memory: two buffers
    of FLUSH_BYTES plus the largest record. Leaving the context manager deletes an unpublished file.
    """

    def __init__(self, folder: Path, number: int, *, first: int) -> None:
        self.name = shard_name(number)
        self.path = folder / self.name
        self.first = first
        self.records = 0
        self._temporary = files.temporary_path(self.path)
        self._pieces: list[Bytes] = []  # collected for the next flush
        self._n_bytes = 0  # total size of _pieces
        self._tree = TreePages(self._collect)
        self._stamp = hashlib.sha256()
        self._digest = hashlib.sha256()
        self._unwritten = 0  # bytes written since the last request for writeback
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fastload-pack-write")
        self._written: Future[None] | None = None
        # A killed process with the same pid may have left this file.
        self._temporary.unlink(missing_ok=True)
        with files.writing(self.path, needed=META_BYTES):
            self._file = os.open(
                self._temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666
            )
            os.lseek(self._file, META_BYTES, os.SEEK_SET)

    def add(self, sample_id: int, value: Bytes) -> None:
        if sample_id != self.first + self.records or not 0 < len(value) <= MAX_RECORD:
            raise ConfigError(
                f"{self.name}: sample {sample_id} with {len(value)} bytes: expected sample "
                f"{self.first + self.records} with 1 to {MAX_RECORD}"
            )
        # A view is copied because its contents may change before the thread writes it.
        self._tree.add(sample_id, value if isinstance(value, bytes) else bytes(value))
        self._stamp.update(value[: HEADER.size])
        self.records += 1
        if self._n_bytes >= FLUSH_BYTES:
            self._flush()

    def publish(self) -> Shard:
        """Syncs and renames the shard; returns its entry for the manifest."""
        if not self.records:
            raise ConfigError(f"{self.name}: 0 records, expected at least 1")
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
        """Deletes the temporary file; does nothing after ``publish`` or a second time."""
        self._close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.abort()

    @property
    def size_bytes(self) -> int:
        """Size of the file so far, without the branch pages."""
        return self._tree.n_bytes

    def _flush(self) -> None:
        """Passes the collected pieces to the thread, after waiting for the previous ones."""
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
        # Without early writeback, fsync in `publish` waits for the whole file.
        if self._unwritten >= _WRITEBACK_BYTES and module is not None:
            self._unwritten = 0
            module.start_writeback(self._file)

    def _close(self) -> None:
        self._thread.shutdown(wait=True)
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
