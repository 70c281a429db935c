"""fastload, packed and loaded with its defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.peers.job import Batches, Job
from fastload import transforms as T
from fastload._pack import packer  # noqa: F401 - imported before the clock starts
from fastload._pack.sources.base import Encoded

PACKAGES: tuple[str, ...] = ("fastload",)
NOTE = "defaults; the CRC of each record is verified while loading"
CHECKSUM = True
ENCODE = "keep"


def pack(job: Job) -> None:
    import fastload

    job.packed.parent.mkdir(parents=True, exist_ok=True)
    if job.work.cameras == 1:
        fastload.pack(job.images[0].parent, job.packed, jobs=job.workers, encode=ENCODE)
        return
    samples = (
        {"image": [Encoded(path.read_bytes(), path.name) for path in files]}
        for files in job.samples
    )
    fastload.pack(
        samples,
        job.packed,
        fields=[fastload.Field("image", "image", list=True)],
        jobs=job.workers,
        encode=ENCODE,
    )


def batches(job: Job, *, exact: bool = False) -> Batches:
    import fastload

    work = job.work
    steps = [
        T.RandomResizedCrop(work.size) if work.crop else T.Resize(*work.size),
        T.Layout("NHWC"),
    ]
    loader = fastload.DataLoader(
        job.packed,
        batch_size=work.batch_size,
        shuffle=True,
        num_workers=job.workers,
        transform=steps,
        fields=("image",),
        exact=exact,
    )

    def epoch() -> Iterator[Any]:
        for batch in loader:
            yield batch["image"]

    return epoch


def count(job: Job) -> int:
    import fastload

    dataset = fastload.open(job.packed)
    return sum(1 for index in range(len(dataset)) if dataset.record(index).parts)
