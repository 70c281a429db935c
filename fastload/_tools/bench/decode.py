"""`fastload bench decode`: images/s by backend, thread count and work, and what limits them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._common.cpus import available_cpus
from fastload._common.cuda import uuid_of, wait
from fastload._common.formatting import count
from fastload._common.nvml import Gpu, close_gpus, open_gpu
from fastload._common.tables import Table
from fastload._decode.backend import STAGES
from fastload._load.decoder import Decoder
from fastload._store.dataset import Dataset
from fastload._tools.bench.charts import Curve
from fastload._tools.bench.decode_work import (
    BenchBatch,
    BenchImages,
    Work,
    make_decoder,
    usable_backends,
)
from fastload._tools.bench.measure import (
    Pass,
    Spread,
    Tick,
    ignored,
    machine,
    number,
    run_rounds,
    spread,
    timed,
    versions,
)
from fastload.errors import MissingPart

Key = tuple[str, int, str]  # backend, threads, work
HEADINGS = ("work", "backend", "threads", "images/s", "ms", "CPU ms", "GB/s in", "GB/s out")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``stages`` maps a stage to its share of the decode threads' time."""

    work: str
    backend: str
    threads: int
    per_s: Spread
    cpu_ms: Spread
    gb_in: float  # GB/s of compressed records
    gb_out: float  # GB/s of decoded pixels
    stages: dict[str, float]

    def cells(self) -> tuple[str, ...]:
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
    """All rows, with the machine and the versions that they were measured on."""

    dataset: str
    n_images: int
    rows: list[Row]
    missing: dict[str, str]  # backend to the reason why it did not run
    machine: dict[str, str] = field(default_factory=machine)
    versions: dict[str, str] = field(
        default_factory=lambda: versions(
            "simplejpeg", "nvidia-dali-cuda120", "nvidia-nvimgcodec-cu12"
        )
    )
    gpu: dict[str, object] = field(default_factory=dict)

    def table(self) -> Table:
        return Table(
            f"Decoding {self.n_images} images of {self.dataset}; median [quartiles] of "
            f"{count(self.rows[0].per_s.n, 'interleaved round')}",
            HEADINGS,
            named=2,
            rows=[row.cells() for row in self.rows],
            notes=[
                *(f"{name}: skipped: {why}" for name, why in self.missing.items()),
                *(f"{name}: {value}" for name, value in self.gpu.items()),
                self.conclusion(),
            ],
        )

    def as_json(self) -> dict[str, object]:
        return {
            "dataset": self.dataset,
            "n_images": self.n_images,
            "machine": self.machine,
            "versions": self.versions,
            "missing": self.missing,
            "rows": [row.as_json() for row in self.rows],
            "gpu": self.gpu,
            "limit": self.conclusion(),
        }

    def conclusion(self) -> str:
        """What limits the random crops (or the last work), and how they scale with threads."""
        main = next(
            (row.work for row in self.rows if row.work.startswith("RRC")), self.rows[-1].work
        )
        best = max((row for row in self.rows if row.work == main), key=lambda row: row.per_s.middle)
        rows = [row for row in self.rows if (row.work, row.backend) == (main, best.backend)]
        first = min(rows, key=lambda row: row.threads)
        last = max(rows, key=lambda row: row.threads)
        stage, share = max(best.stages.items(), key=lambda each: each[1], default=("decode", 1.0))
        text = (
            f"{main}: up to {number(best.per_s.middle)} images/s on this machine "
            f"({best.backend}, {count(best.threads, 'thread')}). The CPU is the limit: decode "
            f"threads spend {share:.0%} of their time {_STAGE_NAMES.get(stage, stage)}."
        )
        if last.threads == first.threads:
            return text
        gain = last.per_s.middle / first.per_s.middle
        text += f" {last.threads} threads are {gain:.2f} times as fast as {first.threads}"
        return text + _scaling(gain, last.threads / first.threads)

    def plots(self) -> dict[str, list[Curve]]:
        """Images/s over threads for each work: the backends, and linear scaling of the fastest."""
        return {work: self._curves(work) for work in dict.fromkeys(row.work for row in self.rows)}

    def _curves(self, work: str) -> list[Curve]:
        points: dict[str, list[tuple[float, float, float, float]]] = {}
        for row in self.rows:
            if row.work == work:
                at = (row.threads, row.per_s.middle, row.per_s.low, row.per_s.high)
                points.setdefault(row.backend, []).append(at)
        best = max(points.values(), key=lambda each: each[0][1])
        x0, y0, *_ = best[0]
        linear = [(x, y0 * x / x0, y0 * x / x0, y0 * x / x0) for x, *_ in best]
        return [
            *(Curve(name, each) for name, each in points.items()),
            Curve("linear scaling", linear, ideal=True),
        ]


# What a decode thread does in each stage.
_STAGE_NAMES = {
    "decode": "decoding JPEG (Huffman and DCT)",
    "resize": "resizing",
    "read": "reading and checking records",
    "cut": "cutting JPEGs",
    "finish": "writing the output",
}


def _scaling(gain: float, ideal: float) -> str:
    if gain >= 0.85 * ideal:
        return ", close to linear: more cores would decode more images."
    if os.getloadavg()[0] > 1.2 * available_cpus():
        return (
            f" (linear: {ideal:g}). Other processes used the CPU, too (load average "
            f"{os.getloadavg()[0]:.1f}): measure again on an idle machine."
        )
    return (
        f" (linear: {ideal:g}). The cores share memory bandwidth, caches or execution units, so "
        "more threads add little."
    )


def measure(
    dataset: Dataset,
    works: Sequence[Work],
    *,
    field: str | None,
    samples: int,
    threads: Sequence[int],
    backends: Sequence[str] | None,
    rounds: int,
    seconds: float,
    tick: Tick = ignored,
) -> DecodeReport:
    """Measures every available backend with every thread count and work, interleaved."""
    names, missing = usable_backends(backends)
    if not names:
        raise MissingPart(
            "no decode backend is available: "
            + "; ".join(f"{name}: {why}" for name, why in missing.items())
        )
    images = BenchImages.of(dataset, field=field, samples=samples)
    decoders = {(name, n): make_decoder(name, threads=n) for name in names for n in threads}
    stages: dict[Key, NDArray[np.float64]] = {}
    runs: dict[Key, Callable[[], int]] = {}
    n_out: dict[str, int] = {}
    for work in works:
        batches = {
            device: images.batches(work, device)
            for device in dict.fromkeys(decoder.device for decoder in decoders.values())
        }
        n_out[work.name] = sum(batch.output.nbytes for batch in next(iter(batches.values())))
        for backend, decoder in decoders.items():
            key = (*backend, work.name)
            on_stages = partial(stages.__setitem__, key)
            runs[key] = partial(_pass, images, decoder, work, batches[decoder.device], on_stages)
    try:
        found = run_rounds(runs, rounds=rounds, seconds=seconds, tick=tick)
        last = works[-1].name
        gpu = gpu_figures(n_out[last], {name: runs[name, max(threads), last] for name in names})
    finally:
        for decoder in decoders.values():
            decoder.close()
    rows = [_row(key, passes, images, n_out[key[2]], stages[key]) for key, passes in found.items()]
    return DecodeReport(str(dataset.path), images.n_images, rows, missing, gpu=gpu)


def _pass(
    images: BenchImages,
    decoder: Decoder,
    work: Work,
    batches: Sequence[BenchBatch],
    on_stages: Callable[[NDArray[np.float64]], None],
) -> int:
    on_stages(images.run(decoder, work, batches))
    return images.n_images


def _row(
    key: Key, passes: Sequence[Pass], images: BenchImages, n_out: int, stages: NDArray[np.float64]
) -> Row:
    backend, threads, work = key
    per_s = spread([each.n / each.wall_s for each in passes])
    total = stages.sum()
    shares = dict(zip(STAGES, (stages / total).round(4).tolist(), strict=True)) if total else {}
    return Row(
        work,
        backend,
        threads,
        per_s,
        cpu_ms=spread([1e3 * each.cpu_s / each.n for each in passes]),
        gb_in=per_s.middle * images.bytes_in / images.n_images / 1e9,
        gb_out=per_s.middle * n_out / images.n_images / 1e9,
        stages=shares,
    )


# The rest needs a GPU and has not run on one yet (see docs/gpu.md).
WATCHED_S = 2.0  # NVML updates utilization every 1/6 to 1 s, its energy counter every few ms


def gpu_figures(n_bytes: int, runs: Mapping[str, Callable[[], int]]) -> dict[str, object]:
    """Copy speed of ``n_bytes`` of pixels, and energy and utilization per run; {} without CUDA."""
    if not torch.cuda.is_available():
        return {}
    figures: dict[str, object] = {"h2d_gb_per_s": _copy_speed(n_bytes)}
    gpu, why = open_gpu(uuid_of(torch.device("cuda")))
    if gpu is None:
        return {**figures, "nvml": f"not available: {why}"}
    for name, run in runs.items():
        figures[name] = GpuMeter(gpu).read(timed(run, at_least_s=WATCHED_S).n)
    close_gpus()
    return figures


def _copy_speed(n_bytes: int) -> float:
    """GB/s from pinned host memory to the device."""
    host = torch.empty(max(1 << 20, min(n_bytes, 256 << 20)), dtype=torch.uint8).pin_memory()
    host.to("cuda", non_blocking=True)
    wait()
    started = time.perf_counter()
    for _ in range(8):
        host.to("cuda", non_blocking=True)
    wait()
    return round(8 * host.nbytes / (time.perf_counter() - started) / 1e9, 2)


class GpuMeter:
    """Energy of one GPU since the meter was created, and its utilization when it is read."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._joules_before = gpu.number("energy_j")

    def read(self, n_images: int) -> dict[str, float]:
        """Energy per image, and utilization; omits figures that the driver does not report."""
        figures: dict[str, float] = {}
        joules = self._gpu.number("energy_j")
        if joules is not None and self._joules_before is not None:
            figures["joules_per_image"] = (joules - self._joules_before) / max(n_images, 1)
        for name, quantity in (("sm_share", "util"), ("jpeg_engine_share", "jpeg")):
            percent = self._gpu.number(quantity)
            if percent is not None:
                figures[name] = percent / 100
        return figures
