"""What a GPU decoder is fed: of each sample a small whole JPEG and the box in it that is wanted, checked on the CPU before.

Nothing that a GPU library may fall over gets through: the record's checksum, the header's limits and the request itself are checked
here (nvJPEG before CUDA 13 can crash on a malformed stream, and no GPU decoder notices damaged bytes: of 180 damaged JPEGs, 179 gave
wrong pixels and no error). Rows that are not served this way are left to the CPU, see `rest`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from fastload._common.native import core
from fastload._decode.backend import Codec, DecodeBatch, Filter, check_batch
from fastload._store.jpeg_header import JpegHeader, check_limits, read_header
from fastload._store.record import is_intact
from fastload.errors import BadImage, ConfigError

if TYPE_CHECKING:
    from types import ModuleType

Rows = NDArray[np.intp]
Found = tuple[memoryview, tuple[int, int, int, int], tuple[int, int]]  # JPEG, box, size

_CHUNK = 16  # rows a thread takes at a time


@dataclass(frozen=True, slots=True)
class Streams:
    """The rows that a GPU decoder serves, in order, and the others. ``data`` are views into the sources, or bytes of their own."""

    rows: Rows  # slots; streams, boxes and sizes are theirs
    data: list[memoryview]  # a complete baseline JPEG each
    boxes: NDArray[np.int32]  # (k, 4): x, y, w, h of what is wanted, in that JPEG
    sizes: NDArray[np.int32]  # (k, 2): width and height of that JPEG
    rest: Rows  # slots left to the CPU
    took_ns: int


class StreamCutter:
    """Cuts the streams of batches, in up to ``threads`` threads; the native functions it calls work without the GIL."""

    def __init__(self, *, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "fastload-cut") if threads > 1 else None

    def cut(self, batch: DecodeBatch) -> Streams:
        """Raises ConfigError where the batch cannot be right for any sample."""
        started = time.perf_counter_ns()
        check_batch(batch)
        channels = _channels(batch)
        candidates = np.flatnonzero(_plain(batch)) if channels else np.empty(0, np.intp)
        chunks = [candidates[i : i + _CHUNK] for i in range(0, len(candidates), _CHUNK)]
        mapped: Callable[..., object] = (
            map if self._pool is None or len(chunks) < 2 else self._pool.map
        )
        intact = _Intact()
        parts = mapped(lambda rows: [_stream(batch, row, intact) for row in rows], chunks)
        found = [each for part in cast("list[list[Found | None]]", parts) for each in part]
        good = np.array([each is not None for each in found], np.bool_)
        served = [each for each in found if each is not None]
        rest = np.setdiff1d(np.arange(len(batch.requests)), candidates[good])
        return Streams(
            candidates[good],
            [data for data, _, _ in served],
            np.array([box for _, box, _ in served], np.int32).reshape(-1, 4),
            np.array([size for _, _, size in served], np.int32).reshape(-1, 2),
            rest,
            time.perf_counter_ns() - started,
        )

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


class _Intact:
    """Compares each record's checksum once, also where six cameras share it. Two threads may both do it: nothing is lost by that."""

    def __init__(self) -> None:
        self._known = dict[int, bool]()

    def __call__(self, number: int, source: memoryview) -> bool:
        if number not in self._known:
            self._known[number] = is_intact(source)
        return self._known[number]


def _channels(batch: DecodeBatch) -> int:
    """Of the output; 0 for ``stored``, which is for masks: the CPU picks their pixels faster than a bus can carry them."""
    channels = int(batch.output.shape[1 if batch.pixels.layout == "nchw" else 3])
    if batch.pixels.color == "stored":
        return 0
    wanted = 1 if batch.pixels.color == "gray" else 3
    if channels != wanted:
        raise ConfigError(
            f"output: expected {wanted} channels for {batch.pixels.color!r}, found {channels}"
        )
    return channels


def _plain(batch: DecodeBatch) -> NDArray[np.bool_]:
    """Requests for JPEGs that are upright, with an output that fits; the CPU says what is wrong with the others."""
    asked = batch.requests
    height, width = (
        batch.output.shape[2:] if batch.pixels.layout == "nchw" else batch.output.shape[1:3]
    )
    wide = {
        name: asked[name].astype(np.int64)
        for name in ("x", "y", "w", "h", "out_w", "out_h", "pad_left", "pad_top")
    }
    whole = (wide["x"] == 0) & (wide["y"] == 0) & (wide["w"] == 0) & (wide["h"] == 0)
    plain: NDArray[np.bool_] = (
        (asked["codec"] == Codec.JPEG)
        & (asked["orientation"] == 1)
        & (asked["filter"] <= max(Filter))
        & (asked["source"] < len(batch.sources))
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
    return plain


def _stream(batch: DecodeBatch, row: int, intact: _Intact) -> Found | None:
    """One sample's stream, box and size; None where the CPU is to look at it."""
    asked = batch.requests[row]
    number = int(asked["source"])
    offset = int(asked["offset"])
    size = int(asked["size"])
    source = memoryview(cast("memoryview", batch.sources[number])).cast("B")
    if asked["check"] and not intact(number, source):
        return None
    jpeg = source[offset : offset + size if size else None]
    try:
        header = read_header(jpeg)
        check_limits(header, len(jpeg))
    except BadImage:
        return None
    x, y, w, h = (int(asked[name]) for name in ("x", "y", "w", "h"))
    if not (w or h):
        w, h = header.width, header.height
    if (
        len(jpeg) < size
        or x + w > header.width
        or y + h > header.height
        or not _usual(header)
        or header.end_offset != len(jpeg)
    ):
        return None
    module = core()
    start = int(asked["index_offset"])
    count = int(asked["index_count"])
    index = source[start : start + 4 * count]
    if len(index) < 4 * count:
        return None
    whole = jpeg, (x, y, w, h), (header.width, header.height)
    return (
        whole
        if module is None or not count or (w, h) == whole[2]
        else _cut(module, index, int(asked["interval"]), whole)
    )


def _cut(module: ModuleType, index: memoryview, interval: int, whole: Found) -> Found:
    """The stream cut to the box; ``cut`` gives the whole where index and stream do not agree."""
    jpeg, (x, y, w, h), _ = whole
    part = module.cut(jpeg, index, interval, x, y, w, h)
    if len(part.jpeg) == len(jpeg):
        return whole
    return memoryview(part.jpeg), (x - part.x0, y - part.y0, w, h), _frame_size(part.jpeg)


def _frame_size(jpeg: bytes) -> tuple[int, int]:
    """(width, height) of a baseline JPEG whose markers are known to be in order: those of the whole were read before the cut."""
    position = 2
    while jpeg[position + 1] != 0xC0:
        position += 2 + int.from_bytes(jpeg[position + 2 : position + 4], "big")
    return int.from_bytes(jpeg[position + 7 : position + 9], "big"), int.from_bytes(
        jpeg[position + 5 : position + 7], "big"
    )


def _usual(header: JpegHeader) -> bool:
    """What every decoder reads, in the same way: baseline, one scan, gray or surely YCbCr, an end marker (and, above, nothing behind it).

    Without JFIF or Adobe marker libjpeg looks at the component numbers to tell RGB from YCbCr; others do not.
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
