"""LitData: optimize() into 64 MB chunks, StreamingDataset with transform, StreamingDataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.peers.adapters.torch_pil import one_thread
from benchmarks.peers.images import by_pillow, stacked
from benchmarks.peers.job import WORKS, Batches, Job, module

PACKAGES: tuple[str, ...] = ("litdata",)
NOTE = "optimize() of JPEG bytes, StreamingDataLoader"
CHECKSUM = False


def _read(files: list[str]) -> dict[str, bytes]:
    return {str(place): Path(path).read_bytes() for place, path in enumerate(files)}


class Sample:
    """The transform; a class, so that it can be pickled for workers."""

    def __init__(self, work: str) -> None:
        self.work = work

    def __call__(self, sample: dict[str, bytes], *_: Any, **__: Any) -> Any:
        work = WORKS[self.work]
        return stacked([by_pillow(sample[str(place)], work) for place in range(work.cameras)])


def pack(job: Job) -> None:
    litdata = module("litdata")
    inputs = [[str(path) for path in files] for files in job.samples]
    litdata.optimize(
        fn=_read,
        inputs=inputs,
        output_dir=str(job.packed),
        num_workers=max(1, job.workers),
        chunk_bytes="64MB",
        verbose=False,
    )


def batches(job: Job) -> Batches:
    litdata = module("litdata")
    dataset = litdata.StreamingDataset(
        str(job.packed), shuffle=True, transform=Sample(job.work.name)
    )
    loader = litdata.StreamingDataLoader(
        dataset,
        batch_size=job.work.batch_size,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
        worker_init_fn=one_thread,
    )
    return lambda: iter(loader)


def count(job: Job) -> int:
    litdata = module("litdata")
    dataset = litdata.StreamingDataset(str(job.packed))
    return sum(1 for index in range(len(dataset)) if len(dataset[index]) == job.work.cameras)
