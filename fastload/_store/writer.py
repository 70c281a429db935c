"""Writes a shard to a temporary file and renames it when it is complete and synced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from blake3 import blake3

from fastload._common import files
from fastload._common.checksum import Bytes, crc32c
from fastload._common.native import core
from fastload._store.lmdb_tree import META_BYTES, TreePages, unfinished_records
from fastload._store.manifest import SHARD_NAME, Shard, stamp_page
from fastload._store.record import HEADER, MAX_RECORD
from fastload.errors import ConfigError

FLUSH_BYTES = 4 << 20  # bytes collected before the writer thread hashes and writes them
# A buffer with more pieces is joined first: BLAKE3 hashes 2.7 GB/s of joined pieces of 4 KiB, and
# 1.9 GB/s otherwise (benchmarks/digest.py, Xeon 2.5 GHz). Large pieces are not copied.
_MANY_PIECES = 128
_WRITEBACK_BYTES = 32 << 20  # bytes written between two requests for writeback


def shard_name(number: int, piece: int = 0) -> str:
    """Returns the name of a shard. ``piece`` counts the shards of an oversized part from 0."""
    name = f"shard-{number:05d}{f'.{piece}' if piece else ''}.lmdb"
    if not SHARD_NAME.fullmatch(name):
        raise ConfigError(
            f"shard number {number}: expected 0 to 9999999; pack with a larger shard size"
        )
    return name


class ShardWriter:
    """Writes records with the keys ``base``, ``base + 1``, ... to one shard.

    ``publish`` gives the file its name.

    A background thread hashes and writes one buffer while the next one fills. Memory: two buffers
    of FLUSH_BYTES plus the largest record. Leaving the context manager deletes an unpublished file.

    With ``unfinished``, the file has this name until it is published, and ``abort`` does not delete
    it. The next writer can add its ``earlier_records`` again, which rewrites the same bytes.
    """

    def __init__(
        self, folder: Path, name: str, *, base: int, unfinished: Path | None = None
    ) -> None:
        self.name = name
        self.path = folder / self.name
        self.base = base
        self.records = 0
        self._is_kept = unfinished is not None
        self._temporary = unfinished or files.temporary_path(self.path)
        self._pieces: list[Bytes] = []  # collected for the next flush
        self._n_bytes = 0  # total size of _pieces
        self._tree = TreePages(self._collect)
        self._stamp = blake3()
        self._digest = blake3()
        self._unwritten = 0  # bytes written since the last request for writeback
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="fastload-pack-write")
        self._in_flight: Future[None] | None = None
        new_or_kept = os.O_NOFOLLOW if self._is_kept else os.O_EXCL
        with files.writing(self.path, needed=META_BYTES):
            self._file = os.open(
                self._temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | new_or_kept, 0o666
            )
            os.lseek(self._file, META_BYTES, os.SEEK_SET)

    def add(self, key: int, value: Bytes) -> None:
        if key != self.base + self.records or not 0 < len(value) <= MAX_RECORD:
            raise ConfigError(
                f"{self.name}: record {key} with {len(value)} bytes: expected record "
                f"{self.base + self.records} with 1 to {MAX_RECORD}"
            )
        # A view is copied because its contents may change before the thread writes it.
        self._tree.add(key, value if isinstance(value, bytes) else bytes(value))
        self._stamp.update(value[: HEADER.size])
        self.records += 1
        if self._n_bytes >= FLUSH_BYTES:
            self._flush()

    def publish(self, first: int = 0) -> Shard:
        """Syncs and renames the shard; returns its entry for the manifest.

        ``first`` is the id of its first sample in the dataset, which the file does not contain.
        """
        if not self.records:
            raise ConfigError(f"{self.name}: 0 records, expected at least 1")
        self._tree.end_records()
        self._flush()
        self._tree.end()
        stamp = self._stamp.hexdigest()
        self._collect(stamp_page(self.base, self.records, stamp))
        meta = self._tree.meta()
        crc = crc32c(meta)
        for piece in self._pieces:
            crc = crc32c(piece, crc)
        index = self._n_bytes
        self._flush()
        try:
            self._wait()
            size = os.lseek(self._file, 0, os.SEEK_CUR)
            os.ftruncate(self._file, size)  # an earlier writer may have added more records
            os.lseek(self._file, 0, os.SEEK_SET)
            files.write_all(self._file, [meta])
            os.fsync(self._file)
            files.publish(self._temporary, self.path)
        except OSError as error:
            self.abort()
            raise files.write_error(error, self.path, needed=self.size_bytes) from error
        self._digest.update(meta)
        self._close()
        return Shard(
            self.name,
            size,
            self.records,
            first,
            self.base,
            index,
            f"{crc:08x}",
            self._digest.hexdigest(),
            stamp,
        )

    def earlier_records(self) -> Iterator[bytes]:
        """Yields the records that an earlier writer left in the file, unchecked."""
        for offset, size in unfinished_records(self._file, self.base):
            yield os.pread(self._file, size, offset)

    def write_unfinished(self) -> None:
        """Writes all records to the file. No record can be added and nothing published after it."""
        if self._file >= 0:
            self._tree.end_records()
            self._flush()
            self._wait()

    def abort(self) -> None:
        """Deletes an unpublished file that is not kept; has no effect a second time."""
        self._close()
        if not self._is_kept:
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
            raise files.write_error(error, self.path, needed=self.size_bytes) from error
        self._in_flight = self._writer.submit(self._write, self._pieces)
        self._pieces = []
        self._n_bytes = 0

    def _collect(self, data: Bytes) -> None:
        self._pieces.append(data)
        self._n_bytes += len(data)

    def _wait(self) -> None:
        if self._in_flight is not None:
            self._in_flight.result()

    def _write(self, pieces: list[Bytes]) -> None:
        if len(pieces) > _MANY_PIECES:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            self._digest.update(piece)
        files.write_all(self._file, pieces)
        self._unwritten += sum(map(len, pieces))
        module = core()
        # Without early writeback, fsync in `publish` waits for the whole file.
        if self._unwritten >= _WRITEBACK_BYTES and module is not None:
            self._unwritten = 0
            module.start_writeback(self._file)

    def _close(self) -> None:
        self._writer.shutdown(wait=True)
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
