"""torch's DataLoader with an LMDB of JPEG bytes, opened in each worker, and OpenCV.

Most repositories that use LMDB do it this way.
"""

from __future__ import annotations

from typing import Any

import lmdb
import torch

from benchmarks.peers.adapters.torch_pil import loader_of
from benchmarks.peers.images import by_opencv, stacked
from benchmarks.peers.job import Batches, Job

PACKAGES: tuple[str, ...] = ("torch", "lmdb", "opencv-python-headless")
NOTE = "one LMDB, opened in each worker"
CHECKSUM = False


class Values(torch.utils.data.Dataset[Any]):
    """Samples from an LMDB."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.env: Any = None

    def __len__(self) -> int:
        return len(self.job.samples)

    def __getitem__(self, index: int) -> Any:
        if self.env is None:
            self.env = lmdb.open(
                str(self.job.packed), readonly=True, lock=False, readahead=False, meminit=False
            )
        with self.env.begin(buffers=True) as transaction:
            cameras = self.job.work.cameras
            return stacked(
                [
                    by_opencv(transaction.get(b"%08d" % (index * cameras + i)), self.job.work)
                    for i in range(cameras)
                ]
            )


def pack(job: Job) -> None:
    with lmdb.open(str(job.packed), map_size=1 << 34) as env:
        files = job.images
        for first in range(0, len(files), 256):
            with env.begin(write=True) as transaction:
                for number in range(first, min(first + 256, len(files))):
                    transaction.put(b"%08d" % number, files[number].read_bytes())


def batches(job: Job) -> Batches:
    return loader_of(Values(job), job)


def count(job: Job) -> int:
    with lmdb.open(str(job.packed), readonly=True, lock=False) as env:
        return int(env.stat()["entries"]) // job.work.cameras
