"""MosaicML Streaming: MDS shards with "jpeg" encoding and hashes, in a torch DataLoader."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import Any

from PIL import Image

from benchmarks.peers.adapters.torch_pil import one_thread
from benchmarks.peers.images import by_pillow, stacked
from benchmarks.peers.job import WORKS, Batches, Job, module

PACKAGES: tuple[str, ...] = ("mosaicml-streaming",)
NOTE = 'MDS, encoding "jpeg" (bytes kept), xxh64 hashes'
CHECKSUM = True


def ready() -> Any:
    """Substitutes a stub if torchvision does not fit the installed torch.

    Streaming imports torchvision for classes that are not used here.
    """
    try:
        module("torchvision")
    except (ImportError, RuntimeError):
        for name in (
            "torchvision",
            "torchvision.datasets",
            "torchvision.transforms",
            "torchvision.transforms.functional",
        ):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
        sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]
    return module("streaming")


def pack(job: Job) -> None:
    columns = {str(place): "jpeg" for place in range(job.work.cameras)}
    with ready().MDSWriter(
        out=str(job.packed),
        columns=columns,
        hashes=["xxh64"],
        size_limit="64mb",
        progress_bar=False,
    ) as writer:
        for files in job.samples:
            writer.write({str(place): Image.open(path) for place, path in enumerate(files)})


def batches(job: Job) -> Batches:
    import torch

    base: Any = ready().StreamingDataset

    class Samples(base):  # type: ignore[misc]
        """A subclass with its own __getitem__, as the documentation recommends."""

        def __getitem__(self, index: int) -> Any:
            sample, work = super().__getitem__(index), WORKS[job.work.name]
            return stacked([by_pillow(sample[str(place)], work) for place in range(work.cameras)])

    dataset = Samples(local=str(job.packed), shuffle=True, batch_size=job.work.batch_size)
    loader: Any = torch.utils.data.DataLoader(
        dataset,
        batch_size=job.work.batch_size,
        num_workers=job.workers,
        persistent_workers=job.workers > 0,
        worker_init_fn=one_thread,
    )
    return lambda: iter(loader)


def count(job: Job) -> int:
    dataset = ready().StreamingDataset(local=str(job.packed), batch_size=1)
    return sum(1 for index in range(len(dataset)) if len(dataset[index]) == job.work.cameras)
