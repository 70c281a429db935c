"""Verifying a dataset: manifest, then sizes and digests, then records, in threads, never stopping at the first fault.

Order matters for safety: a file is mapped only after its size and SHA-256 were found right by plain reads. LMDB follows a
damaged file wherever it leads, and a file that is too short ends the process (SIGBUS); reading can do neither.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import lmdb

from fastload._common import files
from fastload._common.cpus import available_cpus
from fastload._common.public import public
from fastload._store.environment import Environment, open_environment
from fastload._store.folder import read_manifest
from fastload._store.lmdb_tree import META_BYTES
from fastload._store.manifest import NAME as MANIFEST
from fastload._store.manifest import Manifest, Shard
from fastload._store.verify.columns import check_structure, open_columns
from fastload._store.verify.record import RecordChecker
from fastload._store.verify.report import Fault, FaultList, VerifyReport
from fastload._store.verify.search import search_records
from fastload.errors import ConfigError, CorruptManifest

_PIECE = 64  # records a thread takes at a time: threads share a shard, and progress moves


@public()
@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """How far a verification is."""

    done: int  # records, of shards that are not mapped too
    total: int
    faults: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """A run of records of an open shard."""

    place: int
    shard: Shard
    environment: Environment
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
    """Checks a packed dataset: sizes, digests and every record; with ``deep`` it decodes every image.

        report = fastload.verify("packed", deep=True)
        if not report.ok:
            print(report)          # what `fastload verify` prints
            for fault in report.faults:
                print(fault.shard, fault.record, fault.source, fault.what)

    Damage is in the report; StoreError is raised only where there is no dataset. ``shard`` checks
    only the shard with this number. ``jobs`` is the number of threads, 0 = every core this process
    may use. ``on_progress`` is called from these threads, one call at a time. Memory: ``jobs`` times
    a record and its pixels, and at most 100 MB for the columns, for any size of the dataset.
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
    run = _Verification(
        folder,
        manifest,
        deep=deep,
        chosen=_chosen(folder, manifest, shard),
        on_progress=on_progress,
    )
    run.work(jobs or available_cpus())
    return run.report(
        time.monotonic() - started, only="" if shard is None else run.shards[0][1].name
    )


def _chosen(folder: Path, manifest: Manifest, number: int | None) -> list[tuple[int, Shard]]:
    places = list(enumerate(manifest.shards))
    if number is None:
        return places
    chosen = [
        (place, shard)
        for place, shard in places
        if int(shard.name.removeprefix("shard-").removesuffix(".lmdb")) == number
    ]
    if not chosen:
        raise ConfigError(
            f"shard {number}: {folder} has {len(places)} shards"
            + (f", {places[0][1].name} to {places[-1][1].name}" if places else "")
        )
    return chosen


class _Queue:
    """Hands out work: the records of open shards first, then the next shard, so that few are open at a time."""

    def __init__(self, shards: Iterable[tuple[int, Shard]]) -> None:
        self._shards = deque(shards)
        self._pieces: deque[_Piece] = deque()
        self._opening = 0
        self._closed = False
        self._changed = threading.Condition()

    def take(self) -> _Piece | tuple[int, Shard] | None:
        """The next piece of work; waits while others may still bring some. None = no more."""
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
        """To be called once for every shard that was taken."""
        with self._changed:
            self._opening -= 1
            self._pieces.extend(pieces)
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody gets any more work."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class _Verification:
    """One run over the shards ``chosen``."""

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

    def work(self, jobs: int) -> None:
        """Runs the threads; whatever ends it early, no thread is left behind."""
        queue = _Queue(self.shards)
        with ThreadPoolExecutor(jobs, thread_name_prefix="fastload-verify") as pool:
            try:
                futures = [pool.submit(self._worker, queue) for _ in range(jobs)]
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                queue.close()  # after an error or Ctrl-C: the others end with the piece they have
        for future in futures:
            future.result()

    def report(self, seconds: float, *, only: str) -> VerifyReport:
        """What was found."""
        n_bytes = sum(shard.size for _, shard in self.shards) + sum(
            column.size for column in self.manifest.columns
        )
        return VerifyReport(
            path=self.folder,
            n_samples=self.manifest.n_samples,
            n_shards=len(self.shards),
            n_columns=len(self.manifest.columns),
            n_bytes=n_bytes,
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
        finished = False
        try:
            while (work := queue.take()) is not None:
                if isinstance(work, _Piece):
                    self._check(work)
                else:
                    queue.opened(self._open(*work))
            finished = True
        finally:
            if not finished:
                queue.close()

    def _open(self, place: int, shard: Shard) -> list[_Piece]:
        """Compares size and digest; the records to check, none where the file is not what it was."""
        try:
            descriptor, size = files.open_regular(self.folder / shard.name)
        except OSError as error:
            self._not_mapped(place, shard, f"cannot be opened: {error.strerror}")
            return []
        try:
            if size != shard.size:
                self._damaged(
                    place, shard, f"{size} bytes, expected {shard.size}", descriptor, size
                )
                return []
            digest = files.sha256_of(descriptor, first_last=META_BYTES)
            if digest != shard.sha256:
                self._damaged(
                    place,
                    shard,
                    f"SHA-256 {digest[:16]}..., expected {shard.sha256[:16]}...",
                    descriptor,
                    size,
                )
                return []
            status = os.fstat(descriptor)
            environment = open_environment(descriptor, (status.st_dev, status.st_ino), size)
        except (OSError, lmdb.Error) as error:
            self._not_mapped(place, shard, f"cannot be read: {error}")
            return []
        finally:
            os.close(descriptor)
        if environment.entries != shard.records:
            self.faults.add(
                place,
                Fault(
                    shard.name,
                    None,
                    "",
                    f"it holds {environment.entries} records, expected {shard.records}",
                ),
            )
        return [
            _Piece(place, shard, environment, range(start, min(start + _PIECE, shard.records)))
            for start in range(0, shard.records, _PIECE)
        ]

    def _damaged(self, place: int, shard: Shard, why: str, descriptor: int, size: int) -> None:
        """Names the damaged records of a file that must not be mapped."""
        found = search_records(descriptor, size, shard)
        if not found.finished or not found.whole:
            what = (
                "none of its records was found in it: another shard's file?"
                if found.finished
                else "not searched for records"
            )
            self._not_mapped(place, shard, f"{why}; {what}")
            return
        if not found.broken and not found.missing:
            self._not_mapped(
                place,
                shard,
                f"{why}; all {found.whole} records are whole: another pack's file, or damage between records",
            )
            return
        self._not_mapped(
            place,
            shard,
            f"{why}; a search of its bytes found {found.whole} whole records, {len(found.broken)} damaged, "
            f"{len(found.missing)} not at all",
        )
        for number, (what, source) in found.broken.items():
            self.faults.add(place, Fault(shard.name, number, source, what))
        for number in found.missing:
            self.faults.add(
                place, Fault(shard.name, number, "", "the record was not found in the damaged file")
            )

    def _not_mapped(self, place: int, shard: Shard, what: str) -> None:
        self.faults.add(place, Fault(shard.name, None, "", what))
        with self._lock:
            self._not_checked[place] = shard
        self._advance(shard.records)

    def _check(self, piece: _Piece) -> None:
        shard = piece.shard
        checked = 0
        decoded = 0
        for number in piece.records:
            sample_id = shard.first + number
            try:
                value = piece.environment.get(sample_id.to_bytes(8, "big"))
            except lmdb.Error as error:
                self.faults.add(
                    piece.place, Fault(shard.name, number, "", f"cannot be read: {error}")
                )
                continue
            if value is None:
                self.faults.add(piece.place, Fault(shard.name, number, "", "the record is missing"))
                continue
            source, wrong, images = self._checker.check(sample_id, value)
            for what in wrong:
                self.faults.add(piece.place, Fault(shard.name, number, source, what))
            checked = checked + 1
            decoded = decoded + images
        self._advance(len(piece.records), checked=checked, decoded=decoded)

    def _advance(self, done: int, *, checked: int = 0, decoded: int = 0) -> None:
        with self._lock:
            self._done += done
            self._checked += checked
            self._decoded += decoded
            if self.on_progress is not None:
                self.on_progress(VerifyProgress(self._done, self._total, self.faults.count))
