"""The state of an unfinished pack in DEST/.pack/. A pack can be killed at any time and resume.

``plan.json``           source and options of the pack; a resume with other options is refused
``listing.*``           the frozen list of samples (listing.py)
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
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._common import files
from fastload._common.checksum import crc32c
from fastload._common.files import writing
from fastload._pack.encode_choice import EncodeChoice
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
            with writing(path, needed=4096):
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
        found = self._read("plan.json")
        if found is None:
            _write_sealed(self.folder / "plan.json", plan)
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

    def has_plan(self, plan: dict[str, object]) -> bool | None:
        """Returns whether the stored plan equals ``plan``, or None if there is no plan."""
        found = self._read("plan.json")
        return None if found is None else found == as_json(plan)

    def _read(self, name: str) -> Any:
        """Returns the content of a sealed file, or None if it does not exist."""
        path = self.folder / name
        try:
            return _read_sealed(path)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise damaged(path, str(error)) from None

    def encode_choice(self) -> EncodeChoice | None:
        """Returns the stored choice of `--encode auto`."""
        stored = self._read("encode.json")
        return None if stored is None else EncodeChoice(**stored)

    def remember_encode_choice(self, choice: EncodeChoice) -> None:
        """Stores the choice, so that a resumed pack does not measure again with another result."""
        _write_sealed(self.folder / "encode.json", asdict(choice))

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
        _write_sealed(self.folder / f"done-{number:05}.json", asdict(done))

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


def _write_sealed(path: Path, value: object) -> None:
    """Writes a line of JSON and its checksum: a changed number would silently lose samples."""
    line = json.dumps(value).encode()
    files.write_atomically(path, b"%s\n%08x\n" % (line, crc32c(line)))


def _read_sealed(path: Path) -> Any:
    line, _, rest = path.read_bytes().partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        raise ValueError("wrong checksum")
    return json.loads(line)


def _differences(found: object, wanted: object) -> str:
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


def _flat(plan: object) -> dict[str, object]:
    """Flattens a plan so that a message can name the option or field that changed."""
    values = dict(plan) if isinstance(plan, dict) else {}
    options = values.pop("options", {})
    fields = values.pop("fields", [])
    kinds = {
        f"field {name!r}": ("list of " * listed + kind, *more)
        if any(more)
        else "list of " * listed + kind
        for name, kind, listed, *more in fields
    }
    return {**values, **kinds, **(options if isinstance(options, dict) else {})}
