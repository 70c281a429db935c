"""`fastload bench io`: how fast the disk delivers records in the orders that loaders use."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fastload._common.formatting import count
from fastload._common.tables import Table
from fastload._store.dataset import Dataset
from fastload._tools.bench.charts import Curve
from fastload._tools.bench.machine import machine, versions
from fastload._tools.bench.measure import Spread, number, spread
from fastload._tools.bench.readers import Run, evict, read_direct, read_runs
from fastload.errors import ConfigError

ORDERS = ("sequential", "block-shuffled", "random")
RAW_READERS = (1, 4)  # some drives need several requests in flight; the faster result counts
COLD_ENOUGH = 0.01  # share of a file's pages that may be in memory when a cold round begins


@dataclass(frozen=True, slots=True)
class IoRow:
    """One line of the table. A ``cold`` round begins with the files dropped from memory."""

    order: str
    cold: bool
    readers: int
    per_s: Spread  # bytes

    def as_json(self) -> dict[str, object]:
        return {
            "order": self.order,
            "cold": self.cold,
            "readers": self.readers,
            "bytes_per_s": self.per_s.as_json(),
        }


@dataclass(slots=True)
class IoReport:
    """All rows, and the speed of the raw disk."""

    dataset: str
    n_bytes: int
    n_images: int  # in these bytes
    rows: list[IoRow]
    raw: Spread | None  # bytes per second, sequential with O_DIRECT
    notes: list[str]
    machine: dict[str, str] = field(default_factory=machine)
    versions: dict[str, str] = field(default_factory=versions)

    def table(self) -> Table:
        table = Table(
            f"Reading {self.n_bytes / 1e6:,.0f} MB of {self.dataset}; median [quartiles] of "
            f"{count(self.rows[0].per_s.n, 'round')}",
            ("order", "cache", "readers", "MB/s", "images/s", "of raw disk"),
            named=2,
            rows=[self._cells(row) for row in self.rows],
            notes=[*self.notes, self.conclusion()],
        )
        if self.raw:
            speed = number(self.raw.middle / 1e6)
            note = f"raw disk: {speed} MB/s, read sequentially without the page cache (O_DIRECT)"
            table.notes.insert(0, note)
        return table

    def _cells(self, row: IoRow) -> tuple[str, ...]:
        per_s = row.per_s
        return (
            row.order,
            "cold" if row.cold else "warm",
            str(row.readers),
            str(Spread(per_s.low / 1e6, per_s.middle / 1e6, per_s.high / 1e6, per_s.n)),
            number(self._images(row)),
            f"{per_s.middle / self.raw.middle:.0%}" if self.raw and row.cold else "",
        )

    def as_json(self) -> dict[str, object]:
        return {
            "dataset": self.dataset,
            "n_bytes": self.n_bytes,
            "n_images": self.n_images,
            "machine": self.machine,
            "versions": self.versions,
            "raw": self.raw.as_json() if self.raw else None,
            "rows": [row.as_json() for row in self.rows],
            "notes": self.notes,
            "verdict": self.conclusion(),
        }

    def best(self, order: str, *, cold: bool) -> IoRow | None:
        """The row with the fastest number of readers."""
        return max(
            (row for row in self.rows if (row.order, row.cold) == (order, cold)),
            key=lambda row: row.per_s.middle,
            default=None,
        )

    def conclusion(self) -> str:
        """Compares reading in shuffled blocks with reading records at random."""
        cold = any(row.cold for row in self.rows)
        blocks = self.best("block-shuffled", cold=cold)
        records = self.best("random", cold=cold)
        if blocks is None or records is None:
            return "Nothing was measured that can be compared."
        text = (
            f"{'Cold' if cold else 'Warm (cold reads were not measured)'}, block-shuffled reads "
            f"deliver {number(self._images(blocks))} images/s "
            f"({number(blocks.per_s.middle / 1e6)} MB/s with {count(blocks.readers, 'reader')}), "
            f"{blocks.per_s.middle / records.per_s.middle:.2f} times the best random reads"
        )
        if self.raw and cold:
            text += f" and {blocks.per_s.middle / self.raw.middle:.0%} of the raw disk"
        return text + "."

    def plots(self) -> dict[str, list[Curve]]:
        """MB/s over readers, cold and warm."""
        return {
            name: self._curves(cold=cold)
            for name, cold in (("cold page cache", True), ("warm page cache", False))
            if any(row.cold is cold for row in self.rows)
        }

    def _curves(self, *, cold: bool) -> list[Curve]:
        return [
            Curve(
                order,
                [
                    (row.readers, row.per_s.middle / 1e6, row.per_s.low / 1e6, row.per_s.high / 1e6)
                    for row in self.rows
                    if (row.order, row.cold) == (order, cold)
                ],
            )
            for order in ORDERS
        ]

    def _images(self, row: IoRow) -> float:
        return row.per_s.middle * self.n_images / self.n_bytes


def places(dataset: Dataset, *, most_bytes: int) -> tuple[list[list[Run]], list[Path]]:
    """Locates whole blocks of records, about ``most_bytes``, in the shard files.

    Returns the records of each block, in disk order, and the files. The blocks are chosen at
    random, so that a subset of a large dataset still has to seek. LMDB does not report offsets:
    they follow from the address of a record and the start of the memory map in /proc.
    """
    blocks: list[list[Run]] = []
    maps: dict[Path, list[tuple[int, int, int]]] = {}
    total = 0
    for block in np.random.default_rng(0).permutation(len(dataset.blocks)).tolist():
        first, n = dataset.blocks[block].tolist()
        runs = [_place(dataset, sample_id, maps) for sample_id in range(first, first + n)]
        blocks.append(runs)
        total += sum(run.length for run in runs)
        if total >= most_bytes:
            break
    blocks.sort(key=lambda runs: (str(runs[0].path), runs[0].offset))
    return blocks, sorted({runs[0].path for runs in blocks})


def _place(dataset: Dataset, sample_id: int, maps: dict[Path, list[tuple[int, int, int]]]) -> Run:
    reader = dataset.reader(sample_id)
    record = np.frombuffer(reader.get(sample_id), np.uint8)
    if reader.path not in maps:
        maps[reader.path] = _memory_maps(reader.path)
    address = int(record.__array_interface__["data"][0])
    for start, end, offset in maps[reader.path]:
        if start <= address < end:
            return Run(reader.path, address - start + offset, len(record))
    raise ConfigError(f"bench io needs Linux: {reader.path} is not in /proc/self/maps")


def _memory_maps(path: Path) -> list[tuple[int, int, int]]:
    """Start, end and file offset of each mapping of ``path`` in this process."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    found = []
    wanted = str(path.resolve())
    for line in lines:
        span, _, offset, _, _, *name = line.split(maxsplit=5)
        if name and name[0] == wanted:
            start, end = (int(text, 16) for text in span.split("-"))
            found.append((start, end, int(offset, 16)))
    return found


def measure(
    blocks: Sequence[Sequence[Run]],
    files: Sequence[Path],
    *,
    dataset: str,
    readers: Sequence[int],
    rounds: int,
    most_s: float,
    cold: bool = True,
    tick: Callable[[int, int], None] | None = None,
) -> IoReport:
    """Measures every order, number of readers and cache state in turn, and the raw disk.

    The dataset must be closed, because the kernel never drops mapped pages.
    """
    raw: list[float] = []
    notes: list[str] = []
    resident = 0.0
    kinds = [
        (order, is_cold, n)
        for is_cold in ((True, False) if cold else (False,))
        for order in ORDERS
        for n in readers
    ]
    found: dict[tuple[str, bool, int], list[float]] = {kind: [] for kind in kinds}
    for turn in range(rounds):
        if cold and not notes:
            try:
                raw.append(max(read_direct(files, readers=n, most_s=most_s) for n in RAW_READERS))
            except OSError as error:
                notes.append(f"raw disk: not measured, O_DIRECT failed: {error.strerror}")
        for place, (order, is_cold, n) in enumerate(kinds):
            runs = runs_in(blocks, order, seed=turn)
            if is_cold:
                resident = max(resident, evict(files))
            elif turn == 0:
                read_runs(runs, readers=n, most_s=most_s)  # warms the page cache
            found[order, is_cold, n].append(read_runs(runs, readers=n, most_s=most_s))
            if tick:
                tick(turn * len(kinds) + place + 1, rounds * len(kinds))
    if cold and resident > COLD_ENOUGH:
        notes.append(
            f"the cold rows are not cold: {resident:.0%} of the files stayed in memory (another "
            "process maps them, or the file system is in memory)"
        )
    return IoReport(
        dataset,
        sum(run.length for block in blocks for run in block),
        sum(len(block) for block in blocks),
        [IoRow(*key, spread(values)) for key, values in found.items()],
        spread(raw) if raw else None,
        notes,
    )


def runs_in(blocks: Sequence[Sequence[Run]], order: str, *, seed: int) -> list[Run]:
    """The byte ranges to read, in order: whole blocks (in order or shuffled), or single records."""
    rng = random.Random(seed)
    if order == "random":
        records = [run for block in blocks for run in block]
        rng.shuffle(records)
        return records
    whole = [
        Run(block[0].path, block[0].offset, block[-1].offset + block[-1].length - block[0].offset)
        for block in blocks
    ]
    if order == "block-shuffled":
        rng.shuffle(whole)
    return whole
