"""The child process of the comparison, for one peer and one work.

python -m benchmarks.peers.serve load PEER WORK DATA PACKED WORKERS SECONDS
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.job import Job
from benchmarks.peers.peers import PEERS, adapter
from fastload._tools.bench.children import serve


def main() -> None:
    task, peer, work, data, packed, workers, *rest = sys.argv[1:]
    warnings.simplefilter("ignore")  # other libraries warn about each other
    module = adapter(peer)
    _with_environment(getattr(module, "environment", dict)())
    job = Job.of(work, Path(data), Path(packed), int(workers))
    if task == "pack":
        # Import first, because only packing is timed.
        getattr(module, "ready", lambda: importlib.import_module(PEERS[peer].module))()
        started = time.perf_counter()
        module.pack(job)
        print(f"\npacked {time.perf_counter() - started}")
    elif task == "count":
        print(f"\ncounted {module.count(job)}")
    else:
        serve(lambda: _loading(module, job, float(rest[0])))


def _with_environment(wanted: dict[str, str]) -> None:
    """Restarts this program if a peer needs environment variables that are read at startup."""
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(
            sys.executable,
            [sys.executable, "-m", "benchmarks.peers.serve", *sys.argv[1:]],
            {**os.environ, **wanted},
        )


def _loading(
    module: Any, job: Job, seconds: float
) -> tuple[dict[str, Any], Callable[[str], dict[str, Any]]]:
    import torch

    torch.set_num_threads(1)
    random.seed(0)
    epoch = module.batches(job)
    return {"note": module.NOTE, "checksum": module.CHECKSUM}, lambda word: _round(
        epoch, job, 0.0 if word == "warm" else seconds
    )


def _round(epoch: Callable[[], Any], job: Job, seconds: float) -> dict[str, Any]:
    """Loads whole epochs for at least ``seconds``.

    The warm-up also computes the mean pixel value, which shows whether all peers do the same work.
    """
    begin = time.perf_counter()
    n = 0
    mean = 0.0
    while True:
        total = 0
        for batch in epoch():
            count = len(batch) * (batch.shape[1] if batch.ndim == 5 else 1)
            total += count
            if not n:
                _check(batch, job)
                mean += float(batch.float().mean()) * count if seconds == 0 else 0.0
        if total != len(job.images):
            raise SystemExit(f"the epoch has {total} images, expected {len(job.images)}")
        n += total
        if time.perf_counter() - begin >= seconds:
            return {"n": n, "seconds": time.perf_counter() - begin, "mean": mean / len(job.images)}


def _check(batch: Any, job: Job) -> None:
    sides = set(job.work.size)
    if batch.dtype.itemsize != 1 or not sides <= set(batch.shape[1:]):
        raise SystemExit(
            f"the batch is {tuple(batch.shape)} {batch.dtype}, expected uint8 of {job.work.size}"
        )


if __name__ == "__main__":
    main()
