"""`fastload bench io`: how fast the disk gives the records, in the orders that loaders read them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fastload._common.tables import Table
from fastload._store.dataset import Dataset
from fastload._tools.bench.charts import Curve
from fastload._tools.bench.machine import machine, versions
from fastload._tools.bench.measure import Spread, number, spread
from fastload._tools.bench.readers import Run, evict, read_direct, read_runs
from fastload.errors import ConfigError

ORDERS = ("sequential", "block-shuffled", "random")
RAW_READERS = (1, 4)  # a drive may want several requests at a time; the better one counts
COLD_ENOUGH = 0.01  # share of a file's pages that may be in memory when a cold round begins


@dataclass(frozen=True, slots=True)
class IoRow:
    """One line of the table; ``cold`` rows began with next to nothing in memory."""

    order: str
    cold: bool
    readers: int
    per_s: Spread  # bytes

    def as_json(self) -> dict[str, object]:
        """By name."""
        return {
            "order": self.order,
            "cold": self.cold,
            "readers": self.readers,
            "bytes_per_s": self.per_s.as_json(),
        }


@dataclass(slots=True)
class IoReport:
    """All rows, the raw disk, and what that means for images."""

    dataset: str
    n_bytes: int
    n_images: int  # in these bytes
    rows: list[IoRow]
    raw: Spread | None  # in sequence with O_DIRECT, bytes a second
    notes: list[str]
    machine: dict[str, str] = field(default_factory=machine)
    versions: dict[str, str] = field(default_factory=versions)

    def table(self) -> Table:
        """With the verdict below."""
        table = Table(
            f"io, {self.n_bytes / 1e6:,.0f} MB of {self.dataset}; median [quartiles] of {self.rows[0].per_s.n} rounds",
            ("order", "cache", "readers", "MB/s", "images/s", "of the raw disk"),
            named=2,
        )
        for row in self.rows:
            mb = Spread(
                row.per_s.low / 1e6, row.per_s.middle / 1e6, row.per_s.high / 1e6, row.per_s.n
            )
            share = f"{row.per_s.middle / self.raw.middle:.0%}" if self.raw and row.cold else ""
            table.rows.append(
                (
                    row.order,
                    "cold" if row.cold else "warm",
                    str(row.readers),
                    str(mb),
                    number(self._images(row)),
                    share,
                )
            )
        if self.raw:
            table.notes.append(
                f"raw disk: {number(self.raw.middle / 1e6)} MB/s in sequence past the page cache (O_DIRECT)"
            )
        table.notes += [*self.notes, self.conclusion()]
        return table

    def as_json(self) -> dict[str, object]:
        """For ``--json``."""
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
        """The fastest number of readers."""
        return max(
            (row for row in self.rows if (row.order, row.cold) == (order, cold)),
            key=lambda row: row.per_s.middle,
            default=None,
        )

    def conclusion(self) -> str:
        """One line: what reading in blocks gains over reading at random, and how many images a second the disk gives."""
        cold = any(row.cold for row in self.rows)
        blocks = self.best("block-shuffled", cold=cold)
        chance = self.best("random", cold=cold)
        if blocks is None or chance is None:
            return "Nothing to compare."
        sentence = (
            f"{'Cold' if cold else 'Warm (cold was not measured)'}, block-shuffled reading gives "
            f"{number(self._images(blocks))} images/s ({number(blocks.per_s.middle / 1e6)} MB/s, {blocks.readers} readers), "
            f"{blocks.per_s.middle / chance.per_s.middle:.2f} x what random reading does at its best"
        )
        if self.raw and cold:
            sentence += f" and {blocks.per_s.middle / self.raw.middle:.0%} of the raw disk"
        return sentence + "."

    def plots(self) -> dict[str, list[Curve]]:
        """MB/s over readers, cold and warm."""
        return {
            name: self._curves(cold=cold)
            for name, cold in (("cold", True), ("warm", False))
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
    """Where records lie in the shard files, block by block (whole blocks, about ``most_bytes`` of them), and the files.

    LMDB does not tell offsets; addresses in its map do, once the map's start is known from /proc.
    """
    blocks: list[list[Run]] = []
    total = 0
    count = len(dataset.blocks)
    for number_ in _spread_out(count):
        first, n = dataset.blocks[number_].tolist()
        runs = [_place(dataset, sample_id) for sample_id in range(first, first + n)]
        blocks.append(runs)
        total += sum(run.length for run in runs)
        if total >= most_bytes:
            break
    order = sorted(range(len(blocks)), key=lambda i: (str(blocks[i][0].path), blocks[i][0].offset))
    return [blocks[i] for i in order], sorted({runs[0].path for runs in blocks})


def _spread_out(count: int) -> list[int]:
    """All of them, so that the first few are not neighbors: a subset then still has to seek."""
    return np.random.default_rng(0).permutation(count).tolist() if count > 2 else list(range(count))


def _place(dataset: Dataset, sample_id: int) -> Run:
    reader = dataset.reader(sample_id)
    record = np.frombuffer(reader.get(sample_id), np.uint8)
    address = int(record.__array_interface__["data"][0])
    for start, end, offset in _maps(reader.path):
        if start <= address < end:
            return Run(reader.path, address - start + offset, len(record))
    raise ConfigError(f"bench io: {reader.path} is not in /proc/self/maps: it needs Linux")


def _maps(path: Path) -> list[tuple[int, int, int]]:
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
    """Rounds of every order x readers x cache, and the raw disk, in turn. The dataset must be closed: mapped pages are never dropped."""
    found: dict[tuple[str, bool, int], list[float]] = {}
    raw: list[float] = []
    notes: list[str] = []
    still = 0.0
    kinds = [
        (order, chilled, n)
        for chilled in ((True, False) if cold else (False,))
        for order in ORDERS
        for n in readers
    ]
    for turn in range(rounds):
        if cold and not notes:
            try:
                raw.append(max(read_direct(files, readers=n, most_s=most_s) for n in RAW_READERS))
            except OSError as error:
                notes.append(f"raw disk: not measured, O_DIRECT: {error.strerror}")
        for place, (order, chilled, n) in enumerate(kinds):
            runs = runs_in(blocks, order, seed=turn)
            if chilled:
                still = max(still, evict(files))
            speed = read_runs(runs, readers=n, most_s=most_s)
            found.setdefault((order, chilled, n), []).append(
                read_runs(runs, readers=n, most_s=most_s) if not chilled and turn == 0 else speed
            )
            if tick:
                tick(turn * len(kinds) + place + 1, rounds * len(kinds))
    if cold and still > COLD_ENOUGH:
        notes.append(
            f"the cold rows are not cold: {still:.0%} of the files stayed in memory (another process has them mapped, or the file "
            "system lives in memory)"
        )
    rows = [IoRow(*key, spread(values)) for key, values in found.items()]
    n_bytes = sum(run.length for block in blocks for run in block)
    return IoReport(
        dataset,
        n_bytes,
        sum(len(block) for block in blocks),
        rows,
        spread(raw) if raw else None,
        notes,
    )


def runs_in(blocks: Sequence[Sequence[Run]], order: str, *, seed: int) -> list[Run]:
    """What is read, in turn: whole blocks (in order, or shuffled), or single records at random."""
    dice = random.Random(seed)
    if order == "random":
        records = [run for block in blocks for run in block]
        dice.shuffle(records)
        return records
    whole = [
        Run(block[0].path, block[0].offset, block[-1].offset + block[-1].length - block[0].offset)
        for block in blocks
    ]
    if order == "block-shuffled":
        dice.shuffle(whole)
    return whole
