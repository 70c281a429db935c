"""fastload that decodes every image at full resolution before it resizes it."""

from __future__ import annotations

from benchmarks.peers.adapters import fastload_
from benchmarks.peers.adapters.fastload_ import CHECKSUM, PACKAGES, count, pack
from benchmarks.peers.job import Batches, Job

__all__ = ["CHECKSUM", "NOTE", "PACKAGES", "batches", "count", "pack"]
NOTE = "exact=True: no decoding at reduced scale"


def batches(job: Job) -> Batches:
    return fastload_.batches(job, exact=True)
