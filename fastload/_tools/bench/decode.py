"""`fastload bench decode`: what this machine decodes, by backend, threads and work, and what limits it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fastload._common.cpus import available_cpus
from fastload._common.tables import Table
from fastload._decode.backend import STAGES
from fastload._load.decoder import Decoder
from fastload._store.dataset import Dataset
from fastload._tools.bench import decoders, gpu
from fastload._tools.bench.charts import Curve
from fastload._tools.bench.machine import busy_with_others, machine, versions
from fastload._tools.bench.measure import Pass, Rounds, Spread, number, spread
from fastload._tools.bench.works import Ticket, Work, Works
from fastload.errors import MissingPart

Key = tuple[str, int, str]  # backend, threads, work
HEADINGS = ("work", "backend", "threads", "images/s", "ms", "CPU ms", "GB/s in", "GB/s out")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``stages``: share of the decode threads' time, by stage."""

    work: str
    backend: str
    threads: int
    per_s: Spread
    cpu_ms: Spread
    gb_in: float  # a second
    gb_out: float
    stages: dict[str, float]

    def cells(self) -> tuple[str, ...]:
        """For the table."""
        return (
            self.work,
            self.backend,
            str(self.threads),
            str(self.per_s),
            number(1e3 / self.per_s.middle),
            number(self.cpu_ms.middle),
            number(self.gb_in),
            number(self.gb_out),
        )

    def as_json(self) -> dict[str, object]:
        """By name."""
        return {
            "work": self.work,
            "backend": self.backend,
            "threads": self.threads,
            "images_per_s": self.per_s.as_json(),
            "ms": 1e3 / self.per_s.middle,
            "cpu_ms": self.cpu_ms.as_json(),
            "gb_in_per_s": self.gb_in,
            "gb_out_per_s": self.gb_out,
            "stages": self.stages,
        }


@dataclass(slots=True)
class DecodeReport:
    """All rows, and on what they were measured."""

    dataset: str
    n_images: int
    rows: list[Row]
    missing: dict[str, str]  # backend -> why it did not run
    machine: dict[str, str] = field(default_factory=machine)
    versions: dict[str, str] = field(
        default_factory=lambda: versions(
            "simplejpeg", "nvidia-dali-cuda120", "nvidia-nvimgcodec-cu12"
        )
    )
    gpu: dict[str, object] = field(default_factory=dict)

    def table(self) -> Table:
        """With the sentence below."""
        table = Table(
            f"decode, {self.n_images} images of {self.dataset}; median [quartiles] of {self.rows[0].per_s.n} interleaved rounds",
            HEADINGS,
            named=2,
            rows=[row.cells() for row in self.rows],
        )
        table.notes = [f"{name}: not run: {why}" for name, why in self.missing.items()]
        table.notes += [f"{name}: {value}" for name, value in self.gpu.items()]
        table.notes.append(self.limit())
        return table

    def as_json(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "dataset": self.dataset,
            "n_images": self.n_images,
            "machine": self.machine,
            "versions": self.versions,
            "missing": self.missing,
            "rows": [row.as_json() for row in self.rows],
            "gpu": self.gpu,
            "limit": self.limit(),
        }

    def limit(self) -> str:
        """One sentence: what would have to be more or faster."""
        main = next(
            (row.work for row in self.rows if row.work.startswith("RRC")), self.rows[-1].work
        )
        best = max((row for row in self.rows if row.work == main), key=lambda row: row.per_s.middle)
        own = {
            row.threads: row for row in self.rows if (row.work, row.backend) == (main, best.backend)
        }
        first, last = own[min(own)], own[max(own)]
        stage, share = max(best.stages.items(), key=lambda each: each[1], default=("decode", 1.0))
        said = (
            f"{main}: at most {number(best.per_s.middle)} images/s here ({best.backend}, {best.threads} threads); the limit is the "
            f"processor, which spends {share:.0%} of a decode thread's time on {_STAGE_WORDS.get(stage, stage)}"
        )
        if last.threads > first.threads:
            gain = last.per_s.middle / first.per_s.middle
            said += f"; {last.threads} threads are {gain:.2f} x one" + _scaling(
                gain, last.threads / first.threads
            )
        return said + "."

    def curves(self, work: str) -> list[Curve]:
        """Images/s over threads, a curve a backend, and the ideal one of the fastest."""
        found = []
        for name in dict.fromkeys(row.backend for row in self.rows):
            rows = [row for row in self.rows if (row.work, row.backend) == (work, name)]
            found.append(
                Curve(
                    name,
                    [
                        (row.threads, row.per_s.middle, row.per_s.low, row.per_s.high)
                        for row in rows
                    ],
                )
            )
        best = max(found, key=lambda curve: curve.points[0][1])
        x0, y0, *_ = best.points[0]
        return [
            *found,
            Curve(
                "ideal",
                [(x, y0 * x / x0, y0 * x / x0, y0 * x / x0) for x, *_ in best.points],
                ideal=True,
            ),
        ]


_STAGE_WORDS = {
    "decode": "decoding JPEG (Huffman and DCT)",
    "resize": "resizing",
    "read": "reading and checking records",
    "cut": "cutting JPEGs",
    "finish": "writing the output",
}


def _scaling(gain: float, ideal: float) -> str:
    if gain >= 0.85 * ideal:
        return ", nearly all of them count: more cores, more images"
    if busy_with_others() > 1.2 * available_cpus():
        return f" (of {ideal:g}), but other processes were busy too (load {busy_with_others():.1f}): measure again on a quiet machine"
    return f" (of {ideal:g}): the cores share memory bandwidth, caches or execution units, more threads add little"


def measure(
    dataset: Dataset,
    works: Sequence[Work],
    *,
    field: str | None,
    samples: int,
    threads: Sequence[int],
    backends: Sequence[str] | None,
    rounds: Rounds[Key],
    tick: Callable[[int, int], None] | None = None,
) -> DecodeReport:
    """Every backend that runs here x threads x works, interleaved; raises FastloadError."""
    names, missing = decoders.usable(backends)
    if not names:
        raise MissingPart(
            "decoding: no backend runs here: "
            + "; ".join(f"{name}: {why}" for name, why in missing.items())
        )
    images = Works.of(dataset, field=field, samples=samples)
    made = {
        (name, count): decoders.make(name, threads=count) for name in names for count in threads
    }
    stages: dict[Key, NDArray[np.float64]] = {}
    runs: dict[Key, Callable[[], int]] = {}
    n_out: dict[str, int] = {}
    for work in works:
        tickets = {
            device: images.tickets(work, device)
            for device in dict.fromkeys(backend.device for backend in made.values())
        }
        n_out[work.name] = sum(ticket.output.nbytes for ticket in next(iter(tickets.values())))
        for (name, count), backend in made.items():
            key = (name, count, work.name)
            runs[key] = partial(
                _pass,
                images,
                backend,
                work,
                tickets[backend.device],
                partial(stages.__setitem__, key),
            )
    try:
        found = rounds.run(runs, tick=tick)
        last = works[-1].name
        on_gpu = gpu.figures(n_out[last], {name: runs[name, max(threads), last] for name in names})
    finally:
        for backend in made.values():
            backend.close()
    rows = [_row(key, passes, images, n_out[key[2]], stages[key]) for key, passes in found.items()]
    return DecodeReport(str(dataset.path), images.n_images, rows, missing, gpu=on_gpu)


def _pass(
    images: Works,
    backend: Decoder,
    work: Work,
    tickets: Sequence[Ticket],
    note: Callable[[NDArray[np.float64]], None],
) -> int:
    note(images.run(backend, work, tickets))
    return images.n_images


def _row(
    key: Key, passes: Sequence[Pass], images: Works, n_out: int, stages: NDArray[np.float64]
) -> Row:
    per_s = spread([each.n / each.wall_s for each in passes])
    cpu = spread([1e3 * each.cpu_s / each.n for each in passes])
    shares = stages / stages.sum() if stages.sum() else stages
    return Row(
        key[2],
        key[0],
        key[1],
        per_s,
        cpu,
        per_s.middle * images.bytes_in / images.n_images / 1e9,
        per_s.middle * n_out / images.n_images / 1e9,
        dict(zip(STAGES, shares.round(4).tolist(), strict=True)) if stages.sum() else {},
    )
