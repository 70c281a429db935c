"""WebDataset: tar shards, shuffle buffer, decode("pil") and batching in workers, WebLoader."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.peers.adapters.torch_pil import one_thread
from benchmarks.peers.images import by_pillow, stacked
from benchmarks.peers.job import Batches, Job, module

PACKAGES: tuple[str, ...] = ("webdataset",)
NOTE = 'tar shards, decode("pil"), batched in workers'
CHECKSUM = False
SHARDS = 8


def _names(job: Job) -> list[str]:
    return [f"{place}.jpg" for place in range(job.work.cameras)]


def pack(job: Job) -> None:
    wds = module("webdataset")
    job.packed.mkdir(parents=True, exist_ok=True)
    with wds.ShardWriter(
        str(job.packed / "shard-%05d.tar"), maxcount=-(-len(job.samples) // SHARDS), verbose=0
    ) as sink:
        for number, files in enumerate(job.samples):
            sink.write(
                {
                    "__key__": f"{number:08}",
                    **{
                        name: path.read_bytes()
                        for name, path in zip(_names(job), files, strict=True)
                    },
                }
            )


def batches(job: Job) -> Batches:
    wds = module("webdataset")

    def sample(images: Any) -> Any:
        return stacked([by_pillow(image, job.work) for image in images])

    urls = [str(path) for path in sorted(job.packed.glob("*.tar"))]
    dataset = (
        wds.WebDataset(urls, shardshuffle=len(urls), empty_check=False)
        .shuffle(1000)
        .decode("pil")
        .to_tuple(*_names(job))
        .map(sample)
    )
    dataset = dataset.batched(
        job.work.batch_size, collation_fn=lambda items: torch.stack(list(items))
    )
    loader = wds.WebLoader(
        dataset,
        batch_size=None,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
        worker_init_fn=one_thread,
    )
    return lambda: iter(loader)


def count(job: Job) -> int:
    wds = module("webdataset")
    urls = [str(path) for path in sorted(job.packed.glob("*.tar"))]
    found = wds.WebDataset(urls, shardshuffle=False, empty_check=False)
    return sum(
        1 for each in found if all(np.frombuffer(each[name], np.uint8).size for name in _names(job))
    )
