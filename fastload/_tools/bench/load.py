"""`fastload bench load`: the whole loader with a consumer, compared with a torch DataLoader."""

from __future__ import annotations

import contextlib
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fastload._common.cpus import available_cpus
from fastload._common.tables import Table
from fastload._store.dataset import Dataset
from fastload._store.pixels import decode_image
from fastload._store.record import DATA, JPEG, PNG
from fastload._tools.bench.children import Child, Round
from fastload._tools.bench.measure import (
    Spread,
    Tick,
    alternating,
    ignored,
    machine,
    number,
    part,
    spread,
    thread_counts,
    versions,
)
from fastload.errors import ConfigError, FastloadError

SUFFIXES = (".jpg", ".jpeg", ".png", ".JPEG", ".JPG", ".PNG", ".webp", ".bmp")
Box = tuple[int, int, int, int]
HEADINGS = (
    "loader",
    "images/s",
    "wait ms/batch",
    "waiting",
    "p50 ms",
    "p99 ms",
    "CPU ms/image",
    "memory MB",
)


def image_field(dataset: Dataset, name: str | None) -> str:
    """Returns ``name`` or the first image field; raises ConfigError if there is no such field."""
    images = [field.name for field in dataset.fields if field.kind.is_image]
    if not images or (name is not None and name not in images):
        raise ConfigError(
            f"image field {name or ''!r:.40} does not exist in {dataset.path}: "
            f"its image fields are {', '.join(images) or '(none)'}"
        )
    return name or images[0]


def export_images(
    dataset: Dataset, folder: Path, *, field: str | None = None, limit: int | None = None
) -> int:
    """Writes the images of up to ``limit`` samples as files and returns the number of files.

    A stored JPEG or PNG is written unmodified. Raw pixels are written as PNG.
    """
    field_number = [each.name for each in dataset.fields].index(image_field(dataset, field))
    n_samples = min(limit or len(dataset), len(dataset))
    n_files = 0
    for sample_id in (np.arange(n_samples) * len(dataset) // n_samples).tolist():
        for image in dataset.record(sample_id).parts:
            if image.field != field_number or image.role != DATA:
                continue
            stem = folder / f"{sample_id:08}-{image.item}"
            if image.codec in (JPEG, PNG):
                stem.with_suffix(".jpg" if image.codec == JPEG else ".png").write_bytes(image.data)
            else:
                Image.fromarray(decode_image(image).squeeze()).save(stem.with_suffix(".png"))
            n_files += 1
    return n_files


def image_files(folder: Path) -> list[Path]:
    """All image files below a folder, sorted; raises ConfigError if there are none."""
    found = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    if not found:
        raise ConfigError(f"{folder} contains no image files ({', '.join(SUFFIXES[:4])} ...)")
    return found


class FolderImages(torch.utils.data.Dataset[torch.Tensor]):
    """Image files decoded by Pillow, augmented like torchvision's reference training.

    With ``crop``: random resized crop and horizontal flip. Without: resized only. Both normalize.
    """

    def __init__(self, paths: Sequence[Path], size: tuple[int, int], *, crop: bool = True) -> None:
        self.paths = [str(path) for path in paths]
        self.size = size
        self.crop = crop

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        height, width = self.size
        with Image.open(self.paths[index]) as file:
            image = file.convert("RGB")
            box = random_crop(image.width, image.height) if self.crop else None
            small = image.resize((width, height), Image.Resampling.BILINEAR, box=box)
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)
        if self.crop and random.random() < 0.5:
            pixels = pixels.flip(2)
        return pixels.float().div_(255).sub_(0.45).div_(0.225)


def random_crop(width: int, height: int, *, scale: tuple[float, float] = (0.08, 1.0)) -> Box:
    """Draws a box (left, top, right, bottom) like torchvision's RandomResizedCrop."""
    for _ in range(10):
        area = width * height * random.uniform(*scale)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w = round(math.sqrt(area * ratio))
        h = round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x = random.randint(0, width - w)
            y = random.randint(0, height - h)
            return x, y, x + w, y + h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, (width + side) // 2, (height + side) // 2


@dataclass(frozen=True, slots=True)
class Contestant:
    """One loader. ``workers``: threads of fastload (None: automatic) or processes of torch."""

    name: str
    kind: str  # "fastload" or "torch"
    workers: int | None
    backend: str = "auto"
    folder: str = ""  # image files for torch


@dataclass(frozen=True, slots=True)
class Consumer:
    """The consumer of the batches, and what a batch contains."""

    dataset: str
    field: str
    batch_size: int = 64
    size: tuple[int, int] = (224, 224)
    compute_ms: float = 0.0
    busy: bool = False  # compute on the CPU; False: sleep, as if a GPU computed
    batches: int = 1000  # a round ends after this many batches ...
    seconds: float = 4.0  # ... or this many seconds
    split: str | None = None

    def check_batch_fits(self, n: int, where: str, what: str) -> None:
        if n < self.batch_size:
            raise ConfigError(
                f"{where} has {n} {what}, less than one batch of {self.batch_size}. "
                "Pass a smaller --batch-size."
            )


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One line of the table."""

    name: str
    kind: str
    per_s: Spread
    wait_ms: float  # mean per batch
    waiting: float  # share of the time
    p50_ms: float  # between batches
    p99_ms: float
    cpu_ms: float  # per image
    peak_mb: float

    def cells(self) -> tuple[str, ...]:
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
        figures = {name: value for name, value in asdict(self).items() if name != "per_s"}
        return {"loader": figures.pop("name"), "images_per_s": self.per_s.as_json(), **figures}


@dataclass(slots=True)
class LoadReport:
    """All rows, with the machine and the versions that they were measured on."""

    consumer: Consumer
    rows: list[LoadRow]
    failed: dict[str, str]
    machine: dict[str, str] = field(default_factory=machine)
    versions: dict[str, str] = field(default_factory=lambda: versions("pillow"))

    def table(self) -> Table:
        c = self.consumer
        return Table(
            f"Loading {c.dataset}: batches of {c.batch_size}, random crops resized to "
            f"{c.size[1]} x {c.size[0]} pixels (width x height), {c.compute_ms:g} ms of compute "
            f"per batch{' on the CPU' if c.busy else ''}",
            HEADINGS,
            rows=[row.cells() for row in self.rows],
            notes=[f"{name}: {why}" for name, why in self.failed.items()] + [self.conclusion()],
        )

    def as_json(self) -> dict[str, object]:
        c = self.consumer
        return {
            "dataset": c.dataset,
            "split": c.split,
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
        """How long the consumer waits with fastload, compared with the best torch DataLoader."""
        best = self._fastest("fastload")
        if best is None:
            return "fastload did not run, so there is nothing to compare."
        text = (
            f"With fastload the consumer gets {number(best.per_s.middle)} images/s and waits "
            f"{number(best.wait_ms)} ms per batch ({best.waiting:.0%} of its time)."
        )
        other = self._fastest("torch")
        if other is None:
            return text
        return (
            f"{text} The fastest torch DataLoader ({other.name}) delivers "
            f"{number(other.per_s.middle)} images/s, and the consumer waits "
            f"{number(other.wait_ms)} ms per batch ({other.waiting:.0%}). "
            f"fastload is {best.per_s.middle / other.per_s.middle:.2f} times as fast and uses "
            f"{part(best.cpu_ms, other.cpu_ms)} times the CPU time and "
            f"{best.peak_mb / max(other.peak_mb, 1):.2f} times the memory."
        )

    def _fastest(self, kind: str) -> LoadRow | None:
        rows = [row for row in self.rows if row.kind == kind]
        return max(rows, key=lambda row: row.per_s.middle, default=None)


def measure(
    consumer: Consumer,
    contestants: Sequence[Contestant],
    *,
    rounds: int,
    tick: Tick = ignored,
) -> LoadReport:
    """Measures the loaders in turn, each in its own process. A loader that fails is reported."""
    failed: dict[str, str] = {}
    found: dict[str, list[Round]] = {each.name: [] for each in contestants}
    with contextlib.ExitStack() as stack:
        children = {
            each.name: stack.enter_context(Child(each.name, _command(consumer, each)))
            for each in contestants
        }
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
                tick(done, rounds * len(children))
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
    """One torch DataLoader of the images in ``folder`` per number of workers.

    ``workers=None`` means 0, 1, 2, 4 ... all cores. Without ``folder``, up to ``limit`` images of
    the dataset are written to ``exported`` first.
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
    # Batches that were prefetched while other loaders ran must not count: torch keeps two per
    # worker, fastload three in total.
    warm = max(4, 2 * (each.workers or 0) + 1) if each.kind == "torch" else 4
    spec = {**asdict(each), **asdict(consumer), "warm": warm}
    return [sys.executable, "-m", "fastload._tools.bench.children", json.dumps(spec)]


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
