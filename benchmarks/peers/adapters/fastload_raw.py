"""fastload with raw pixels, for small images whose decoding costs more than reading."""

from __future__ import annotations

from benchmarks.peers.adapters import fastload_
from benchmarks.peers.adapters.fastload_ import CHECKSUM, PACKAGES, batches, count
from benchmarks.peers.job import Job

__all__ = ["CHECKSUM", "NOTE", "PACKAGES", "batches", "count", "pack"]
NOTE = 'packed with encode="raw"'


def pack(job: Job) -> None:
    fastload_.ENCODE = "raw"
    fastload_.pack(job)
