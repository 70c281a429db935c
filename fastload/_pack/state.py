"""The state of an unfinished pack in DEST/.pack/. A pack can be killed at any time and resume.

``plan.json``           source and options of the pack; a resume with other options is refused
``listing.*``           the frozen list of samples (``Listing``)
``spool.records``       the encoded samples of a stream (jobs.py)
``encode.json``         the choice of `--encode auto`
``done-00007.json``     written after shard 7 is published: its manifest entry, the next position
``rows-00007.npz``      the column rows of that shard
``lock``                held by the running pack; the kernel releases it when the process ends

Every file is written under a temporary name, synced and renamed. The folder is removed after the
manifest is published. A shard whose state is damaged is packed again.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import json
import mmap
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._common import files
from fastload._common.checksum import crc32c
from fastload._pack.sources.base import Ref
from fastload._store.manifest import Shard
from fastload.errors import ConfigError, StoreError

FOLDER = ".pack"
Rows = dict[str, NDArray[np.generic]]


@dataclass(slots=True)
class Event:
    """A skipped or converted source sample: one line in DEST/pack-log.jsonl."""

    event: str  # "skipped" or "converted"
    source: str
    why: str


@dataclass(slots=True)
class Done:
    """One published shard and the position after it."""

    shard: Shard
    next_position: int  # in the packing order: the first position not yet processed
    blocks: list[tuple[int, int]]  # (first sample, number of samples)
    events: list[Event] = field(default_factory=list)
    bytes_in: int = 0
    bytes_out: int = 0


class PackState:
    """The folder DEST/.pack of a running pack. A context manager that holds the lock."""

    def __init__(self, dest: Path) -> None:
        self.dest = dest
        self.folder = dest / FOLDER
        self._lock = -1

    def __enter__(self) -> PackState:
        path = self.folder / "lock"
        while True:
            with files.writing(path, needed=4096):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The previous owner may have removed its folder since this process opened the file.
                if os.path.samestat(os.fstat(self._lock), path.stat()):
                    return self
            except BlockingIOError:
                os.close(self._lock)
                raise StoreError(
                    f"{self.dest}: another fastload pack is running here. Wait for it or stop it"
                ) from None
            except FileNotFoundError:
                pass
            os.close(self._lock)

    def __exit__(self, *error: object) -> None:
        os.close(self._lock)

    def check_plan(self, plan: dict[str, object]) -> None:
        """Stores the plan of a new pack. Raises ConfigError if the stored plan differs."""
        found = self.read("plan.json")
        if found is None:
            self.write("plan.json", plan)
        elif found != as_json(plan):
            raise ConfigError(
                f"{self.dest} contains an unfinished pack with other options: "
                f"{_differences(found, as_json(plan))}. Use the same options to resume, choose "
                f"another DEST, or remove {self.dest} to start over"
                + (
                    ""
                    if next(self.finished(), None)
                    else " (no shard is finished: nothing is lost)"
                )
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

    def write(self, name: str, value: object) -> None:
        """Writes a line of JSON and its checksum: a changed number would silently lose samples."""
        line = json.dumps(value).encode()
        files.write_atomically(self.folder / name, b"%s\n%08x\n" % (line, crc32c(line)))

    def finished(self) -> Iterator[Done]:
        """Yields the finished shards in order, up to the first with missing or damaged state."""
        for number in itertools.count():
            try:
                done = self.done(number)
                if any(len(rows) != done.shard.records for rows in self.rows(number).values()):
                    return
            except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
                return
            yield done

    def done(self, number: int) -> Done:
        """Returns the stored state of one published shard."""
        row = _read_sealed(self.folder / f"done-{number:05}.json")
        return Done(
            Shard(*row["shard"]),
            row["next_position"],
            [(first, count) for first, count in row["blocks"]],
            [Event(**event) for event in row["events"]],
            row["bytes_in"],
            row["bytes_out"],
        )

    def record(self, number: int, done: Done, rows: Rows) -> None:
        """Stores the state of a published shard, which is never written again."""
        packed = io.BytesIO()
        np.savez(packed, **rows)  # type: ignore[arg-type]
        files.write_atomically(self.folder / f"rows-{number:05}.npz", packed.getvalue())
        self.write(f"done-{number:05}.json", asdict(done))

    def rows(self, number: int, names: Iterable[str] | None = None) -> Rows:
        """Returns the column rows of a finished shard, of all columns or only of ``names``."""
        with np.load(self.folder / f"rows-{number:05}.npz", allow_pickle=False) as stored:
            return {name: stored[name] for name in names or stored.files}

    def remove(self) -> None:
        """Removes the folder. The plan goes last, so the same command still recognizes its pack."""
        for path in sorted(
            self.folder.iterdir(),
            key=lambda path: (path.name == "plan.json", path.name == "lock", path.name),
        ):
            path.unlink(missing_ok=True)
        # rmdir fails if another pack has just started here. That pack finds the manifest and stops.
        with contextlib.suppress(OSError):
            self.folder.rmdir()


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
    return json.loads(line)


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
        f"field {name!r}": ("list of " * listed + kind, *more)
        if any(more)
        else "list of " * listed + kind
        for name, kind, listed, *more in plan.get("fields", [])
    }
    others = {name: value for name, value in plan.items() if name not in ("fields", "options")}
    return {**others, **kinds, **plan.get("options", {})}


LINES = "listing.jsonl"
OFFSETS = "listing.offsets"
_CHUNK_LINES = 4096  # lines per write


def write_listing(folder: Path, refs: Iterable[Ref], on_progress: Callable[[int], None]) -> None:
    """Writes and publishes both files. The offsets are published last and prove completeness."""
    with files.NewFile(folder / LINES) as lines, files.NewFile(folder / OFFSETS) as offsets:
        count = lines_crc = 0
        first = bytes(8)  # the first line starts at 0
        offsets.write(first)
        offsets_crc = crc32c(first)
        remaining = iter(refs)
        while chunk := [
            json.dumps(ref, allow_nan=False, separators=(",", ":")).encode() + b"\n"
            for ref in itertools.islice(remaining, _CHUNK_LINES)
        ]:
            ends = (lines.size + np.cumsum([len(line) for line in chunk])).astype("<u8").tobytes()
            data = b"".join(chunk)
            lines.write(data)
            offsets.write(ends)
            lines_crc = crc32c(data, lines_crc)
            offsets_crc = crc32c(ends, offsets_crc)
            count += len(chunk)
            on_progress(count)
        offsets.write((lines_crc << 32 | offsets_crc).to_bytes(8, "little"))
        lines.publish()
        offsets.publish()


class Listing:
    """The memory-mapped list: ``listing[i]`` is the ref of source sample i.

    Raises StoreError if the files are damaged.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._lines, lines_crc = _mapped(folder / LINES)
            self._index, _ = _mapped(folder / OFFSETS)
            stored = np.frombuffer(self._index, "<u8")
        except (OSError, ValueError) as error:  # ValueError: the size is not a multiple of 8
            raise damaged(folder / LINES, str(error)) from None
        self._offsets = stored[:-1]
        if not len(self._offsets) or int(stored[-1]) != lines_crc << 32 | crc32c(
            memoryview(self._index)[:-8]
        ):
            raise damaged(folder / LINES, "wrong checksum")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, i: int) -> Ref:
        if not 0 <= i < len(self):
            raise ConfigError(f"listing entry {i}: expected 0 to {len(self) - 1}")
        ref: Ref = json.loads(self._lines[int(self._offsets[i]) : int(self._offsets[i + 1])])
        return ref

    def close(self) -> None:
        """Unmaps the files. Deleted files keep their disk space while they are mapped."""
        # Drop the references instead of calling close(), which raises BufferError while a thread or
        # a debugger still holds an array over the map.
        self._offsets = np.zeros(1, "<u8")
        self._lines = self._index = b""


def _mapped(path: Path) -> tuple[mmap.mmap | bytes, int]:
    """Returns a mapped file and its CRC-32C. An empty file cannot be mapped."""
    descriptor, size = files.open_regular(path)
    try:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b"", int(
            files.crc32c_of(descriptor), 16
        )
    finally:
        os.close(descriptor)
