"""Decodes batches of the self-test images with a backend."""

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

PixelArray = NDArray[np.int16]  # pixel values with a sign, for differences


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded batch: the pixels (h, w, 3) of each image, or None and a reason."""

    images: list[PixelArray | None]
    reasons: dict[int, str]
    n_here: int  # images that the GPU library decodes itself; the CPU decodes the others


def open_backend(
    name: str, device: str, *, hardware: bool = False, threads: int = 2
) -> DecodeBackend:
    return find_backend(name).make(threads=threads, device=device, hardware=hardware)


def cpu_backend() -> DecodeBackend:
    """The backend that the others are compared with."""
    return default_cpu_backend().make(threads=1)


def run(
    backend: DecodeBackend,
    sources: Sequence[bytes],
    canvas: tuple[int, int],
    *,
    pixels: PixelFormat | None = None,
    **request: Any,
) -> DecodeResult:
    """Decodes ``sources`` to a uint8 tensor on the device of the backend.

    ``canvas`` is the (width, height) of every slot. Keywords are columns of the requests.
    """
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
    """Decodes whole images at their own size, each in the corner of a slot of the largest size."""
    sizes = [(each.width, each.height) for each in images]
    canvas = (max(w for w, _ in sizes), max(h for _, h in sizes))
    data = [each.data for each in images]
    result = run(backend, data, canvas, out_w=[w for w, _ in sizes], out_h=[h for _, h in sizes])
    values = pixel_values(result)
    found = [
        None if slot in result.reasons else values[slot, :h, :w]
        for slot, (w, h) in enumerate(sizes)
    ]
    return Decoded(found, dict(result.reasons), _served(data))


def pixel_values(result: DecodeResult) -> PixelArray:
    """The output in host memory, as signed integers."""
    return torch.as_tensor(result.output).cpu().numpy().astype(np.int16)


def raw_request(pixels: PixelArray) -> dict[str, Any]:
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
    """How many of the streams are passed to the GPU decoder."""
    requests = new_requests(len(data))
    requests["out_w"] = requests["out_h"] = 1
    cutter = StreamCutter(threads=1)
    try:
        return len(
            cutter.cut(DecodeBatch(data, requests, np.zeros((len(data), 1, 1, 3), np.uint8))).rows
        )
    finally:
        cutter.close()
