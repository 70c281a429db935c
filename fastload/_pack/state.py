"""The state of an unfinished pack in DEST/.pack/. A pack can be killed at any time and resume.

``plan.json``           source and options of the pack; a resume with other options is refused
``listing.*``           the frozen list of samples and their splits (``Listing``)
``spool.records``       the encoded samples of a stream (jobs.py)
``encode.json``         the choice of `--encode auto`
``layout.json``         number of samples and positions per part (layout.py)
``done-00007.json``     written after part 7 is published: its shards, blocks, properties, events
``rows-00007.npz``      the column rows of that part
``journal-00008``       the samples of an unfinished part (journal.py)
``shard-00008.lmdb``    the records of these samples: the unfinished shard
``lock``                held by the running pack; the kernel releases it when the process ends
``lock.holder``         instead of the lock of an exclusive pack if the file system has none
``listing.lock``        held by the worker that lists the source, while the others wait
``worker-PID-RANDOM``   held by a process that packs parts; names the owner of temporary files

Every file except the journals and unfinished shards is written under a temporary name, synced and
renamed. Files that several machines might decide differently (plan, choice, layout, end of the
listing, manifest) are published only if they do not exist, so that the first machine decides. The
folder is removed after the manifest is published. A part whose state is damaged is packed again.

Workers may outlive the pack: a machine that did not answer for a while counts as dead, and another
one packs its part. The process that publishes therefore removes the temporary files of all workers.
A worker whose own file is gone publishes nothing more, and a worker never creates the folder.

A process that packs alone leaves journals and unfinished shards to the next run. Processes that
pack together do not use them: they start an unfinished part again.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import io
import itertools
import json
import mmap
import os
import re
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._common import files
from fastload._common.checksum import crc32c
from fastload._pack.locks import MAX_IDLE_SECONDS, HolderFile, NoLocks, boot_id, locked
from fastload._pack.sources.base import Ref
from fastload._store.columns import FOLDER as COLUMNS
from fastload._store.manifest import NAME as MANIFEST
from fastload._store.manifest import Shard
from fastload._store.properties import Properties
from fastload.errors import ConfigError, StoreError

FOLDER = ".pack"
_UNFINISHED = re.compile(r"(journal|shard)-([0-9]{5,7})(\..*)?")
_REMOVALS = 10  # attempts, because a starting worker may create its file in between
_here: Counter[Path] = Counter()  # worker files of this process: number of threads that use them
_counting = threading.Lock()
Rows = dict[str, NDArray[np.generic]]


@dataclass(slots=True)
class Event:
    """A skipped or converted sample, or a file that is no sample: a line in pack-log.jsonl."""

    event: str  # "skipped", "converted" or "left out"
    source: str
    why: str


@dataclass(slots=True)
class Done:
    """One published part. Its samples count from 0."""

    positions: tuple[int, int]  # start and end in the packing order
    shards: list[Shard]
    blocks: list[tuple[int, int]]  # (first sample, number of samples)
    properties: list[Properties]  # of the fields
    events: list[Event] = field(default_factory=list)
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def records(self) -> int:
        return sum(shard.records for shard in self.shards)

    def summary(self) -> Done:
        """Returns the part without what only ``publish`` needs, which reads it part by part.

        A dataset of 10^9 samples has 12 million blocks, and may have as many events as samples.
        """
        return replace(self, blocks=[], properties=[], events=[])

    def as_json(self) -> dict[str, object]:
        properties = [each.as_json() for each in self.properties]
        return {**asdict(self), "properties": properties}

    @classmethod
    def from_json(cls, row: Any) -> Done:
        """Converts the result of ``as_json`` back; raises ValueError if it is something else."""
        try:
            first, last = row["positions"]
            properties = [
                Properties.from_json("properties", each, last - first) for each in row["properties"]
            ]
            return cls(
                (first, last),
                [Shard(*shard) for shard in row["shards"]],
                [(first, count) for first, count in row["blocks"]],
                properties,
                [Event(**event) for event in row["events"]],
                row["bytes_in"],
                row["bytes_out"],
            )
        except (TypeError, KeyError) as error:
            raise ValueError(f"not the state of a part: {error}") from None


class PackState:
    """The folder DEST/.pack of a running pack. A context manager that holds the locks.

    A pack on one machine excludes all others. Workers that pack parts (``shared``) exclude only
    such a pack. Locks protect files of running workers from removal; the output does not depend on
    them, because every file is published atomically and all writers write the same bytes.
    """

    def __init__(
        self,
        dest: Path,
        *,
        shared: bool = False,
        wait: bool = False,
        removes: bool = True,
        creates: bool = True,
    ) -> None:
        self.dest = dest
        self.folder = dest / FOLDER
        self.shared = shared
        self._wait = wait  # for the end of another pack
        self._removes = removes  # files of killed processes, which takes a listing of the folders
        self._creates = creates  # the folder; otherwise it must exist
        self._worker = self.folder / f"worker-{files.owner()}"
        self._locks: list[int] = []
        self._holder = HolderFile(self.folder / "lock.holder")
        self._has_locks = True

    def __enter__(self) -> PackState:
        kind = fcntl.LOCK_SH if self.shared else fcntl.LOCK_EX
        try:
            self._locks.append(
                locked(self.folder / "lock", kind, create_folder=self._creates, wait=self._wait)
            )
        except BlockingIOError:
            raise self._is_busy() from None
        except NoLocks:
            self._has_locks = False
            if not self.shared:
                self._hold()
        try:
            if self.shared:
                self._add_worker(kind)
            if self._removes:
                if self.shared:
                    self.remove_unfinished()
                self._remove_leftovers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self.shared and (self.dest / MANIFEST).exists():
            self.remove()  # what this worker wrote after the dataset was published
        for descriptor in self._locks:
            os.close(descriptor)
        if self.shared:
            with _counting:
                _here[self._worker] -= 1
                if not _here[self._worker]:  # no other thread of this process packs here
                    del _here[self._worker]
                    self._worker.unlink(missing_ok=True)
        elif not self._has_locks:
            self._holder.release()
        if not self.shared and not self._has_locks and (self.dest / MANIFEST).exists():
            with contextlib.suppress(OSError):  # another process is running
                self.folder.rmdir()

    def _add_worker(self, kind: int) -> None:
        with _counting:
            _here[self._worker] += 1
            if self._has_locks:
                descriptor = locked(self._worker, kind, create_folder=self._creates)
                self._locks.append(descriptor)
                # Not by name: another process may have published and removed the file.
                os.pwrite(descriptor, boot_id().encode(), 0)
            else:
                self._worker.write_text(boot_id())
        # An exclusive pack creates its file first and then checks for workers: one of both stops.
        if not self._has_locks and self._holder.is_held():
            raise self._is_busy()

    def _hold(self) -> None:
        """Excludes others where the file system has no locks."""
        try:
            self._holder.acquire(wait=self._wait)
        except BlockingIOError:
            raise self._is_busy() from None
        if any(self._is_running(path) for path in self.folder.glob("worker-*")):
            self._holder.release()
            raise self._is_busy()

    def _is_busy(self) -> StoreError:
        advice = (
            ""
            if self._has_locks
            else f". The file system has no locks: if no pack is running, remove "
            f"{self._holder.path} and {self.folder}/worker-*"
        )
        return StoreError(
            f"{self.dest}: another fastload pack is running here. Wait for it or stop it{advice}"
        )

    @contextlib.contextmanager
    def one_lister(self) -> Iterator[None]:
        """Workers that start at the same time wait for the one that lists the source.

        Without locks, all of them list it, and the first list counts.
        """
        try:
            descriptor = locked(self.folder / "listing.lock", fcntl.LOCK_EX, wait=True)
        except NoLocks:
            yield
            return
        try:
            yield
        finally:
            os.close(descriptor)

    def _remove_leftovers(self) -> None:
        """Removes the temporary files of killed processes."""
        for path in self.folder.glob("worker-*"):
            if not self.shared or not self._is_running(path):
                path.unlink(missing_ok=True)
        for folder in (self.dest, self.folder, self.dest / COLUMNS):
            for path in folder.iterdir() if folder.is_dir() else ():
                owner = files.owner_of(path.name)
                # A worker creates its lock before its first file and removes it last.
                if (
                    owner
                    and not (self.folder / f"worker-{owner}").exists()
                    and not path.is_dir()  # of a dataset operation, which removes it
                ):
                    path.unlink(missing_ok=True)

    def _is_running(self, worker: Path) -> bool:
        """Returns whether the process that created this file still runs, on any machine."""
        try:
            try:
                os.close(locked(worker, fcntl.LOCK_EX, create=False))
                if worker.read_text() == boot_id():
                    return False
            except NoLocks:
                pass
            # Some network file systems have no locks, or do not show those of other machines.
            own = self._worker if self.shared else self._holder.path
            idle = own.stat().st_mtime - worker.stat().st_mtime
            return idle < MAX_IDLE_SECONDS
        except FileNotFoundError:
            return False
        except OSError:
            return True  # locked

    def touch(self) -> None:
        """Shows other machines that this process is running."""
        if self.shared or not self._has_locks:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self._worker if self.shared else self._holder.path)

    def check_running(self) -> None:
        """Raises StoreError in a worker whose pack ended: another process published the dataset.

        DEST may be in use for another pack by then, whose state this worker must not change.
        """
        if self.shared and not self._has_worker_file():
            failure = StoreError(
                f"{self.dest}: this pack was completed or removed by another process. Run the same "
                "command again"
            )
            failure.errno = errno.ENOENT
            raise failure

    def _has_worker_file(self) -> bool:
        try:
            found = self._worker.stat()
        except FileNotFoundError:
            return False
        # Another thread may have created it for another pack. The second lock is that of the file.
        return not self._has_locks or os.path.samestat(found, os.fstat(self._locks[1]))

    def check_plan(self, plan: Mapping[str, object]) -> None:
        """Stores the plan of a new pack. Raises ConfigError if the stored plan differs."""
        while (found := self.read("plan.json")) is None:
            if self.write("plan.json", plan, replace=False):
                return
        if found != as_json(plan):
            try:
                differences = _differences(found, as_json(plan))
            except (AttributeError, TypeError, ValueError) as error:
                raise damaged(self.folder / "plan.json", f"not a plan: {error}") from None
            raise ConfigError(
                f"{self.dest} contains an unfinished pack with other options: {differences}. "
                "Use the same options and versions to resume, choose another DEST, or remove "
                f"{self.dest} to start over"
                + ("" if self.has_parts() else " (no sample is packed: nothing is lost)")
            )

    def read(self, name: str) -> Any:
        """Returns what ``write`` stored, or None. Raises StoreError if the file is damaged."""
        path = self.folder / name
        try:
            return _read_sealed(path)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise damaged(path, str(error)) from None

    def write(self, name: str, value: object, *, replace: bool = True) -> bool:
        """Writes a line of JSON and its checksum: a changed number would silently lose samples.

        ``replace`` and the result are those of ``files.publish``.
        """
        line = json.dumps(value).encode()
        data = b"%s\n%08x\n" % (line, crc32c(line))
        return files.write_atomically(self.folder / name, data, replace=replace)

    def has_parts(self) -> bool:
        """Returns whether any part has samples that the next run takes over."""
        return bool(self.recorded() or self.unfinished())

    def journal(self, number: int) -> Path:
        """Returns the path of the journal of an unfinished part."""
        return self.folder / f"journal-{number:05}"

    def unfinished(self) -> set[int]:
        """Returns the numbers of the parts that have a journal."""
        found = (_UNFINISHED.fullmatch(path.name) for path in self.folder.glob("journal-*"))
        return {int(name[2]) for name in found if name and not name[3]}

    def remove_unfinished(self, except_parts: Container[int] = ()) -> None:
        """Removes the journals and unfinished shards of all other parts."""
        for path in self.folder.iterdir():
            found = _UNFINISHED.fullmatch(path.name)
            if found and int(found[2]) not in except_parts:
                path.unlink(missing_ok=True)

    def recorded(self) -> set[int]:
        """Returns the numbers of the parts whose last file exists."""
        names = [path.name for path in self.folder.glob("done-*.json")]
        return {int(name.removeprefix("done-").removesuffix(".json")) for name in names}

    def finished(self, number: int, positions: range) -> Done | None:
        """Returns a finished part, or None if its state is missing, damaged or of other samples."""
        self.touch()
        try:
            done = self.done(number)
            lengths = {len(rows) for rows in self.rows(number).values()}
            same_rows = lengths == {done.records}
        except (OSError, TypeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
            return None
        same = done.positions == (positions.start, positions.stop)
        return done if same and same_rows else None

    def done(self, number: int) -> Done:
        """Returns the stored state of one published part."""
        return Done.from_json(_read_sealed(self.folder / f"done-{number:05}.json"))

    def record(self, number: int, done: Done, rows: Rows) -> None:
        """Stores the state of a published part. The last file completes it."""
        self.check_running()
        self.touch()
        packed = io.BytesIO()
        np.savez(packed, **rows)  # type: ignore[arg-type]
        files.write_atomically(self.folder / f"rows-{number:05}.npz", packed.getvalue())
        self.write(f"done-{number:05}.json", done.as_json())

    def rows(self, number: int, names: Iterable[str] | None = None) -> Rows:
        """Returns the column rows of a finished part, of all columns or only of ``names``."""
        with np.load(self.folder / f"rows-{number:05}.npz", allow_pickle=False) as stored:
            return {name: stored[name] for name in names or stored.files}

    def remove(self) -> None:
        """Removes the folder. The plan goes last, so the same command still recognizes its pack.

        Also removes the temporary files of workers that still run: their parts are not needed.
        Has no effect if the folder belongs to another operation that began after this pack ended.
        """
        for _ in range(_REMOVALS):
            try:
                if self._is_of_another():
                    return
                self._remove_files_of_workers()
                for path in sorted(self.folder.iterdir(), key=_removal_order):
                    if path.name != "lock" or not self._is_of_another():
                        path.unlink(missing_ok=True)
                self.folder.rmdir()
            except FileNotFoundError:
                return  # another worker removed the folder
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    return  # e.g. a file system that keeps open files under another name
            else:
                return

    def _is_of_another(self) -> bool:
        """Returns whether another operation holds the folder, for example an append."""
        if not self._locks:
            return self.shared and self._holder.is_held()
        try:
            found = (self.folder / "lock").stat()
        except FileNotFoundError:
            return False
        return not os.path.samestat(found, os.fstat(self._locks[0]))

    def _remove_files_of_workers(self) -> None:
        """Removes the temporary files of all processes that pack parts of this dataset."""
        owners = {path.name.removeprefix("worker-") for path in self.folder.glob("worker-*")}
        for folder in (self.dest, self.dest / COLUMNS):
            for path in folder.iterdir() if folder.is_dir() else ():
                if files.owner_of(path.name) in owners and not path.is_dir():
                    path.unlink(missing_ok=True)


def _removal_order(path: Path) -> tuple[bool, bool, str]:
    return path.name == "plan.json", path.name.startswith("lock"), path.name


def damaged(path: Path, why: str) -> StoreError:
    """Returns the error for a damaged file in the state of an unfinished pack."""
    return StoreError(
        f"cannot resume: {path} is damaged ({why}). Remove {path.parent.parent} and pack again"
    )


def as_json(value: object) -> object:
    """Returns the value after a JSON round trip, in which tuples become lists."""
    return json.loads(json.dumps(value))


def _read_sealed(path: Path) -> Any:
    line, _, rest = path.read_bytes().partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        raise ValueError("wrong checksum")
    try:
        found = json.loads(line)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if found is None:  # which means "no such file"
        raise ValueError("no content")
    return found


def _differences(found: Any, wanted: Any) -> str:
    one = _flat(found)
    other = _flat(wanted)
    return (
        "; ".join(
            f"{key} was {one.get(key)!r:.80}, now {other.get(key)!r:.80}"
            for key in sorted({*one, *other})
            if one.get(key) != other.get(key)
        )
        or "the order of the fields differs"
    )


def _flat(plan: dict[str, Any]) -> dict[str, object]:
    """Flattens a plan so that a message can name the option or field that changed."""
    kinds = {
        f"field {name!r}": (shown, *more) if any(more) else shown
        for name, kind, listed, *more in plan.get("fields", [])
        for shown in [f"list of {kind}" if listed else kind]
    }
    nested = ("fields", "options", "versions")
    others = {name: value for name, value in plan.items() if name not in nested}
    return {**others, **kinds, **plan.get("options", {}), **plan.get("versions", {})}


LINES = "listing.jsonl"
OFFSETS = "listing.offsets"
SPLITS = "listing.splits"
_CHUNK_LINES = 4096  # lines per write


def write_listing(
    folder: Path,
    refs: Iterable[Ref],
    on_progress: Callable[[int], None],
    split_of: Callable[[Ref], int] | None = None,
) -> None:
    """Writes and publishes the files. The offsets are published last and prove completeness."""
    splits = array.array("H")
    encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
    with files.NewFile(folder / LINES) as lines, files.NewFile(folder / OFFSETS) as offsets:
        count = lines_crc = 0
        first = bytes(8)  # the first line starts at 0
        offsets.write(first)
        offsets_crc = crc32c(first)
        remaining = iter(refs)
        while taken := list(itertools.islice(remaining, _CHUNK_LINES)):
            if split_of is not None:
                splits.extend(map(split_of, taken))
            chunk = [sealed_line(row, encode(ref).encode()) for row, ref in enumerate(taken, count)]
            ends = (lines.size + np.cumsum([len(line) for line in chunk])).astype("<u8").tobytes()
            data = b"".join(chunk)
            lines.write(data)
            offsets.write(ends)
            lines_crc = crc32c(data, lines_crc)
            offsets_crc = crc32c(ends, offsets_crc)
            count += len(chunk)
            on_progress(count)
        offsets.write((lines_crc << 32 | offsets_crc).to_bytes(8, "little"))
        if (folder / OFFSETS).exists():
            return  # another machine was faster
        lines.publish()
        if split_of is not None:
            data = np.array(splits, "<u2").tobytes()
            files.write_atomically(folder / SPLITS, data + crc32c(data).to_bytes(4, "little"))
        offsets.publish(replace=False)


def sealed_line(row: int, line: bytes) -> bytes:
    """Returns a line of the listing. Its checksum also covers its number."""
    return b"%08x %s\n" % (crc32c(line, row & 0xFFFFFFFF), line)


class Listing:
    """The memory-mapped list: ``listing[i]`` is the ref of source sample i.

    Every line has a checksum, which is verified when the line is read. A thousand workers that
    read some lines of a large list therefore need not read all of it. ``verify`` checks all.

    ``splits`` has the split of each sample, or is None without splits. Raises StoreError if the
    files are damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LINES
        try:
            self._lines = _mapped(self._path)
            self._index = _mapped(folder / OFFSETS)
            stored = np.frombuffer(self._index, "<u8")
        except (OSError, ValueError) as error:  # ValueError: the size is not a multiple of 8
            raise damaged(self._path, str(error)) from None
        self.checksum = int(stored[-1]) if len(stored) else 0
        self._offsets = stored[:-1]
        if not len(self._offsets) or int(self._offsets[-1]) != len(self._lines):
            raise damaged(self._path, "wrong size")
        self.splits = _read_splits(folder / SPLITS, len(self))

    def expect_random_reads(self) -> None:
        """Reads one page per line. The kernel would read 128 KiB around each line of a shuffle."""
        for mapped in (self._lines, self._index):
            if isinstance(mapped, mmap.mmap):
                mapped.madvise(mmap.MADV_RANDOM)

    def verify(self) -> None:
        """Checks every byte, so that a pack does not fail after hours."""
        descriptor, _ = files.open_regular(self._path)
        try:
            lines_crc = int(files.crc32c_of(descriptor), 16)
        finally:
            os.close(descriptor)
        if self.checksum != lines_crc << 32 | crc32c(memoryview(self._index)[:-8]):
            raise damaged(self._path, "wrong checksum")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, i: int) -> Ref:
        if not 0 <= i < len(self):
            raise ConfigError(f"listing entry {i}: expected 0 to {len(self) - 1}")
        stored = self._lines[int(self._offsets[i]) : int(self._offsets[i + 1])]
        line = stored[9:-1]
        if stored != sealed_line(i, line):
            raise damaged(self._path, f"line {i + 1} has a wrong checksum")
        try:
            ref: Ref = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise damaged(self._path, f"entry {i}: {error}") from None
        return ref

    def close(self) -> None:
        """Unmaps the files. Deleted files keep their disk space while they are mapped."""
        # Drop the references instead of calling close(), which raises BufferError while a thread or
        # a debugger still holds an array over the map.
        self._offsets = np.zeros(1, "<u8")
        self._lines = self._index = b""


def _read_splits(path: Path, n: int) -> NDArray[np.uint16] | None:
    if not path.exists():
        return None
    data = path.read_bytes()
    if len(data) != 2 * n + 4 or data[-4:] != crc32c(data[:-4]).to_bytes(4, "little"):
        raise damaged(path, "wrong size or checksum")
    return np.frombuffer(data, "<u2", n)


def _mapped(path: Path) -> mmap.mmap | bytes:
    """Returns a mapped file. An empty file cannot be mapped."""
    descriptor, size = files.open_regular(path)
    try:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b""
    finally:
        os.close(descriptor)
