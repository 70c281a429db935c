"""Batches of the self-test's images through a backend, and how far two results are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._decode.backend import (
    Codec,
    DecodeBackend,
    DecodeBatch,
    DecodeResult,
    PixelFormat,
    new_requests,
)
from fastload._decode.gpu.staging import StreamCutter
from fastload._decode.registry import default_cpu_backend, find_backend
from fastload._tools.selftest.images import JpegFile

Levels = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A batch of images: each one's pixels (h, w, 3), or None and the reason."""

    images: list[Levels | None]
    reasons: dict[int, str]
    n_here: int  # decoded by the backend's own library; the others by the CPU


def open_backend(
    name: str, device: str, *, hardware: bool = False, threads: int = 2
) -> DecodeBackend:
    """By name, as the loader does."""
    return find_backend(name).make(threads=threads, device=device, hardware=hardware)


def cpu_backend() -> DecodeBackend:
    """What the others are compared with."""
    return default_cpu_backend().make(threads=1)


def run(
    backend: DecodeBackend,
    sources: Sequence[bytes],
    canvas: tuple[int, int],
    *,
    pixels: PixelFormat | None = None,
    **request: Any,
) -> DecodeResult:
    """Keywords are columns of the requests; ``canvas`` is (width, height) of every slot. The output is uint8, on the backend's device."""
    requests = new_requests(len(sources))
    requests["exact"] = 1
    requests["out_w"], requests["out_h"] = canvas
    for name, values in request.items():
        requests[name] = values
    pixels = pixels or PixelFormat(fill=7)
    channels = {"gray": 1, "stored": 2}.get(pixels.color, 3)
    output = torch.zeros(
        (len(sources), canvas[1], canvas[0], channels), dtype=torch.uint8, device=backend.device
    )
    return backend.collect(backend.submit(DecodeBatch(sources, requests, output, pixels)))


def decode(backend: DecodeBackend, images: Sequence[JpegFile]) -> Decoded:
    """Whole and unchanged, each in the corner of a slot as large as the largest."""
    sizes = [(each.width, each.height) for each in images]
    canvas = (max(w for w, _ in sizes), max(h for _, h in sizes))
    data = [each.data for each in images]
    result = run(backend, data, canvas, out_w=[w for w, _ in sizes], out_h=[h for _, h in sizes])
    levels = levels_of(result)
    found = [
        None if slot in result.reasons else levels[slot, :h, :w]
        for slot, (w, h) in enumerate(sizes)
    ]
    return Decoded(found, dict(result.reasons), _served(data))


def levels_of(result: DecodeResult) -> Levels:
    """The output as signed numbers, on the host."""
    return torch.as_tensor(result.output).cpu().numpy().astype(np.int16)


def raw_request(pixels: Levels) -> dict[str, Any]:
    """The columns of a request for raw pixels (h, w, 3)."""
    height, width, channels = pixels.shape
    return {
        "codec": Codec.RAW,
        "raw_w": width,
        "raw_h": height,
        "raw_channels": channels,
        "raw_bits": 8,
    }


def _served(data: Sequence[bytes]) -> int:
    """How many streams a GPU decoder gets to see."""
    requests = new_requests(len(data))
    requests["out_w"] = requests["out_h"] = 1
    cutter = StreamCutter(threads=1)
    try:
        return len(
            cutter.cut(DecodeBatch(data, requests, np.zeros((len(data), 1, 1, 3), np.uint8))).rows
        )
    finally:
        cutter.close()
