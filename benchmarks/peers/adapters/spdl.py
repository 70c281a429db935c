"""SPDL: a Pipeline of threads: demux, decode with an FFmpeg crop and scale filter, convert."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.job import Batches, Job, module
from fastload._tools.bench.load import random_crop

PACKAGES: tuple[str, ...] = ("spdl", "spdl-io")
NOTE = "files, thread pipeline, crop and scale in FFmpeg"
CHECKSUM = False


def environment() -> dict[str, str]:
    """The path of the FFmpeg libraries that setup links, because SPDL's wheel has none.

    They must be found when the program starts.
    """
    links = Path(sys.prefix) / "ffmpeg"
    return {"LD_LIBRARY_PATH": str(links)} if links.is_dir() else {}


def batches(job: Job) -> Batches:
    spdl_io, builder = module("spdl.io"), module("spdl.pipeline").PipelineBuilder
    work = job.work
    kind = "gray" if work.gray else "rgb24"

    def decode(path: str) -> Any:
        packets = spdl_io.demux_image(Path(path).read_bytes())
        description = f"scale={work.size[1]}:{work.size[0]}:flags=bilinear,format={kind}"
        if work.crop:
            codec = packets.codec
            left, top, right, bottom = random_crop(codec.width, codec.height)
            description = f"crop={right - left}:{bottom - top}:{left}:{top}:exact=1,{description}"
        return spdl_io.decode_packets(packets, filter_desc=description)

    def convert(frames: Sequence[Any]) -> Any:
        tensor = spdl_io.to_torch(spdl_io.convert_frames(list(frames)))
        tensor = tensor if tensor.ndim == 4 else tensor[..., None]
        return tensor.view(-1, work.cameras, *tensor.shape[1:]) if work.cameras > 1 else tensor

    def epoch() -> Iterator[Any]:
        order = list(job.samples)
        random.shuffle(order)
        threads = max(1, job.workers)
        pipeline = (
            builder()
            .add_source([str(path) for sample in order for path in sample])
            .pipe(decode, concurrency=threads, output_order="input")
            .aggregate(work.batch_size * work.cameras)
            .pipe(convert)
            .add_sink(2)
            .build(num_threads=threads)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    return epoch
