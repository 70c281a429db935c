"""The datasets and the loaders that benchmarks/load.py measures."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image

import fastload
from benchmarks.evenness import stolen_s, undisturbed
from benchmarks.machine import photo_paths
from fastload import transforms as T
from fastload._decode.backend import DecodeBatch
from fastload._decode.native import NativeBackend
from fastload._load.options import DEFAULT_PREFETCH

Epoch = Callable[[], int]  # loads all data once and returns the number of images
RRC = [T.RandomResizedCrop(224), T.HorizontalFlip()]


def pack_photos(folder: Path, copies: int) -> Path:
    """Packs several copies of the photographs of the corpus."""
    for copy in range(copies):
        (folder / "photos" / f"{copy:02}").mkdir(parents=True)
        for path in photo_paths():
            (folder / "photos" / f"{copy:02}" / path.name).write_bytes(path.read_bytes())
    fastload.pack(folder / "photos", folder / "photos.packed")
    return folder / "photos.packed"


def write_gray(folder: Path, count: int) -> Path:
    """Writes 128x128 gray crops of the photographs as JPEGs in two class folders."""
    photos = [
        np.asarray(Image.open(path).convert("L").resize((256, 256))) for path in photo_paths()[:64]
    ]
    random = np.random.default_rng(0)
    for number in range(count):
        x, y = random.integers(0, 129, 2)
        pixels = np.ascontiguousarray(photos[number % len(photos)][y : y + 128, x : x + 128])[
            :, :, None
        ]
        path = folder / "gray" / "ab"[number % 2] / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(simplejpeg.encode_jpeg(pixels, quality=90, colorspace="GRAY"))
    return folder / "gray"


def loader_epochs(
    packed: Path,
    transform: list[Any] | None,
    batch: int,
    threads: int,
    *,
    shuffle: bool | str = True,
) -> Epoch:
    """Loads one epoch per call with fastload.DataLoader, always the same one."""
    loader = fastload.DataLoader(
        packed, batch, shuffle=shuffle, drop_last=True, transform=transform, num_workers=threads
    )

    def run() -> int:
        loader.set_epoch(0)
        return sum(len(images) for images, _ in loader)

    return run


def core_epochs(
    packed: Path,
    transform: list[Any] | None,
    batch: int,
    threads: int,
    moments: list[Moment] | None = None,
    *,
    same: bool = False,
) -> Epoch:
    """Decodes with the bare native core and the same plans.

    All requests are prepared in advance, and as many batches are in flight as in the loader.
    ``moments`` receives the time when each batch was finished. ``same`` repeats the first batch, so
    that only the machine varies.
    """
    loader = fastload.DataLoader(
        packed, batch, shuffle=True, drop_last=True, transform=transform, num_workers=threads
    )
    pipeline = loader.pipeline
    chosen = pipeline.spec.images[0]
    made: list[tuple[Any, NDArray[np.void]]] = []
    order: Any = loader.order
    for ids in order.batches(order.begin()):
        planned = pipeline.planner.plan(ids, 0)
        request = pipeline.images.requests(chosen, planned.records, planned.rows[chosen.name])
        made.append((request.sources, request.requests))
    if same:
        made = made[:1] * len(made)
    outputs = [
        pipeline.images.image_output(chosen, planned.rows[chosen.name])
        for _ in range(loader.ahead + 1)
    ]
    backend = NativeBackend(threads=threads)

    def collect(ticket: Any) -> None:
        backend.collect(ticket).raise_first()
        if moments is not None:
            moments.append(Moment())

    def run() -> int:
        tickets: deque[Any] = deque()
        for number, (sources, requests) in enumerate(made):
            if len(tickets) == loader.ahead:
                collect(tickets.popleft())
            tickets.append(
                backend.submit(DecodeBatch(sources, requests, *outputs[number % len(outputs)]))
            )
        while tickets:
            collect(tickets.popleft())
        return batch * len(made)

    return run


@dataclass(frozen=True, slots=True)
class Moment:
    """When a batch was finished, and the CPU time that the host had taken until then."""

    clock: float = field(default_factory=time.perf_counter)
    stolen: float = field(default_factory=stolen_s)


@dataclass(frozen=True, slots=True)
class Gaps:
    """Seconds between the batches of an epoch, and how many intervals the host disturbed."""

    seconds: list[float]
    disturbed: int


def loader_gaps(packed: Path, batch: int, threads: int) -> Callable[[], Gaps]:
    """Intervals between the batches of an epoch, without the first, prefetched ones.

    Each call loads the next epoch.
    """
    loader = fastload.DataLoader(
        packed, batch, shuffle=True, drop_last=True, transform=RRC, num_workers=threads
    )
    return lambda: _gaps([Moment() for _ in loader], loader.ahead)


def core_gaps(packed: Path, batch: int, threads: int, *, same: bool = False) -> Callable[[], Gaps]:
    """The same for the bare core."""
    moments: list[Moment] = []
    run = core_epochs(packed, RRC, batch, threads, moments, same=same)

    def gaps() -> Gaps:
        moments.clear()
        run()
        return _gaps(moments, DEFAULT_PREFETCH)

    return gaps


def _gaps(moments: list[Moment], ahead: int) -> Gaps:
    pairs = list(itertools.pairwise(moments[ahead:]))
    stolen = [later.stolen - earlier.stolen for earlier, later in pairs]
    times = undisturbed([later.clock - earlier.clock for earlier, later in pairs], stolen)
    return Gaps(times, len(pairs) - len(times))


class Files(torch.utils.data.Dataset[Any]):
    """A typical map-style dataset: cv2 reads and decodes."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(str(path) for path in folder.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Any:
        pixels: Any = cv2.imread(self._paths[index], cv2.IMREAD_GRAYSCALE)
        return torch.from_numpy(pixels)[None], index % 2


def torch_epochs(folder: Path, batch: int, workers: int) -> Epoch:
    """torch's DataLoader with as many persistent worker processes."""
    cv2.setNumThreads(1)
    loader = torch.utils.data.DataLoader(
        Files(folder),
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
    )
    return lambda: sum(len(images) for images, _ in loader)


def pack_blobs(folder: Path, megabytes: int, order: str) -> Path:
    """Packs records of 110 kB that need no decoding, so that only the disk is measured."""

    def samples() -> Iterator[dict[str, Any]]:
        for number in range(megabytes * 1_000_000 // 110_000):
            yield {"data": np.random.default_rng(number).integers(0, 256, 110_000, dtype=np.uint8)}

    fastload.pack(
        samples(),
        folder / f"blobs-{order}",
        fields={"data": "array"},
        order=order,
        shard_size=128 << 20,
    )
    return folder / f"blobs-{order}"
