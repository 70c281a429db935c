"""FFCV: a .beton file with write_mode="jpg", loaded with fused decoders, OS cache, random order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.peers.job import Batches, Job, module

PACKAGES: tuple[str, ...] = ("ffcv", "numba")
NOTE = "re-encodes to JPEG 90 (it cannot keep bytes); RGB only"
CHECKSUM = False


class _Samples:
    """Samples of arrays, the input of FFCV's writer."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __len__(self) -> int:
        return len(self.job.samples)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(np.array(Image.open(path).convert("RGB")) for path in self.job.samples[index])


def pack(job: Job) -> None:
    fields_module, writer = module("ffcv.fields"), module("ffcv.writer")
    job.packed.mkdir(parents=True, exist_ok=True)
    fields = {
        f"image{place}": fields_module.RGBImageField(write_mode="jpg", jpeg_quality=90)
        for place in range(job.work.cameras)
    }
    writer.DatasetWriter(
        str(job.packed / "data.beton"), fields, num_workers=max(1, job.workers)
    ).from_indexed_dataset(_Samples(job), chunksize=16)


def batches(job: Job) -> Batches:
    import torch

    images, loading, to_tensor = (
        module("ffcv.fields.rgb_image"),
        module("ffcv.loader"),
        module("ffcv.transforms").ToTensor,
    )
    work = job.work
    decoder = (
        images.RandomResizedCropRGBImageDecoder
        if work.crop
        else images.SimpleRGBImageDecoder
        if work.gray
        else _whole()
    )
    pipelines = {
        f"image{place}": [decoder(*([] if work.gray else [work.size])), to_tensor()]
        for place in range(work.cameras)
    }
    loader = loading.Loader(
        str(job.packed / "data.beton"),
        batch_size=work.batch_size,
        num_workers=max(1, job.workers),
        order=loading.OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines=pipelines,
    )

    def epoch() -> Any:
        for found in loader:
            yield found[0] if len(found) == 1 else torch.stack(list(found), 1)

    return epoch


def _whole() -> Any:
    """A subclass of FFCV's ResizedCrop decoder that crops the whole image, as its docs suggest."""

    def whole(height: int, width: int, _scale: Any, _ratio: Any) -> tuple[int, int, int, int]:
        return 0, 0, height, width

    base: Any = module("ffcv.fields.rgb_image").ResizedCropRGBImageDecoder

    class Whole(base):  # type: ignore[misc]
        def __init__(self, output_size: tuple[int, int]) -> None:
            super().__init__(output_size)
            self.scale, self.ratio = 1.0, 1.0

        @property
        def get_crop_generator(self) -> Callable[..., tuple[int, int, int, int]]:
            return whole

    return Whole


def count(job: Job) -> int:
    return int(module("ffcv.reader").Reader(str(job.packed / "data.beton")).num_samples)
