"""torch's DataLoader with image files and Pillow in workers, like torchvision's references."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.peers.images import by_pillow, stacked
from benchmarks.peers.job import Batches, Job

PACKAGES: tuple[str, ...] = ("torch", "pillow")
NOTE = "files, persistent workers"
CHECKSUM = False


class Files(torch.utils.data.Dataset[Any]):
    """Samples from image files."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __len__(self) -> int:
        return len(self.job.samples)

    def __getitem__(self, index: int) -> Any:
        return stacked([by_pillow(path, self.job.work) for path in self.job.samples[index]])


def batches(job: Job) -> Batches:
    return loader_of(Files(job), job)


def loader_of(dataset: torch.utils.data.Dataset[Any], job: Job) -> Batches:
    """The DataLoader that all map-style peers share."""
    loader = torch.utils.data.DataLoader(
        dataset,
        job.work.batch_size,
        shuffle=True,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
        worker_init_fn=one_thread,
    )
    return lambda: iter(loader)


def one_thread(_: int) -> None:
    """Limits libraries to one thread per worker, because there are as many workers as cores."""
    torch.set_num_threads(1)
    try:
        import cv2
    except ImportError:
        return
    cv2.setNumThreads(0)
