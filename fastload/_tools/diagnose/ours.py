"""What fastload's decoder needs for the user's own JPEGs, as `fastload pack` would store them; measured, on one thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastload._common.native import core
from fastload._decode.backend import DecodeBatch, new_requests
from fastload._decode.registry import AUTO
from fastload._load.decoder import Decoder
from fastload._pack.files import is_image_name
from fastload._store.jpeg_header import read_header
from fastload.errors import BadImage, FastloadError

_MOST = 24  # images
_RUNS = 2  # the faster one counts: the first also touches fresh memory
_LARGEST = 64 << 20  # bytes of a file that is read for this


@dataclass(frozen=True, slots=True)
class OurDecode:
    """Seconds of one thread for one image, decoded whole and resized to the size the batches have."""

    seconds: float
    images: int
    backend: str


def jpegs_of(paths: Sequence[str], encoded: Sequence[bytes]) -> tuple[list[bytes], int]:
    """The JPEGs among the files and bytes that the dataset was seen to use, and how many other images stand among them."""
    found = [each for each in encoded if each[:3] == b"\xff\xd8\xff"]
    others = len(encoded) - len(found)
    for path in dict.fromkeys(paths):
        if len(found) >= _MOST:
            break
        try:
            if Path(path).is_file() and Path(path).stat().st_size <= _LARGEST:
                content = Path(path).read_bytes()
                is_jpeg = content[:3] == b"\xff\xd8\xff"
                found += [content] if is_jpeg else []
                others += not is_jpeg and is_image_name(path)
        except OSError:  # gone since, or not ours to read
            continue
    return found[:_MOST], others


def our_decode(jpegs: Sequence[bytes], size: tuple[int, int] | None) -> OurDecode | None:
    """None where there is nothing to decode, or nothing that can be."""
    seconds: list[float] = []
    backend = Decoder(AUTO, threads=1, budget=1)
    try:
        for each in jpegs:
            try:
                seconds.append(_one(backend, each, size))
            except FastloadError:  # not every JPEG can be read; pack would name it
                continue
    finally:
        backend.close()
    return (
        OurDecode(float(np.mean(seconds)), len(seconds), backend.choice.name) if seconds else None
    )


def _one(backend: Decoder, jpeg: bytes, size: tuple[int, int] | None) -> float:
    module = core()
    if module is not None:
        try:
            jpeg = module.rewrite(jpeg).jpeg
        except ValueError as error:  # BadJpeg
            raise BadImage(str(error)) from None
    header = read_header(jpeg)
    height, width = size or (header.height, header.width)
    requests = new_requests(1)
    requests["out_w"], requests["out_h"] = width, height
    output = np.empty((1, height, width, 3), np.uint8)
    best = float("inf")
    for _ in range(_RUNS):
        result = backend.collect(backend.submit(DecodeBatch([jpeg], requests, output)))
        result.raise_first()
        best = min(best, float(result.times_ns.sum()) / 1e9)
    return best
