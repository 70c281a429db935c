"""`fastload bench io`: how fast the disk delivers records in the orders that loaders use."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fastload._common.formatting import count
from fastload._common.tables import Table
from fastload._store.dataset import Dataset
from fastload._tools.bench.charts import Curve
from fastload._tools.bench.measure import Spread, Tick, ignored, machine, number, spread, versions
from fastload.errors import ConfigError

PIECE = 1 << 20  # bytes per read call
_DIRECT_PIECE = 4 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)
ORDERS = ("sequential", "block-shuffled", "random")
RAW_READERS = (1, 4)  # some drives need several requests in flight; the faster result counts
COLD_ENOUGH = 0.01  # share of a file's pages that may be in memory when a cold round begins


@dataclass(frozen=True, slots=True)
class Run:
    """Contiguous bytes of a file: a record, or a block of records."""

    path: Path
    offset: int
    length: int


def read_direct(paths: Sequence[Path], *, readers: int, most_s: float) -> float:
    """Reads files sequentially with O_DIRECT, ``readers`` pieces at a time; bytes per second.

    Raises OSError if the file system does not support O_DIRECT.
    """
    runs = [
        Run(path, start, _DIRECT_PIECE)
        for path in paths
        for start in range(0, path.stat().st_size, _DIRECT_PIECE)
    ]
    return read_runs(runs, readers=readers, most_s=most_s, piece=_DIRECT_PIECE, flags=os.O_DIRECT)


def read_runs(
    runs: Sequence[Run], *, readers: int, most_s: float, piece: int = PIECE, flags: int = 0
) -> float:
    """Reads ``runs`` in this order with ``readers`` threads and returns bytes per second.

    Stops after ``most_s`` seconds even if some runs are left. ``flags`` are passed to open.
    """
    paths = {run.path for run in runs}
    files = {path: os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags) for path in paths}
    pending = iter(runs)
    lock = threading.Lock()
    begin = time.perf_counter()

    def read_pending(_: int) -> int:
        total = 0
        buffer = memoryview(mmap.mmap(-1, piece))  # O_DIRECT needs page alignment
        while time.perf_counter() - begin < most_s:
            with lock:
                run = next(pending, None)
            if run is None:
                break
            for start in range(0, run.length, piece):
                view = buffer[: min(piece, run.length - start)]
                total += os.preadv(files[run.path], [view], run.offset + start)
        return total

    try:
        with ThreadPoolExecutor(readers) as pool:
            n_bytes = sum(pool.map(read_pending, range(readers)))
        return n_bytes / (time.perf_counter() - begin)
    finally:
        for descriptor in files.values():
            os.close(descriptor)


def evict(paths: Sequence[Path]) -> float:
    """Drops files from the page cache; returns the share of their pages that stays in memory."""
    pages = resident = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(descriptor)  # the kernel does not drop dirty pages
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            in_memory = resident_pages(descriptor)
        finally:
            os.close(descriptor)
        resident += sum(in_memory)
        pages += len(in_memory)
    return resident / max(pages, 1)


def resident_pages(descriptor: int) -> list[bool]:
    """Which pages of a file are in memory, according to mincore."""
    size = os.fstat(descriptor).st_size
    if not size:
        return []
    count = -(-size // mmap.PAGESIZE)
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED) as mapped:
        found = (ctypes.c_ubyte * count)()
        address = int(np.frombuffer(mapped, np.uint8, 1).__array_interface__["data"][0])
        if _LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), found):
            raise ConfigError(f"mincore failed: {os.strerror(ctypes.get_errno())}")
        return [bool(byte & 1) for byte in bytes(found)]


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
    random, so that a subset of a large dataset still has to seek.
    """
    blocks: list[list[Run]] = []
    total = 0
    for block in np.random.default_rng(0).permutation(len(dataset.blocks)).tolist():
        first, n = dataset.blocks[block].tolist()
        reader = dataset.reader(first)
        runs = [Run(reader.path, *reader.find(sample_id)) for sample_id in range(first, first + n)]
        blocks.append(runs)
        total += sum(run.length for run in runs)
        if total >= most_bytes:
            break
    blocks.sort(key=lambda runs: (str(runs[0].path), runs[0].offset))
    return blocks, sorted({runs[0].path for runs in blocks})


def measure(
    blocks: Sequence[Sequence[Run]],
    files: Sequence[Path],
    *,
    dataset: str,
    readers: Sequence[int],
    rounds: int,
    most_s: float,
    cold: bool = True,
    tick: Tick = ignored,
) -> IoReport:
    """Measures every order, number of readers and cache state in turn, and the raw disk."""
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
