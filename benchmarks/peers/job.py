"""What a contestant is asked: which images, what becomes of them, with how many workers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Batches = Callable[
    [], Iterator[Any]
]  # one epoch of uint8 batches, (N, H, W, C) or (N, C, H, W) or with cameras before H


@dataclass(frozen=True, slots=True)
class Work:
    """One line of the comparison. ``size``: (height, width) of what comes out."""

    name: str
    title: str
    size: tuple[int, int]
    batch_size: int  # samples
    data: str  # which images
    crop: bool = False  # random resized crop instead of the whole image
    gray: bool = False
    cameras: int = 1  # images a sample

    @property
    def channels(self) -> int:
        """Of the output."""
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
    """A work, its images as files, and a place for what the peer packs them into."""

    work: Work
    samples: list[list[Path]]  # images of each sample
    packed: Path
    workers: int

    @staticmethod
    def of(work: str, data: Path, packed: Path, workers: int) -> Job:
        """``data`` holds one folder a kind of images, with files NUMBER-CAMERA.jpg."""
        files = sorted((data / WORKS[work].data).glob("*.jpg"))
        count = WORKS[work].cameras
        samples = [files[i : i + count] for i in range(0, len(files), count)]
        return Job(WORKS[work], samples, packed, workers)

    @property
    def images(self) -> list[Path]:
        """All of them, sample by sample."""
        return [path for sample in self.samples for path in sample]


def module(name: str) -> Any:
    """A module that may not be installed where types are checked; Any, so that both ways pass."""
    return importlib.import_module(name)


class Peer(Protocol):
    """One module of ``benchmarks/peers/adapters``."""

    PACKAGES: tuple[str, ...]  # whose versions are told
    NOTE: str  # what its docs recommend and is done here
    CHECKSUM: bool  # of the data, written by default or as it is used here

    def pack(self, job: Job) -> None:
        """Writes ``job.packed`` (a folder or a file in it); not for peers that read the files themselves."""

    def batches(self, job: Job) -> Batches:
        """Ready to iterate, again and again."""

    def count(self, job: Job) -> int:
        """Samples that can be read from ``job.packed``; raises what the peer raises."""
