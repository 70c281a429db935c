"""The native core alone on the same packed images: the upper bound for fastload, not a loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.peers.adapters.fastload_ import pack
from benchmarks.peers.job import Batches, Job

__all__ = ["CHECKSUM", "NOTE", "PACKAGES", "batches", "pack"]
PACKAGES: tuple[str, ...] = ("fastload",)
NOTE = "not a loader: decode calls with precomputed requests"
CHECKSUM = True


def batches(job: Job) -> Batches:
    from fastload._store.dataset import open_dataset
    from fastload._tools.bench.decode_work import BenchImages, Work, make_decoder

    images = BenchImages.of(open_dataset(job.packed), field=None, samples=len(job.samples))
    work = Work("", job.work.size, crop=job.work.crop)
    prepared = images.batches(work)
    backend = make_decoder("native", threads=max(1, job.workers))

    def epoch() -> Iterator[Any]:
        images.run(backend, work, prepared)
        for batch in prepared:
            yield batch.output

    return epoch
