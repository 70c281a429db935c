"""Verifies a dataset with several threads: manifest, sizes and digests, then every record.

A shard with a wrong size or digest is scanned for its records, because its tree may be damaged. A
fault never ends the run.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastload._common import files
from fastload._common.cpus import available_cpus
from fastload._common.public import public
from fastload._store.lmdb_tree import META_BYTES, TreeFile
from fastload._store.manifest import NAME as MANIFEST
from fastload._store.manifest import Manifest, Shard, read_manifest
from fastload._store.properties import PropertyCounter
from fastload._store.shard import index_fault, open_file
from fastload._store.verify.bulk import BulkChecker
from fastload._store.verify.columns import check_structure, open_columns
from fastload._store.verify.record import RecordChecker
from fastload._store.verify.report import Fault, FaultList, VerifyReport
from fastload._store.verify.search import FoundRecords, search_records
from fastload.errors import ConfigError, CorruptManifest

if TYPE_CHECKING:
    from fastload import _core

# Records per unit of work, so that threads share a shard and progress is smooth. In bulk, a record
# costs less than its share of a piece; more records per piece if they are small.
_PIECE = 64
_BULK_PIECE = 1024
_BULK_BYTES = 8 << 20


@public()
@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """The progress of a verification."""

    done: int  # records processed, including those of damaged shards
    total: int  # records in the dataset, or in the chosen shard
    faults: int  # faults found so far


@dataclass(frozen=True, slots=True)
class _Piece:
    """A range of records of an open shard."""

    place: int  # index of the shard
    shard: Shard
    file: _core.ShardFile | TreeFile
    records: range


@public()
def verify(
    path: str | os.PathLike[str],
    *,
    deep: bool = False,
    jobs: int = 0,
    shard: int | None = None,
    on_progress: Callable[[VerifyProgress], None] | None = None,
) -> VerifyReport:
    """Checks sizes, digests and every record of a packed dataset.

    Memory: ``jobs`` times one record and its pixels, plus at most 100 MB for the columns, for any
    size of the dataset.

    Args:
        path: Folder written by ``fastload pack``.
        deep: Also decode every image and mask. Default: False.
        jobs: Number of threads. Default: 0, one per available core.
        shard: Check only the shard with this number, and the columns. Default: all shards.
        on_progress: Called by the threads, one call at a time. Default: not called.

    Returns:
        A report with all damage.

    Raises:
        StoreError: There is no dataset at ``path``. Damage does not raise.
        ConfigError: There is no such shard.

    Examples:
        >>> report = fastload.verify("packed", deep=True)
        >>> if not report.ok:
        ...     print(report)
        ...     for fault in report.faults:
        ...         print(fault.shard, fault.record, fault.source, fault.what)
    """
    folder = Path(path).absolute()
    started = time.monotonic()
    try:
        manifest = read_manifest(folder)
    except CorruptManifest as error:
        if not os.path.lexists(folder / MANIFEST):
            raise
        why = str(error).removeprefix(f"opening {folder}: ").removeprefix(f"{MANIFEST}: ")
        return VerifyReport(
            path=folder,
            n_samples=0,
            n_shards=0,
            n_columns=0,
            n_bytes=0,
            n_checked=0,
            n_decoded=0,
            n_faults=1,
            deep=deep,
            faults=(Fault(MANIFEST, None, "", why),),
        )
    chosen = [
        (place, each)
        for place, each in enumerate(manifest.shards)
        if shard is None or int(each.name.removeprefix("shard-").split(".")[0]) == shard
    ]
    if shard is not None and not chosen:
        names = [each.name for each in manifest.shards]
        existing = f", {names[0]} to {names[-1]}" if names else ""
        raise ConfigError(f"shard {shard}: {folder} has {len(names)} shards{existing}")
    run = _Verification(folder, manifest, deep=deep, chosen=chosen, on_progress=on_progress)
    run.work(jobs or available_cpus())
    return run.report(time.monotonic() - started, only="" if shard is None else chosen[0][1].name)


class _Queue:
    """Distributes work. Records of open shards go first, so that few shards are open at a time."""

    def __init__(self, shards: Iterable[tuple[int, Shard]]) -> None:
        self._shards = deque(shards)
        self._pieces: deque[_Piece] = deque()
        self._opening = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self) -> _Piece | tuple[int, Shard] | None:
        """Returns the next unit of work, or None at the end.

        Waits while a shard is being opened.
        """
        with self._changed:
            while not self._closed:
                if self._pieces:
                    return self._pieces.popleft()
                if self._shards:
                    self._opening += 1
                    return self._shards.popleft()
                if not self._opening:
                    return None
                self._changed.wait()
            return None

    def opened(self, pieces: Iterable[_Piece]) -> None:
        """Adds the records of a shard; the caller must call it once per shard from ``take``."""
        with self._changed:
            self._opening -= 1
            self._pieces.extend(pieces)
            self._changed.notify_all()

    def close(self) -> None:
        """Makes every ``take`` return None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class _Verification:
    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        *,
        deep: bool,
        chosen: list[tuple[int, Shard]],
        on_progress: Callable[[VerifyProgress], None] | None,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.deep = deep
        self.shards = chosen
        self.on_progress = on_progress
        self.faults = FaultList()
        self._not_checked: dict[int, Shard] = {}
        self._lock = threading.Lock()
        self._done = self._checked = self._decoded = 0
        self._total = sum(shard.records for _, shard in chosen)
        columns, faults = open_columns(folder, manifest)
        for fault in (*faults, *check_structure(columns, manifest)):
            self.faults.add(-1, fault)
        self._checker = RecordChecker(manifest.fields, columns, deep=deep)
        self._bulk = None if deep else BulkChecker.create(manifest.fields, columns)
        self._properties = PropertyCounter(manifest.fields)
        self._counted = 0  # records in _properties

    def work(self, jobs: int) -> None:
        """Runs the threads and joins all of them, also after an error."""
        queue = _Queue(self.shards)
        with ThreadPoolExecutor(jobs, thread_name_prefix="fastload-verify") as pool:
            try:
                futures = [pool.submit(self._worker, queue) for _ in range(jobs)]
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                queue.close()  # after an error or Ctrl-C, threads stop after their current piece
        for future in futures:
            future.result()
        self._check_properties()

    def report(self, seconds: float, *, only: str) -> VerifyReport:
        sizes = [shard.size for _, shard in self.shards]
        sizes += [column.size for column in self.manifest.columns]
        return VerifyReport(
            path=self.folder,
            n_samples=self.manifest.n_samples,
            n_shards=len(self.shards),
            n_columns=len(self.manifest.columns),
            n_bytes=sum(sizes),
            n_checked=self._checked,
            n_decoded=self._decoded,
            n_faults=self.faults.count,
            faults=self.faults.sorted(),
            deep=self.deep,
            only=only,
            seconds=seconds,
            not_checked=tuple(
                (shard.name, shard.records) for _, shard in sorted(self._not_checked.items())
            ),
        )

    def _worker(self, queue: _Queue) -> None:
        try:
            while (work := queue.take()) is not None:
                if isinstance(work, _Piece):
                    self._check(work)
                else:
                    queue.opened(self._open(*work))
        except BaseException:
            queue.close()
            raise

    def _open(self, place: int, shard: Shard) -> list[_Piece]:
        """Checks size and digest; returns the records to check, or nothing for a damaged file."""
        try:
            descriptor, size = files.open_regular(self.folder / shard.name)
        except OSError as error:
            self._skip(place, shard, f"cannot be opened: {error.strerror}")
            return []
        try:
            digest = ""
            if size == shard.size:
                digest = files.blake3_of(descriptor, first_last=META_BYTES)
            if digest != shard.blake3:
                what = (
                    f"{size} bytes, expected {shard.size}"
                    if size != shard.size
                    else f"BLAKE3 {digest[:16]}..., expected {shard.blake3[:16]}..."
                )
                self._scan(place, shard, what, search_records(descriptor, size, shard))
                return []
            if why := index_fault(descriptor, shard):
                self._skip(place, shard, why)
                return []
            file = open_file(descriptor, size)
        except (OSError, RuntimeError) as error:
            self._skip(place, shard, f"cannot be read: {error}")
            return []
        finally:
            os.close(descriptor)
        if file.entries != shard.records:
            self._add(place, shard, f"{file.entries} records, expected {shard.records}")
        step = _PIECE
        if self._bulk is not None:
            step = max(step, min(_BULK_PIECE, _BULK_BYTES * shard.records // max(1, shard.size)))
        return [
            _Piece(place, shard, file, range(start, min(start + step, shard.records)))
            for start in range(0, shard.records, step)
        ]

    def _scan(self, place: int, shard: Shard, why: str, found: FoundRecords) -> None:
        """Reports the damaged records of a file whose tree may be damaged."""
        if not found.finished:
            self._skip(place, shard, f"{why}; the file was not scanned for records")
        elif not found.n_intact:
            self._skip(
                place, shard, f"{why}; a scan found no record of this shard. Is it another shard?"
            )
        elif not found.broken and not found.missing:
            self._skip(
                place,
                shard,
                f"{why}; a scan found all {found.n_intact} records intact: a file of another pack, "
                "or damage between records",
            )
        else:
            self._skip(
                place,
                shard,
                f"{why}; a scan found {found.n_intact} intact records, {len(found.broken)} damaged "
                f"and {len(found.missing)} missing",
            )
            for number, (what, source) in found.broken.items():
                self._add(place, shard, what, number, source)
            for number in found.missing:
                self._add(
                    place, shard, "a scan of the damaged file did not find the record", number
                )

    def _add(
        self, place: int, shard: Shard, what: str, record: int | None = None, source: str = ""
    ) -> None:
        self.faults.add(place, Fault(shard.name, record, source, what))

    def _skip(self, place: int, shard: Shard, what: str) -> None:
        """Reports a shard whose records cannot be checked."""
        self._add(place, shard, what)
        with self._lock:
            self._not_checked[place] = shard
        self._advance(shard.records)

    def _check(self, piece: _Piece) -> None:
        shard = piece.shard
        counter = PropertyCounter(self.manifest.fields)
        doubtful: Sequence[int] = piece.records
        if self._bulk is not None and not isinstance(piece.file, TreeFile):
            doubtful = self._bulk.find_doubtful(piece.file, shard, piece.records, counter)
        checked = counted = len(piece.records) - len(doubtful)
        decoded = 0
        for number in doubtful:
            key = shard.base + number
            try:
                value = memoryview(piece.file.read(key))
            except KeyError as error:
                self._add(piece.place, shard, str(error.args[0]), number)
                continue
            source, wrong, images = self._checker.check(shard.first + number, key, value, counter)
            for what in wrong:
                self._add(piece.place, shard, what, number, source)
            checked += 1
            counted += not wrong
            decoded += images
        with self._lock:
            self._properties.merge(counter)
            self._counted += counted
        self._advance(len(piece.records), checked=checked, decoded=decoded)

    def _check_properties(self) -> None:
        """Compares the properties of fields in the manifest with the intact records."""
        every = self._counted == self.manifest.n_samples
        for field, stated, found in zip(
            self.manifest.fields, self.manifest.properties, self._properties.found, strict=True
        ):
            for why in stated.contradictions(found, every=every):
                what = f"properties of field {field.name!r}: {why}"
                self.faults.add(-1, Fault(MANIFEST, None, "", what))

    def _advance(self, done: int, *, checked: int = 0, decoded: int = 0) -> None:
        with self._lock:
            self._done += done
            self._checked += checked
            self._decoded += decoded
            if self.on_progress is not None:
                self.on_progress(VerifyProgress(self._done, self._total, self.faults.count))
