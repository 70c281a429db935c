"""The task of a loader: which images, how they are processed, and with how many workers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

# One epoch of uint8 batches, (N, H, W, C) or (N, C, H, W), with cameras before H.
Batches = Callable[[], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Work:
    """One part of the comparison. ``size`` is the (height, width) of the output."""

    name: str
    title: str
    size: tuple[int, int]
    batch_size: int  # samples
    data: str  # which images
    crop: bool = False  # random resized crop instead of the whole image
    gray: bool = False
    cameras: int = 1  # images per sample

    @property
    def channels(self) -> int:
        return 1 if self.gray else 3


WORKS = {
    work.name: work
    for work in (
        Work("rrc", "RRC 224", (224, 224), 64, "photos", crop=True),
        Work("whole", "whole -> 256x256", (256, 256), 64, "photos"),
        Work("gray", "128x128 gray", (128, 128), 256, "gray", gray=True),
        Work("large", "1920x1280 -> 960x640", (640, 960), 16, "large"),
        Work("cameras", "6 cameras 1600x900 -> 704x256", (256, 704), 4, "cameras", cameras=6),
    )
}


@dataclass(frozen=True, slots=True)
class Job:
    """A work, its image files, and the destination for the packed dataset of the peer."""

    work: Work
    samples: list[list[Path]]  # images of each sample
    packed: Path
    workers: int

    @staticmethod
    def of(work: str, data: Path, packed: Path, workers: int) -> Job:
        """``data`` has one folder per kind of images, with files NUMBER-CAMERA.jpg."""
        files = sorted((data / WORKS[work].data).glob("*.jpg"))
        count = WORKS[work].cameras
        samples = [files[i : i + count] for i in range(0, len(files), count)]
        return Job(WORKS[work], samples, packed, workers)

    @property
    def images(self) -> list[Path]:
        return [path for sample in self.samples for path in sample]


def module(name: str) -> Any:
    """Imports a module that may be missing when types are checked, as Any."""
    return importlib.import_module(name)


class Peer(Protocol):
    """One module of ``benchmarks/peers/adapters``."""

    PACKAGES: tuple[str, ...]  # packages whose versions are reported
    NOTE: str  # settings used here, as its documentation recommends
    CHECKSUM: bool  # whether the packed data has checksums as used here

    def pack(self, job: Job) -> None:
        """Writes ``job.packed`` (a folder or a file in it). Peers that read files lack it."""

    def batches(self, job: Job) -> Batches:
        """Returns a function that starts an epoch."""

    def count(self, job: Job) -> int:
        """Counts the samples that can be read from ``job.packed``; raises the peer's errors."""
