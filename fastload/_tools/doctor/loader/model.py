"""Predicts the gain of a change (docs/diagnose.md describes the model).

The speed of fastload is not predicted but measured: the images that some samples opened are packed
into a temporary folder and loaded with the user's batch size, number of images per sample and
output size. Where this is not possible, ``CannotMeasure`` states why, and no speed is promised.

Per batch, with W workers and C cores: loader(W) = k * max(wall / W, cpu / C). ``wall`` and ``cpu``
are the costs of one batch in one worker, and k makes the formula agree with the measured loader.
Trainer and loader overlap: an iteration takes the longer of the two, times the measured slowdown
that they cause each other. No prediction exceeds the speed of the step alone.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fastload._common import formatting as fmt
from fastload._load.loader import DataLoader
from fastload._pack.files import is_image_name
from fastload._pack.packer import pack
from fastload._tools.doctor.finding import Ceiling, Finding, severity_of
from fastload._tools.doctor.loader.timing import Source, time_loader
from fastload._tools.monitor.batches import arrays
from fastload.errors import FastloadError
from fastload.transforms import Normalize, Resize

_MAX_SAMPLES = 32
_MAX_BYTES = 256 << 20  # of all images that are packed
_PASS_BATCHES = 32
_CHANNELS = (1, 3, 4)
MIN_GAIN = 0.05  # two measurements differ by as much, so a smaller gain is not suggested
# Times the number of cores, and at least 16: each worker costs memory, whatever the model predicts.
_MAX_WORKERS_PER_CORE = 4


class CannotMeasure(Exception):
    """The speed of fastload on this loader cannot be measured."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fastload loader that delivers what the user's loader delivers."""

    seconds: float  # per batch
    backend: str
    images_per_sample: int
    size: tuple[int, int]  # height, width


def measure_candidate(
    samples: Sequence[Sequence[str | bytes]], batch: object, batch_size: int, seconds: float
) -> Candidate:
    """Times fastload on these samples, each a list of files and encoded images."""
    found = [_jpegs(each) for each in samples[:_MAX_SAMPLES]]
    n_images = len(found[0]) if found else 0
    if not n_images or not batch_size:
        raise CannotMeasure("the images of single samples were not seen")
    if any(len(each) != n_images for each in found):
        raise CannotMeasure("the number of images per sample varies")
    n_delivered, size = _delivered(batch, batch_size)
    if n_delivered != n_images:
        raise CannotMeasure(
            f"a sample opens {n_images} and delivers {n_delivered} images, so fastload would do "
            "other work"
        )
    if sum(len(image) for each in found for image in each) > _MAX_BYTES:
        found = found[: max(1, _MAX_BYTES // sum(map(len, found[0])))]
    rows = [{f"image{place}": image for place, image in enumerate(each)} for each in found]
    is_float = any("float" in str(each.dtype) for each in arrays(batch) if len(each.shape) >= 3)
    transform = [Resize(size), *([Normalize(0.5, 0.5)] if is_float else [])]
    indices = [place % len(rows) for place in range(batch_size * _PASS_BATCHES)]
    try:
        with tempfile.TemporaryDirectory(prefix="fastload-diagnose-") as folder:
            packed = Path(folder, "packed")
            pack(rows, packed, fields=dict.fromkeys(rows[0], "image"))
            loader = DataLoader(packed, batch_size, sampler=indices, transform=transform)
            with closing(Source(loader)) as source, closing(loader):
                timing = time_loader(source, seconds)
                backend = str(source.loader.backend)
    except (FastloadError, OSError) as error:
        raise CannotMeasure(f"fastload cannot load its images: {error}") from error
    if timing is None:
        raise CannotMeasure("fastload delivered no batch of its images")
    return Candidate(timing.timing.seconds, backend, n_images, size)


def _jpegs(images: Sequence[str | bytes]) -> list[bytes]:
    """The different JPEGs of a sample. A file that was read and then decoded counts once."""
    contents: dict[bytes, None] = {}
    for image in images:
        content = image if isinstance(image, bytes) else _read(Path(image))
        if content[:3] == b"\xff\xd8\xff":
            contents[content] = None
        elif isinstance(image, bytes) or is_image_name(image):
            # A PNG takes several times as long as a JPEG, so the JPEGs would promise too much.
            raise CannotMeasure("some of its images are not JPEGs")
    return list(contents)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() and path.stat().st_size <= _MAX_BYTES else b""
    except OSError as error:
        raise CannotMeasure(f"{path.name} cannot be read again") from error


def _delivered(batch: object, batch_size: int) -> tuple[int, tuple[int, int]]:
    """Images per sample in a batch, and the largest height and width of them."""
    count = 0.0
    size = (0, 0)
    for array in arrays(batch):
        shape = tuple(map(int, array.shape))
        is_images = 3 <= len(shape) <= 5
        if is_images and shape[-3] in _CHANNELS:
            height, width = shape[-2:]
        elif is_images and shape[-1] in _CHANNELS:
            height, width = shape[-3:-1]
        else:
            continue
        count += math.prod(shape[:-3]) / batch_size
        size = (max(size[0], height), max(size[1], width))
    if count < 1 or count % 1:
        raise CannotMeasure("the images in its batches were not recognized")
    return int(count), size


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderCosts:
    """The measured costs in seconds per batch."""

    loader_s: float
    cores: int
    step_s: float | None = None
    together_s: float | None = None
    workers: int | None = None  # None: not a torch loader
    threads: int | None = None  # of a fastload loader, if the user fixed their number
    wall_s: float | None = None  # in one worker, with collate and the transfer between processes
    cpu_s: float | None = None
    collate_ipc_s: float = 0.0
    float_images: bool = False
    candidate: Candidate | None = None  # fastload on the same samples
    start_s: float = 0.0
    epoch_batches: int | None = None
    persistent: bool = True

    @property
    def now_s(self) -> float:
        """Seconds per iteration now."""
        return self.together_s or self._formula_s

    @property
    def slowdown(self) -> float:
        """How much loader and step slow each other down, mostly by sharing cores; 1 is none."""
        return max(1.0, (self.together_s or 0.0) / self._formula_s)

    @property
    def _formula_s(self) -> float:
        if self.workers == 0:
            return self.loader_s + (self.step_s or 0.0)
        return self.overlapped(self.loader_s)

    def overlapped(self, loader_s: float) -> float:
        """Seconds per iteration with a loader that works in the background."""
        return max(loader_s, self.step_s or 0.0)

    def with_workers(self, workers: int) -> float:
        """The loader's seconds per batch with so many worker processes."""
        wall_s = self.wall_s or 0.0
        cpu_s = (self.cpu_s or 0.0) / self.cores
        scale = 1.0
        if self.workers:
            scale = max(1.0, self.loader_s / max(wall_s / self.workers, cpu_s))
        return scale * max(wall_s / workers, cpu_s)


def suggestions(costs: LoaderCosts) -> tuple[Finding, ...]:
    """Changes that gain at least 5 %, the best first."""
    gains = {each: each.ceiling.gain for each in _all(costs) if each.ceiling is not None}
    return tuple(
        sorted(
            (each for each, gain in gains.items() if gain >= MIN_GAIN),
            key=lambda each: -gains[each],
        )
    )


def _all(costs: LoaderCosts) -> Iterator[Finding]:
    cores = fmt.count(costs.cores, "core")
    if costs.workers is not None:
        yield from _workers(costs)
    if costs.threads is not None and costs.threads < costs.cores:
        yield _suggest(
            costs,
            costs.loader_s * costs.threads / costs.cores,
            "threads",
            f"the loader uses {fmt.count(costs.threads, 'decode thread')} on {cores}",
            change=f"num_workers=None (now {costs.threads})",
            why="Without num_workers, the loader uses all cores of this job.",
        )
    if costs.candidate is not None:
        images = fmt.count(costs.candidate.images_per_sample, "image")
        height, width = costs.candidate.size
        yield _suggest(
            costs,
            costs.candidate.seconds,
            "decoding",
            "a faster decoder can do the same work",
            change="fastload.DataLoader on the packed dataset "
            "(fastload.migrate(loader) prints the code)",
            why=f"fastload with the {costs.candidate.backend} decoder was measured on your own "
            f"samples, {images} of {height} x {width} each, read from memory: "
            f"{1e3 * costs.candidate.seconds:.1f} ms per batch with {cores}.",
        )
    if costs.collate_ipc_s and costs.float_images and costs.wall_s and costs.workers:
        saved = 0.75 * costs.collate_ipc_s
        yield _suggest(
            costs,
            costs.loader_s * (costs.wall_s - saved) / costs.wall_s,
            "float-images",
            "workers send images as float32",
            change="return uint8 images from the dataset and normalize on the device",
            why="Collate and the transfer between processes move four bytes per value instead of "
            f"one, and take {1e3 * costs.collate_ipc_s:.1f} ms per batch.",
        )
    if not costs.persistent and costs.workers and costs.epoch_batches:
        lost = costs.start_s / (costs.epoch_batches * costs.now_s)
        yield _finding(
            "worker-start",
            "workers are restarted in every epoch",
            "persistent_workers=True",
            f"Each epoch of {costs.epoch_batches} batches starts with {costs.start_s:.1f} s of "
            f"starting workers, so it reaches {1 / costs.now_s / (1 + lost):.1f} it/s.",
            Ceiling(1.0 / costs.now_s, lost),
        )


def _workers(costs: LoaderCosts) -> Iterator[Finding]:
    """More workers, as many as the step or the cores can use."""
    if costs.wall_s is None or costs.cpu_s is None:
        return
    now = costs.workers or 0
    most = max(_MAX_WORKERS_PER_CORE * costs.cores, 16)
    # More workers would wait for cores. A quarter of a worker is within the measurement error.
    useful = math.ceil(costs.wall_s / max(costs.cpu_s / costs.cores, costs.wall_s / most) - 0.25)
    wanted = min(useful, most)
    if wanted <= now:
        return
    enough_s = 0.95 * (costs.step_s or 0.0)
    counts = range(now + 1, wanted + 1)
    wanted = next((n for n in counts if costs.with_workers(n) <= enough_s), wanted)
    why = (
        f"A batch costs one worker {1e3 * costs.wall_s:.0f} ms, "
        f"{100 * min(1.0, costs.cpu_s / costs.wall_s):.0f} % of it CPU time, and this job has "
        f"{fmt.count(costs.cores, 'core')}."
    )
    kind = "workers"
    title = f"{fmt.count(now, 'worker')} cannot keep up"
    if not now:
        kind = "no-workers"
        title = "loading and training take turns in one process"
        why = f"With num_workers=0 the step waits while a batch is loaded. {why}"
    yield _suggest(
        costs,
        costs.with_workers(wanted),
        kind,
        title,
        change=f"num_workers={wanted} (now {now})",
        why=why,
    )


def _suggest(
    costs: LoaderCosts, loader_s: float, kind: str, title: str, *, change: str, why: str
) -> Finding:
    expected_s = max(costs.slowdown * costs.overlapped(loader_s), costs.step_s or 0.0)
    ceiling = Ceiling(1.0 / expected_s, costs.now_s / expected_s - 1.0)
    return _finding(kind, title, change, why, ceiling)


def _finding(kind: str, title: str, change: str, why: str, ceiling: Ceiling) -> Finding:
    gain = max(ceiling.gain, 0.0)
    share = gain / (1.0 + gain)
    severity = severity_of(share)
    return Finding(kind, title, (why,), change, share=share, ceiling=ceiling, severity=severity)
