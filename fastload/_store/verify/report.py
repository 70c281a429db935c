"""The result of a verification: faults with their location, and what was checked."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from fastload._common.formatting import count, printable
from fastload._common.public import public

KEPT = 1000  # faults stored; all are counted
SHOWN = 20  # faults printed by str(report)


@public()
@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a dataset and its location."""

    shard: str  # the file: "shard-00003.lmdb", "columns/label.npy", "manifest.json"
    record: int | None  # record number in that shard; None for a fault of the whole file
    source: str  # original path of the sample; "" if unknown
    what: str  # description of the fault

    def __str__(self) -> str:
        record = "" if self.record is None else f", record {self.record}"
        return f"{self.shard}{record}{f' ({self.source})' if self.source else ''}: {self.what}"


@public()
@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of ``fastload.verify``. ``str(report)`` is the output of ``fastload verify``.

    Examples:
        >>> report = fastload.verify("packed")
        >>> report.ok, report.n_checked
        (True, 1281167)
    """

    path: Path
    n_samples: int  # samples in the dataset
    n_shards: int  # shards checked
    n_columns: int  # columns checked
    n_bytes: int  # size of the checked files
    n_checked: int  # records checked
    n_decoded: int  # images and masks decoded; 0 without ``deep``
    n_faults: int
    faults: tuple[Fault, ...]  # the first KEPT faults in dataset order
    # (shard, number of records) of damaged files, whose records were not checked.
    not_checked: tuple[tuple[str, int], ...] = ()
    deep: bool = False
    only: str = ""  # name of the shard if only one was checked
    seconds: float = 0.0  # duration

    @property
    def ok(self) -> bool:
        """True if no fault was found."""
        return not self.n_faults

    def as_json(self) -> dict[str, object]:
        """Returns the report as a dict that ``json.dumps`` accepts."""
        return {
            "ok": self.ok,
            **asdict(self),
            "path": str(self.path),
            "not_checked": [
                {"shard": shard, "records": records} for shard, records in self.not_checked
            ],
        }

    def __str__(self) -> str:
        lines = [f"{self.path}: {count(self.n_faults, 'fault') if self.n_faults else 'OK'}"]
        lines += _fault_lines(self.faults[:SHOWN])
        if self.n_faults > SHOWN:
            listed = f"the first {KEPT:,}" if self.n_faults > KEPT else "all of them"
            lines.append(f"  ... and {self.n_faults - SHOWN:,} more (--json lists {listed})")
        lines.append(self._summary())
        if self.not_checked:
            shards = ", ".join(f"{shard} ({records:,})" for shard, records in self.not_checked[:5])
            if len(self.not_checked) > 5:
                shards += f" and {count(len(self.not_checked) - 5, 'other shard')}"
            lines.append(
                f"Not checked: {count(sum(n for _, n in self.not_checked), 'record')} in {shards}. "
                "Damaged shards are not opened."
            )
        if not self.ok:
            lines.append(
                "To fix: restore the files above from a copy, or pack again from the source."
            )
        return "\n".join(lines)

    def _summary(self) -> str:
        total = "" if self.n_checked == self.n_samples else f" of {self.n_samples:,}"
        where = f"{self.only} only" if self.only else count(self.n_shards, "shard")
        decoded = f"Decoded: {count(self.n_decoded, 'image')}, masks included."
        return (
            f"Checked: {self.n_checked:,}{total} records in {where} and "
            f"{count(self.n_columns, 'column')}, {self.n_bytes / 1e6:,.1f} MB in "
            f"{self.seconds:.1f} s. "
            f"{decoded if self.deep else 'Images were not decoded (use --deep).'}"
        )


class FaultList:
    """Collects faults from several threads.

    Counts all and keeps the first ones in dataset order.
    """

    def __init__(self, *, kept: int = KEPT) -> None:
        self.count = 0
        self._kept = kept
        self._lock = threading.Lock()
        self._found: list[tuple[int, int, str, Fault]] = []

    def add(self, place: int, fault: Fault) -> None:
        """Adds a fault; ``place`` is the index of the shard, or negative for columns."""
        with self._lock:
            self.count += 1
            self._found.append(
                (place, -1 if fault.record is None else fault.record, fault.what, fault)
            )
            if len(self._found) >= 2 * self._kept:
                self._cut()

    def sorted(self) -> tuple[Fault, ...]:
        """Returns the kept faults in dataset order."""
        with self._lock:
            self._cut()
            return tuple(row[3] for row in self._found)

    def _cut(self) -> None:
        self._found.sort(key=lambda row: row[:3])
        del self._found[self._kept :]


def _fault_lines(faults: tuple[Fault, ...]) -> list[str]:
    """Returns one aligned line per fault."""
    places = [
        fault.shard if fault.record is None else f"{fault.shard} record {fault.record}"
        for fault in faults
    ]
    width = max(map(len, places), default=0)
    return [
        f"  {place:{width}}  "
        # A damaged name must not move the cursor of a terminal.
        f"{printable(f'{fault.source}: ' if fault.source else '')}{printable(fault.what)}"
        for place, fault in zip(places, faults, strict=True)
    ]
