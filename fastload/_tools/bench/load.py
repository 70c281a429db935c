"""`fastload bench load`: the whole loader with a consumer, against the torch DataLoader that people have."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fastload._common.cpus import available_cpus
from fastload._common.tables import Table
from fastload._store.dataset import Dataset
from fastload._tools.bench.children import Child, Round
from fastload._tools.bench.image_files import export_images, image_files
from fastload._tools.bench.machine import machine, versions
from fastload._tools.bench.measure import Spread, alternating, number, part, spread, thread_counts
from fastload.errors import ConfigError, FastloadError

HEADINGS = (
    "loader",
    "images/s",
    "wait ms a batch",
    "waiting",
    "p50 ms",
    "p99 ms",
    "CPU ms an image",
    "memory MB",
)


@dataclass(frozen=True, slots=True)
class Contestant:
    """One loader. ``workers``: threads of fastload (None = decided), worker processes of torch."""

    name: str
    kind: str  # "fastload" or "torch"
    workers: int | None
    backend: str = "auto"
    folder: str = ""  # of torch's image files


@dataclass(frozen=True, slots=True)
class Consumer:
    """Who takes the batches, and what is in them."""

    dataset: str
    field: str
    batch_size: int = 64
    size: tuple[int, int] = (224, 224)
    compute_ms: float = 0.0
    busy: bool = False  # computes on the processor instead of a GPU
    batches: int = 1000  # a round ends after so many
    seconds: float = 4.0  # or after so long

    def check_batch_fits(self, n: int, where: str, what: str) -> None:
        """Raises ConfigError where ``n`` samples or images are less than one batch."""
        if n < self.batch_size:
            raise ConfigError(
                f"{where} has {n} {what}, less than a batch of {self.batch_size}: take a smaller "
                "--batch-size"
            )


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One line of the table."""

    name: str
    kind: str
    per_s: Spread
    wait_ms: float  # mean a batch
    waiting: float  # share of the time
    p50_ms: float  # between batches
    p99_ms: float
    cpu_ms: float  # an image
    peak_mb: float

    def cells(self) -> tuple[str, ...]:
        """For the table."""
        return (
            self.name,
            str(self.per_s),
            number(self.wait_ms),
            f"{self.waiting:.0%}",
            number(self.p50_ms),
            number(self.p99_ms),
            number(self.cpu_ms),
            number(self.peak_mb),
        )

    def as_json(self) -> dict[str, object]:
        """By name."""
        return {
            "loader": self.name,
            "kind": self.kind,
            "images_per_s": self.per_s.as_json(),
            "wait_ms": self.wait_ms,
            "waiting": self.waiting,
            "p50_ms": self.p50_ms,
            "p99_ms": self.p99_ms,
            "cpu_ms": self.cpu_ms,
            "peak_mb": self.peak_mb,
        }


@dataclass(slots=True)
class LoadReport:
    """All rows, and on what they were measured."""

    consumer: Consumer
    rows: list[LoadRow]
    failed: dict[str, str]
    machine: dict[str, str] = field(default_factory=machine)
    versions: dict[str, str] = field(default_factory=lambda: versions("pillow"))

    def table(self) -> Table:
        """With the verdict below."""
        c = self.consumer
        head = (
            f"load, {c.dataset}: batches of {c.batch_size}, random crops to {c.size[1]}x{c.size[0]} (width x height), "
            f"a consumer that computes for {c.compute_ms:g} ms{' on the processor' if c.busy else ''}"
        )
        table = Table(head, HEADINGS, rows=[row.cells() for row in self.rows])
        table.notes = [f"{name}: {why}" for name, why in self.failed.items()] + [self.conclusion()]
        return table

    def as_json(self) -> dict[str, object]:
        """For ``--json``."""
        c = self.consumer
        return {
            "dataset": c.dataset,
            "batch_size": c.batch_size,
            "size": list(c.size),
            "compute_ms": c.compute_ms,
            "busy": c.busy,
            "machine": self.machine,
            "versions": self.versions,
            "rows": [row.as_json() for row in self.rows],
            "failed": self.failed,
            "verdict": self.conclusion(),
        }

    def conclusion(self) -> str:
        """One line: is the consumer fed, and what does the torch loader do?"""
        fastload_rows = [row for row in self.rows if row.kind == "fastload"]
        torch_rows = [row for row in self.rows if row.kind == "torch"]
        if not fastload_rows:
            return "fastload did not run: nothing to say."
        best = max(fastload_rows, key=lambda row: row.per_s.middle)
        fed = f"waits {number(best.wait_ms)} ms a batch ({best.waiting:.0%} of its time)"
        sentence = f"With fastload the consumer gets {number(best.per_s.middle)} images/s and {fed}"
        if torch_rows:
            other = max(torch_rows, key=lambda row: row.per_s.middle)
            sentence += (
                f"; the best torch DataLoader ({other.name}) gives {number(other.per_s.middle)} and waits {number(other.wait_ms)} ms "
                f"({other.waiting:.0%}): fastload is {best.per_s.middle / other.per_s.middle:.2f} x as fast, with "
                f"{part(best.cpu_ms, other.cpu_ms)} of its CPU time and {best.peak_mb / max(other.peak_mb, 1):.2f} of its memory"
            )
        return sentence + "."


def measure(
    consumer: Consumer,
    contestants: Sequence[Contestant],
    *,
    rounds: int,
    tick: Callable[[int, int], None] | None = None,
) -> LoadReport:
    """Rounds in turn, each contestant in a process of its own; one that cannot run is reported, not raised."""
    failed: dict[str, str] = {}
    found: dict[str, list[Round]] = {each.name: [] for each in contestants}
    with contextlib.ExitStack() as stack:
        children = {
            each.name: stack.enter_context(Child(each.name, _command(consumer, each)))
            for each in contestants
        }
        total = rounds * len(children)
        done = 0
        for turn in range(rounds):
            for name, child in alternating(children.items(), turn):
                try:
                    if turn == 0:
                        child.wait()
                    if name not in failed:
                        found[name].append(child.round())
                except FastloadError as error:
                    failed[name] = str(error)
                done += 1
                if tick:
                    tick(done, total)
    rows = [
        _row(each, found[each.name])
        for each in contestants
        if each.name not in failed and found[each.name]
    ]
    return LoadReport(consumer, rows, failed)


def torch_contestants(
    dataset: Dataset,
    consumer: Consumer,
    folder: Path | None,
    *,
    exported: Path,
    workers: Sequence[int] | None,
    limit: int,
) -> list[Contestant]:
    """A torch DataLoader over the images in ``folder``, by number of workers (None: 0, 1, 2, 4 ... all cores).

    Without ``folder``, up to ``limit`` images of the dataset are written to ``exported``.
    """
    if folder is None:
        folder = exported
        n_images = export_images(dataset, folder, field=consumer.field, limit=limit)
    else:
        n_images = len(image_files(folder))
    consumer.check_batch_fits(n_images, str(folder), "images")
    counts = [0, *thread_counts(available_cpus())] if workers is None else workers
    return [
        Contestant(f"torch, {n} workers", "torch", n, folder=str(folder))
        for n in sorted(set(counts))
    ]


def _command(consumer: Consumer, each: Contestant) -> list[str]:
    # What was loaded ahead while others ran must not count: torch keeps 2 batches per worker, fastload 3 in all.
    warm = max(4, 2 * (each.workers or 0) + 1) if each.kind == "torch" else 4
    spec = {**asdict(each), **asdict(consumer), "warm": warm}
    return [sys.executable, "-m", "fastload._tools.bench.consume", json.dumps(spec)]


def _row(each: Contestant, rounds: Sequence[Round]) -> LoadRow:
    waits = [wait for one in rounds for wait in one.figures["waits_s"]]
    steps = sorted(step for one in rounds for step in one.figures["steps_s"])
    seconds = sum(one.figures["seconds"] for one in rounds)
    n_images = sum(one.figures["n"] for one in rounds)
    return LoadRow(
        each.name,
        each.kind,
        per_s=spread([one.figures["n"] / one.figures["seconds"] for one in rounds]),
        wait_ms=1e3 * sum(waits) / len(waits),
        waiting=sum(waits) / seconds,
        p50_ms=1e3 * steps[len(steps) // 2],
        p99_ms=1e3 * steps[min(len(steps) - 1, int(0.99 * len(steps)))],
        cpu_ms=1e3 * sum(one.figures["cpu_s"] for one in rounds) / n_images,
        peak_mb=max(one.peak_mb for one in rounds),
    )
