"""Prepares the input of a GPU decoder: for each sample a small complete JPEG and a crop box in it.

The CPU verifies the checksum of each record, the limits of the JPEG header and the request before a
GPU library gets the data. nvJPEG before CUDA 13 can crash on a malformed stream, and no GPU decoder
detects damaged bytes: 179 of 180 damaged JPEGs produced wrong pixels without an error. Rows that do
not pass are decoded by the CPU (``Streams.fallback``).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from fastload._common.native import core
from fastload._decode.backend import Codec, DecodeBatch, Filter, check_batch, check_channels
from fastload._store.jpeg_header import JpegHeader, check_limits, read_header
from fastload._store.record import is_intact
from fastload.errors import BadImage

if TYPE_CHECKING:
    from types import ModuleType

Rows = NDArray[np.intp]
Found = tuple[memoryview, tuple[int, int, int, int], tuple[int, int]]  # JPEG, box, size

_CHUNK = 16  # rows per task of a thread


@dataclass(frozen=True, slots=True)
class Streams:
    """The JPEG streams for a GPU decoder, and the rows that it cannot decode."""

    rows: Rows  # slots of the k streams, ascending
    data: list[memoryview]  # k complete baseline JPEGs, views of the sources or new bytes
    boxes: NDArray[np.int32]  # (k, 4): x, y, w, h of the crop in its JPEG
    sizes: NDArray[np.int32]  # (k, 2): width and height of the JPEG
    fallback: Rows  # slots that the CPU must decode
    elapsed_ns: int


class StreamCutter:
    """Cuts the streams of batches in up to ``threads`` threads.

    The native functions that it calls release the GIL.
    """

    def __init__(self, *, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "fastload-cut") if threads > 1 else None

    def cut(self, batch: DecodeBatch) -> Streams:
        """Prepares a batch. Raises ConfigError if the batch as a whole is invalid."""
        started = time.perf_counter_ns()
        check_batch(batch)
        check_channels(batch)
        # Masks ("stored") stay on the CPU: it picks their pixels faster than a bus transfers them.
        # So do 16-bit batches: their images are raw pixels, and a JPEG among them is rare.
        on_cpu = batch.pixels.color == "stored" or batch.pixels.bits == 16
        candidates = np.empty(0, np.intp) if on_cpu else np.flatnonzero(_supported(batch))
        chunks = [candidates[i : i + _CHUNK] for i in range(0, len(candidates), _CHUNK)]
        mapped: Callable[..., object] = (
            map if self._pool is None or len(chunks) < 2 else self._pool.map
        )
        # Records that several rows share (six cameras) are verified once. Two threads may verify
        # the same record, which is harmless.
        intact = functools.cache(lambda number: is_intact(batch.source_bytes(number)))
        parts = mapped(lambda rows: [_stream(batch, row, intact) for row in rows], chunks)
        found = [each for part in cast("list[list[Found | None]]", parts) for each in part]
        good = np.array([each is not None for each in found], np.bool_)
        served = [each for each in found if each is not None]
        return Streams(
            candidates[good],
            [data for data, _, _ in served],
            np.array([box for _, box, _ in served], np.int32).reshape(-1, 4),
            np.array([size for _, _, size in served], np.int32).reshape(-1, 2),
            np.setdiff1d(np.arange(len(batch.requests)), candidates[good]),
            time.perf_counter_ns() - started,
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _supported(batch: DecodeBatch) -> NDArray[np.bool_]:
    """Returns a flag per request: True for an upright JPEG whose result fits the output.

    The CPU reports what is wrong with an invalid request.
    """
    requests = batch.requests
    height, width = batch.size
    wide = {
        name: requests[name].astype(np.int64)
        for name in ("x", "y", "w", "h", "out_w", "out_h", "pad_left", "pad_top")
    }
    whole = (wide["x"] == 0) & (wide["y"] == 0) & (wide["w"] == 0) & (wide["h"] == 0)
    supported: NDArray[np.bool_] = (
        (requests["codec"] == Codec.JPEG)
        & (requests["orientation"] == 1)
        & (requests["filter"] <= max(Filter))
        & (requests["source"] < len(batch.sources))
        & (wide["x"] >= 0)
        & (wide["y"] >= 0)
        & (whole | ((wide["w"] > 0) & (wide["h"] > 0)))
        & (wide["out_w"] > 0)
        & (wide["out_h"] > 0)
        & (wide["pad_left"] >= 0)
        & (wide["pad_top"] >= 0)
        & (wide["pad_left"] + wide["out_w"] <= width)
        & (wide["pad_top"] + wide["out_h"] <= height)
    )
    return supported


def _stream(batch: DecodeBatch, row: int, intact: Callable[[int], bool]) -> Found | None:
    """Returns stream, box and size of one sample; None if the CPU must decode it."""
    request = batch.requests[row]
    number = int(request["source"])
    offset = int(request["offset"])
    size = int(request["size"])
    if request["check"] and not intact(number):
        return None
    source = batch.source_bytes(number)
    jpeg = source[offset : offset + size if size else None]
    try:
        header = read_header(jpeg)
        check_limits(header, len(jpeg))
    except BadImage:
        return None
    x, y, w, h = (int(request[name]) for name in ("x", "y", "w", "h"))
    if not (w or h):
        w, h = header.width, header.height
    if (
        len(jpeg) < size
        or x + w > header.width
        or y + h > header.height
        or not _unambiguous(header)
        or header.end_offset != len(jpeg)
    ):
        return None
    module = core()
    start = int(request["index_offset"])
    count = int(request["index_count"])
    index = source[start : start + 4 * count]
    if len(index) < 4 * count:
        return None
    whole = jpeg, (x, y, w, h), (header.width, header.height)
    return (
        whole
        if module is None or not count or (w, h) == whole[2]
        else _cut(module, index, int(request["interval"]), whole)
    )


def _cut(module: ModuleType, index: memoryview, interval: int, whole: Found) -> Found:
    """Cuts the stream to the box; keeps the whole stream if the index does not match it."""
    jpeg, (x, y, w, h), _ = whole
    part = module.cut(jpeg, index, interval, x, y, w, h)
    if len(part.jpeg) == len(jpeg):
        return whole
    return memoryview(part.jpeg), (x - part.x0, y - part.y0, w, h), _frame_size(part.jpeg)


def _frame_size(jpeg: bytes) -> tuple[int, int]:
    """Returns (width, height) of a baseline JPEG whose markers are known to be valid."""
    position = 2
    while jpeg[position + 1] != 0xC0:
        position += 2 + int.from_bytes(jpeg[position + 2 : position + 4], "big")
    height = int.from_bytes(jpeg[position + 5 : position + 7], "big")
    width = int.from_bytes(jpeg[position + 7 : position + 9], "big")
    return width, height


def _unambiguous(header: JpegHeader) -> bool:
    """Whether every decoder reads this JPEG in the same way.

    It is baseline, has one scan and an end marker, and is gray or certainly YCbCr. Without a JFIF
    or Adobe marker, libjpeg uses the component numbers to distinguish RGB from YCbCr, but other
    decoders do not.
    """
    colors = (
        header.components == 1
        or header.adobe_transform == 1
        or (header.jfif and header.adobe_transform != 0)
    )
    return (
        header.sof == 0xC0
        and header.n_scans == 1
        and header.complete
        and colors
        and "," not in header.subsampling
    )
