"""What a pack remembers on disk, so that it can be killed at any moment and go on: DEST/.pack/.

``plan.json``           what is being packed and how; a resume with other options is refused
``listing.*``           the frozen list of source samples (listing.py); with ``spool.records`` for streams (jobs.py)
``encode.json``         what `--encode auto` chose
``done-00007.json``     written after shard 7 was published: its entry for the manifest, and where to go on
``rows-00007.npz``      the columns' rows of that shard
``lock``                held by the running pack; the kernel lets go of it when that process ends, however it ends

Everything is written under a temporary name, synced and renamed; the folder is removed when the manifest is published.
What turns out damaged is not believed: a shard whose notes are damaged is packed again.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypedDict, cast

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
    """A source sample that was skipped or converted: one line in DEST/pack-log.jsonl."""

    event: str  # "skipped" or "converted"
    source: str
    why: str


@dataclass(slots=True)
class Done:
    """One published shard, and where the pack stands behind it."""

    shard: Shard
    next_position: int  # of the packing order: the first one not yet dealt with
    blocks: list[tuple[int, int]]  # (first sample, samples)
    events: list[Event] = field(default_factory=list)
    bytes_in: int = 0
    bytes_out: int = 0


class _EventRow(TypedDict):
    event: str
    source: str
    why: str


class _DoneRow(TypedDict):
    shard: tuple[str, int, int, int, str, str]  # a Shard
    next_position: int
    blocks: list[tuple[int, int]]
    events: list[_EventRow]
    bytes_in: int
    bytes_out: int


class PackState:
    """The folder DEST/.pack of one running pack. Use as a context manager: it holds the lock."""

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
                # The pack that held it may have ended, and removed its folder, since we opened the file.
                if os.path.samestat(os.fstat(self._lock), path.stat()):
                    return self
            except BlockingIOError:
                os.close(self._lock)
                raise StoreError(
                    f"{self.dest}: another fastload pack is at work here; wait for it or stop it"
                ) from None
            except FileNotFoundError:
                pass
            os.close(self._lock)

    def __exit__(self, *error: object) -> None:
        os.close(self._lock)

    def check_plan(self, plan: dict[str, object]) -> None:
        """Writes the plan when there is none yet; raises ConfigError where an unfinished pack had another one."""
        found = self._plan()
        if found is None:
            _write_sealed(self.folder / "plan.json", plan)
        elif found != as_json(plan):
            raise ConfigError(
                f"{self.dest} holds an unfinished pack with other options: {_differences(found, as_json(plan))}. "
                f"Use the same options to go on, another DEST, or remove {self.dest} to start anew"
                + (
                    ""
                    if next(self.finished(), None)
                    else " (no shard is finished: nothing is lost)"
                )
            )

    def has_plan(self, plan: dict[str, object]) -> bool | None:
        """This folder was made by a pack with the same plan; None where the plan is gone."""
        found = self._plan()
        return None if found is None else found == as_json(plan)

    def _plan(self) -> object:
        path = self.folder / "plan.json"
        try:
            return _read_sealed(path)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise damaged(path, str(error)) from None

    def encode_choice(self) -> EncodeChoice | None:
        """What `--encode auto` chose when this pack began."""
        path = self.folder / "encode.json"
        try:
            return EncodeChoice(**cast("dict[str, str]", _read_sealed(path)))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise damaged(path, str(error)) from None

    def remember_encode_choice(self, choice: EncodeChoice) -> None:
        """So that a resumed pack does not measure again and change its mind."""
        _write_sealed(self.folder / "encode.json", asdict(choice))

    def finished(self) -> Iterator[Done]:
        """The shards that are done, in order, up to the first whose notes are missing or damaged."""
        number = 0
        while True:
            try:
                done = self.done(number)
                if any(len(rows) != done.shard.records for rows in self.rows(number).values()):
                    return
            except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
                return
            yield done
            number += 1

    def done(self, number: int) -> Done:
        """The notes of one published shard."""
        row = cast(
            "_DoneRow", _read_sealed(self.folder / f"done-{number:05}.json")
        )  # ours: the checksum says so
        return Done(
            Shard(*row["shard"]),
            row["next_position"],
            [(first, count) for first, count in row["blocks"]],
            [Event(**event) for event in row["events"]],
            row["bytes_in"],
            row["bytes_out"],
        )

    def record(self, number: int, done: Done, rows: Rows) -> None:
        """Remembers a published shard; from here on it is never written again."""
        packed = io.BytesIO()
        np.savez(packed, **rows)  # type: ignore[arg-type]
        files.write_atomically(self.folder / f"rows-{number:05}.npz", packed.getvalue())
        _write_sealed(self.folder / f"done-{number:05}.json", asdict(done))

    def rows(self, number: int, names: Iterable[str] | None = None) -> Rows:
        """The columns' rows of a finished shard; of all columns, or of these."""
        with np.load(self.folder / f"rows-{number:05}.npz", allow_pickle=False) as stored:
            return {name: stored[name] for name in names or stored.files}

    def remove(self) -> None:
        """Nothing of this folder is needed any more. The plan goes last: with it, the same command knows itself again."""
        for path in sorted(
            self.folder.iterdir(),
            key=lambda path: (path.name == "plan.json", path.name == "lock", path.name),
        ):
            path.unlink(missing_ok=True)
        with contextlib.suppress(
            OSError
        ):  # another pack has just begun here: it will find the manifest, and go
            self.folder.rmdir()


def damaged(path: Path, why: str) -> StoreError:
    """What to raise for notes of an unfinished pack that cannot be used."""
    return StoreError(
        f"going on with an unfinished pack: {path} is damaged ({why}): remove {path.parent.parent} and pack again"
    )


def as_json(value: object) -> object:
    """What comes back when this is written as JSON and read again: tuples are lists."""
    return json.loads(json.dumps(value))


def _write_sealed(path: Path, value: object) -> None:
    """One line of JSON and one with its checksum: a changed number in it would lose samples without a word."""
    line = json.dumps(value).encode()
    files.write_atomically(path, b"%s\n%08x\n" % (line, crc32c(line)))


def _read_sealed(path: Path) -> object:
    line, _, rest = path.read_bytes().partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        raise ValueError("its checksum is wrong")
    return json.loads(line)


def _differences(found: object, wanted: object) -> str:
    one = _flat(found)
    other = _flat(wanted)
    return (
        "; ".join(
            f"{key} was {one.get(key)!r:.80}, is now {other.get(key)!r:.80}"
            for key in sorted({*one, *other})
            if one.get(key) != other.get(key)
        )
        or "the fields come in another order"
    )


def _flat(plan: object) -> dict[str, object]:
    """The options and fields beside what they belong to, so that a message names the one that changed."""
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
