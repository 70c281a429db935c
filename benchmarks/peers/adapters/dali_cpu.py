"""NVIDIA DALI on the CPU: readers.file, decoders.image_random_crop (or image), resize."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.peers.job import Batches, Job, module

PACKAGES: tuple[str, ...] = ("nvidia-dali-cuda120",)
NOTE = "files, fused decode and crop, prefetch 2"
CHECKSUM = False


def batches(job: Job) -> Batches:
    import torch

    fn, types, pipeline_def = (
        module("nvidia.dali.fn"),
        module("nvidia.dali.types"),
        module("nvidia.dali").pipeline_def,
    )

    work = job.work
    files = [str(path) for path in job.images]
    batch = work.batch_size * work.cameras

    @pipeline_def(
        batch_size=batch, num_threads=max(1, job.workers), device_id=None, prefetch_queue_depth=2
    )  # type: ignore[untyped-decorator]
    def pipeline() -> Any:
        encoded, _ = fn.readers.file(
            files=files, random_shuffle=work.cameras == 1, name="files", pad_last_batch=False
        )
        kind = types.GRAY if work.gray else types.RGB
        if work.crop:
            images = fn.decoders.image_random_crop(
                encoded,
                device="cpu",
                output_type=kind,
                random_aspect_ratio=[3 / 4, 4 / 3],
                random_area=[0.08, 1.0],
            )
        else:
            images = fn.decoders.image(encoded, device="cpu", output_type=kind)
        if work.gray:
            return images  # the stored size needs no resize
        return fn.resize(
            images, resize_y=work.size[0], resize_x=work.size[1], interp_type=types.INTERP_LINEAR
        )

    built = pipeline()
    built.build()

    def epoch() -> Iterator[Any]:
        left = len(files)
        while left > 0:
            (output,) = built.run()
            pixels = torch.from_numpy(np.array(output.as_tensor()))
            pixels = pixels[:left]
            left -= len(pixels)
            yield pixels.view(-1, work.cameras, *pixels.shape[1:]) if work.cameras > 1 else pixels

    return epoch
