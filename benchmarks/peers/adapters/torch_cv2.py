"""torch's DataLoader with image files, decoded by OpenCV in worker processes."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.peers.adapters.torch_pil import loader_of
from benchmarks.peers.images import by_opencv, stacked
from benchmarks.peers.job import Batches, Job

PACKAGES: tuple[str, ...] = ("torch", "opencv-python-headless")
NOTE = "files, persistent workers"
CHECKSUM = False


class Files(torch.utils.data.Dataset[Any]):
    """Samples from image files."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __len__(self) -> int:
        return len(self.job.samples)

    def __getitem__(self, index: int) -> Any:
        return stacked([by_opencv(path, self.job.work) for path in self.job.samples[index]])


def batches(job: Job) -> Batches:
    return loader_of(Files(job), job)
