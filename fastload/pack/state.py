"""What a pack remembers on disk, so that it can be killed at any moment and go on: DEST/.pack/.

``plan.json``           what is being packed and how; a resume with other options is refused
``listing.*``           the frozen list of source samples (listing.py), or ``spool.*`` for streams (spool.py)
``done-00007.json``     written after shard 7 was published: its entry for the manifest, and where to go on
``rows-00007.npz``      the columns' rows of that shard
``lock``                held by the running pack; the kernel lets go of it when that process ends, however it ends

Everything is written under a temporary name, synced and renamed; the folder is removed when the manifest is published.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from fastload.errors import ConfigError, StoreError
from fastload.pack.encode_choice import EncodeChoice
from fastload.store.files import write_atomically
from fastload.store.manifest import Shard

FOLDER = ".pack"
Rows = dict[str, NDArray[np.generic]]


@dataclass(slots=True)
class Event:
    """A source sample that was skipped or converted: one line in DEST/pack-log.jsonl."""

    event: str          # "skipped" or "converted"
    source: str
    why: str


@dataclass(slots=True)
class Done:
    """One published shard, and where the pack stands behind it."""

    shard: Shard
    next_position: int                  # of the packing order: the first one not yet dealt with
    blocks: list[tuple[int, int]]       # (first sample, samples)
    events: list[Event] = field(default_factory=list)
    bytes_in: int = 0
    bytes_out: int = 0


class PackState:
    """The folder DEST/.pack of one running pack. Use as a context manager: it holds the lock."""

    def __init__(self, dest: Path) -> None:
        self.dest = dest
        self.folder = dest / FOLDER
        self._lock = -1

    def __enter__(self) -> PackState:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = -1
            raise StoreError(f"{self.dest}: another fastload pack is at work here; wait for it or stop it") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._lock)

    def check_plan(self, plan: dict[str, object]) -> bool:
        """True when an earlier pack with the same plan can go on; writes the plan when there is none yet."""
        path = self.folder / "plan.json"
        wanted = json.loads(json.dumps(plan))
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            write_atomically(path, json.dumps(wanted, indent=1).encode())
            return False
        except ValueError:
            raise ConfigError(f"{path} is damaged: remove {self.folder} and pack again") from None
        if found != wanted:
            raise ConfigError(f"{self.dest} holds an unfinished pack with other options: {_differences(found, wanted)}. "
                              f"Use the same options to go on, another DEST, or remove {self.dest} to start anew")
        return True

    def encode_choice(self) -> EncodeChoice | None:
        """What `--encode auto` chose when this pack began."""
        try:
            return EncodeChoice(**json.loads((self.folder / "encode.json").read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise ConfigError(f"{self.folder / 'encode.json'} is damaged: remove {self.folder} and pack again") from None

    def remember_encode_choice(self, choice: EncodeChoice) -> None:
        """So that a resumed pack does not measure again and change its mind."""
        write_atomically(self.folder / "encode.json", json.dumps(asdict(choice)).encode())

    def finished(self) -> list[Done]:
        """The shards that are done, in order, up to the first gap."""
        found: list[Done] = []
        while (path := self.folder / f"done-{len(found):05}.json").exists():
            try:
                row = json.loads(path.read_text())
                found.append(Done(Shard(**row["shard"]), row["next_position"], [(a, b) for a, b in row["blocks"]],
                                  [Event(**event) for event in row["events"]], row["bytes_in"], row["bytes_out"]))
            except (ValueError, KeyError, TypeError):
                raise ConfigError(f"{path} is damaged: remove {self.folder} and pack again") from None
        return found

    def record(self, number: int, done: Done, rows: Rows) -> None:
        """Remembers a published shard; from here on it is never written again."""
        temporary = self.folder / f"rows-{number:05}.tmp"
        with temporary.open("wb") as file:
            np.savez(file, **rows)             # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.folder / f"rows-{number:05}.npz")
        write_atomically(self.folder / f"done-{number:05}.json", json.dumps(asdict(done)).encode())

    def rows(self, number: int) -> Rows:
        """The columns' rows of a finished shard."""
        with np.load(self.folder / f"rows-{number:05}.npz", allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}

    def remove(self) -> None:
        """The dataset is published: nothing of this folder is needed any more."""
        shutil.rmtree(self.folder)


def _differences(found: object, wanted: object) -> str:
    if not isinstance(found, dict) or not isinstance(wanted, dict):
        return "the plan is not readable"
    return "; ".join(f"{key} was {found.get(key)!r:.60}, is now {wanted.get(key)!r:.60}"
                     for key in sorted({*found, *wanted}) if found.get(key) != wanted.get(key))
