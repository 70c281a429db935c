"""Shared by all generators: check the target folder, run work in processes, summarize."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
OnProgress = Callable[[int, int], None]  # called with the number of images done and the total

# One number per stream of random numbers, never reused: default_rng([seed, stream, i]) is sample i.
STREAMS = {
    "imagenet/train": 1,
    "imagenet/val": 2,
    "openlane": 3,
    "openlane/segment": 4,
    "nuscenes": 5,
    "gray/train": 6,
    "gray/val": 7,
    "captcha": 8,
}


class UsageError(ValueError):
    """The caller must change an argument; the message is one line."""


@dataclass(frozen=True, slots=True)
class Made:
    """The files that a generator wrote."""

    layout: str
    dest: Path
    n_samples: int
    n_images: int
    n_bytes: int  # of all files

    def __str__(self) -> str:
        size = f"{self.n_bytes / 1e6:.1f} MB"
        return (
            f"{self.layout}: {self.n_samples} samples, {self.n_images} JPEGs, {size} in {self.dest}"
        )


def start(dest: Path, *, n: int, seed: int, jobs: int) -> None:
    """Checks the arguments, then creates `dest`. Raises UsageError for an invalid argument."""
    for name, value, least in (("n", n, 1), ("seed", seed, 0), ("jobs", jobs, 1)):
        if value < least:
            raise UsageError(f"making a dataset: {name} is {value}, expected {least} or more")
    require_empty(dest)
    dest.mkdir(parents=True, exist_ok=True)


def require_empty(dest: Path) -> None:
    """Raises UsageError unless `dest` is absent or an empty folder."""
    if dest.exists() and not dest.is_dir():
        raise UsageError(
            f"making a dataset: {dest} is a file, expected a folder; choose another DEST"
        )
    if dest.is_dir() and any(dest.iterdir()):
        raise UsageError(
            f"making a dataset: {dest} is not empty; choose another DEST or delete it first"
        )


def ignore_progress(done: int, total: int) -> None:
    """The default of ``on_progress``."""


def run(
    work: Callable[[T], R],
    tasks: Sequence[T],
    *,
    jobs: int,
    on_progress: OnProgress = ignore_progress,
) -> list[R]:
    """Runs work(task) for every task, in order. `work` must be a top-level function if jobs > 1."""
    if jobs == 1 or len(tasks) == 1:
        return _collect(map(work, tasks), len(tasks), on_progress)
    # spawn, because a fork of a process with threads (torch has them) can hang
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context) as pool:
        results = pool.map(work, tasks, chunksize=4 if len(tasks) > 64 else 1)
        return _collect(results, len(tasks), on_progress)


def _collect(results: Iterable[R], total: int, on_progress: OnProgress) -> list[R]:
    found = []
    for result in results:
        found.append(result)
        on_progress(len(found), total)
    return found


def finish(layout: str, dest: Path, *, n_samples: int) -> Made:
    files = [path for path in dest.rglob("*") if path.is_file()]
    n_images = sum(path.suffix == ".jpg" for path in files)
    n_bytes = sum(path.stat().st_size for path in files)
    return Made(layout=layout, dest=dest, n_samples=n_samples, n_images=n_images, n_bytes=n_bytes)
