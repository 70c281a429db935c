"""Hugging Face datasets: Arrow files with an Image feature, set_transform, torch DataLoader."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.adapters.torch_pil import loader_of
from benchmarks.peers.images import by_pillow, stacked
from benchmarks.peers.job import WORKS, Batches, Job, module

PACKAGES: tuple[str, ...] = ("datasets", "pyarrow")
NOTE = "Image feature (bytes embedded), with_transform"
CHECKSUM = False


def _names(job: Job) -> list[str]:
    return [f"image{place}" for place in range(job.work.cameras)]


def pack(job: Job) -> None:
    datasets = module("datasets")

    def rows() -> Any:
        for files in job.samples:
            yield {
                name: {"bytes": path.read_bytes(), "path": None}
                for name, path in zip(_names(job), files, strict=True)
            }

    features = datasets.Features({name: datasets.Image() for name in _names(job)})
    datasets.disable_progress_bars()
    made = datasets.Dataset.from_generator(
        rows, features=features, cache_dir=str(job.packed) + "-cache"
    )
    made.save_to_disk(str(job.packed))


class Transform:
    """The transform; a class, so that it can be pickled for workers."""

    def __init__(self, work: str) -> None:
        self.work = work

    def __call__(self, rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        work = WORKS[self.work]
        return {
            "pixels": [
                stacked([by_pillow(each, work) for each in images])
                for images in zip(*rows.values(), strict=True)
            ]
        }


def batches(job: Job) -> Batches:
    datasets = module("datasets")
    dataset = datasets.load_from_disk(str(job.packed)).with_transform(Transform(job.work.name))
    loader = loader_of(dataset, job)
    return lambda: (batch["pixels"] for batch in loader())


def count(job: Job) -> int:
    datasets = module("datasets")
    found = datasets.load_from_disk(str(job.packed)).cast_column(
        _names(job)[0], datasets.Image(decode=False)
    )
    return sum(1 for row in found if row[_names(job)[0]]["bytes"])
