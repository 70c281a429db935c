"""What a verification found: faults, each with its place, and what was and was not looked at."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from fastload._common.public import public

KEPT = 1000  # faults kept by name; all are counted
SHOWN = 20  # faults that str(report) shows


@public()
@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and where."""

    shard: str  # the file: "shard-00003.lmdb", "columns/label.npy", "manifest.json"
    record: int | None  # place in that shard; None where the file as a whole is wrong
    source: str  # the original file of the sample, where it could still be read
    what: str

    def __str__(self) -> str:
        record = "" if self.record is None else f", record {self.record}"
        return f"{self.shard}{record}{f' ({self.source})' if self.source else ''}: {self.what}"


@public()
@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What ``fastload.verify`` found; ``str()`` is what `fastload verify` prints."""

    path: Path
    n_samples: int
    n_shards: int  # looked at
    n_columns: int
    n_bytes: int  # of these files
    n_checked: int  # records
    n_decoded: int  # images and masks; 0 without ``deep``
    n_faults: int
    faults: tuple[Fault, ...]  # the first KEPT of them, by place
    not_checked: tuple[
        tuple[str, int], ...
    ] = ()  # (shard, records) of files that were not mapped because they are damaged
    deep: bool = False
    only: str = ""  # the one shard that was asked for
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Nothing is wrong with what was looked at."""
        return not self.n_faults

    def as_json(self) -> dict[str, object]:
        """For machines."""
        return {
            "ok": self.ok,
            **asdict(self),
            "path": str(self.path),
            "not_checked": [
                {"shard": shard, "records": records} for shard, records in self.not_checked
            ],
        }

    def __str__(self) -> str:
        lines = [f"{self.path}: {'fine' if self.ok else _counted(self.n_faults, 'fault')}"]
        lines += _fault_lines(self.faults[:SHOWN])
        if self.n_faults > SHOWN:
            rest = (
                f"--json lists the first {KEPT}"
                if self.n_faults > KEPT
                else "--json lists them all"
            )
            lines.append(f"  ... and {self.n_faults - SHOWN} more ({rest})")
        lines.append(self._summary())
        if self.not_checked:
            shards = ", ".join(f"{shard} ({records})" for shard, records in self.not_checked[:5])
            more = (
                f" and {len(self.not_checked) - 5} more shards" if len(self.not_checked) > 5 else ""
            )
            lines.append(
                f"not checked: {_counted(sum(n for _, n in self.not_checked), 'record')} of {shards}{more}: "
                "a damaged file is never mapped"
            )
        if not self.ok:
            lines.append(
                "what to do: restore the named files from a copy, or pack again from the source"
            )
        return "\n".join(lines)

    def _summary(self) -> str:
        # "of" only where it is not all of them
        total = "" if self.n_checked == self.n_samples else f" of {self.n_samples}"
        decoded = f"{_counted(self.n_decoded, 'image')} (masks included) decoded"
        images = decoded if self.deep else "images not decoded (--deep decodes them)"
        where = f"{self.only} only" if self.only else _counted(self.n_shards, "shard")
        return (
            f"checked: {self.n_checked}{total} records in {where} and {_counted(self.n_columns, 'column')}, "
            f"{self.n_bytes / 1e6:.1f} MB, in {self.seconds:.1f} s; {images}"
        )


class FaultList:
    """Collects faults from several threads: counts all, keeps those that come first in the dataset, whoever finds them when."""

    def __init__(self, *, kept: int = KEPT) -> None:
        self.count = 0
        self._kept = kept
        self._lock = threading.Lock()
        self._found: list[tuple[int, int, str, Fault]] = []

    def add(self, place: int, fault: Fault) -> None:
        """``place`` is the shard's number, negative for what comes before the shards."""
        with self._lock:
            self.count += 1
            self._found.append(
                (place, -1 if fault.record is None else fault.record, fault.what, fault)
            )
            if len(self._found) >= 2 * self._kept:
                self._cut()

    def sorted(self) -> tuple[Fault, ...]:
        """What was kept, in the order of the dataset."""
        with self._lock:
            self._cut()
            return tuple(row[3] for row in self._found)

    def _cut(self) -> None:
        self._found.sort(key=lambda row: row[:3])
        del self._found[self._kept :]


def _fault_lines(faults: tuple[Fault, ...]) -> list[str]:
    """One line a fault, places and names aligned."""
    places = [
        fault.shard if fault.record is None else f"{fault.shard} record {fault.record}"
        for fault in faults
    ]
    width = max(map(len, places), default=0)
    return [
        f"  {place:{width}}  {_clean(f'{fault.source}: ' if fault.source else '')}{_clean(fault.what)}"
        for place, fault in zip(places, faults, strict=True)
    ]


def _clean(text: str) -> str:
    """A damaged name must not move the cursor of a terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
