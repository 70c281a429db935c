"""The reference backend in Python, with simplejpeg and torch.

Tests compare the other backends with it, and the loader uses it without the native core.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image

from fastload._common.threads import WorkerThreads
from fastload._decode.backend import (
    STAGES,
    Codec,
    DecodeBatch,
    DecodeResult,
    Filter,
    PixelFormat,
    Status,
    check_batch,
    check_channels,
    check_threads,
    new_requests,
)
from fastload._store.jpeg_header import check_limits, read_header
from fastload._store.record import is_intact
from fastload.errors import BadImage, ConfigError

_MAX_NS = 0xFFFFFFFF  # of uint32; a process that is stopped for a while exceeds it


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one sample."""

    status: Status
    reason: str = ""
    times_ns: tuple[int, ...] = (0,) * len(STAGES)


@dataclass(frozen=True, slots=True)
class ReferenceTicket:
    """A batch in flight."""

    batch: DecodeBatch
    outcomes: Sequence[Future[Outcome]]


class ReferenceBackend:
    """Decodes each complete image, then applies orientation, crop, resize and flip one by one."""

    name: ClassVar = "reference"
    adjustable_threads: ClassVar = False
    survives_fork: ClassVar = False
    checks_crc: ClassVar = False  # it can, but in Python and with the GIL
    edge_error: ClassVar = 1
    device = torch.device("cpu")

    @classmethod
    def missing(cls, device: torch.device, *, hardware: bool = False) -> str:
        del device, hardware
        return ""

    def __init__(self, *, threads: int | None = None) -> None:
        self.threads = check_threads(threads)
        _initialize_torch()
        self._pool = WorkerThreads(self.threads, "fastload-reference")

    def submit(self, batch: DecodeBatch) -> ReferenceTicket:
        check_batch(batch)
        check_channels(batch)
        output = torch.as_tensor(batch.output)
        slots = output if batch.pixels.layout == "nchw" else output.permute(0, 3, 1, 2)
        return ReferenceTicket(
            batch,
            [
                self._pool.submit(_load, batch, row, slots[row])
                for row in range(len(batch.requests))
            ],
        )

    def collect(self, ticket: ReferenceTicket) -> DecodeResult:
        outcomes = [_outcome_of(future) for future in ticket.outcomes]
        times_ns = np.array([each.times_ns for each in outcomes], np.int64)
        return DecodeResult(
            np.array([each.status for each in outcomes], np.uint8),
            np.minimum(times_ns, _MAX_NS).astype(np.uint32).reshape(-1, len(STAGES)),
            {slot: each.reason for slot, each in enumerate(outcomes) if each.status},
            ticket.batch.output,
        )

    def done(self, ticket: ReferenceTicket) -> bool:
        return all(future.done() for future in ticket.outcomes)

    def unfinished(self, ticket: ReferenceTicket) -> list[int]:
        return [slot for slot, future in enumerate(ticket.outcomes) if not future.done()]

    def close(self) -> None:
        self._pool.close()


@functools.cache
def _initialize_torch() -> None:
    """Decodes one image in the caller's thread, so that torch initializes its kernels there.

    torch initializes each kernel on its first call, inside a C++ guard. A fork while a worker
    thread is inside that guard leaves it locked in the child, which then waits forever.
    """
    requests = new_requests(len(Filter))
    requests["out_w"] = requests["out_h"] = 3
    requests["raw_w"] = requests["raw_h"] = 2
    requests["raw_channels"] = 3
    requests["source"] = 0
    requests["codec"] = Codec.RAW
    requests["filter"] = list(Filter)
    for dtype, bits in ((torch.uint8, 8), (torch.float32, 8), (torch.uint16, 16)):
        requests["raw_bits"] = bits
        output = torch.empty(len(Filter), 3, 3, 3, dtype=dtype)
        batch = DecodeBatch(
            [bytes(12 * bits // 8)], requests, output, PixelFormat(layout="nchw", bits=bits)
        )
        for row in range(len(Filter)):
            _load(batch, row, output[row])


def _outcome_of(future: Future[Outcome]) -> Outcome:
    try:
        return future.result()
    except CancelledError:
        return Outcome(Status.CANCELLED, "the backend was closed")


def _load(batch: DecodeBatch, row: int, slot: torch.Tensor) -> Outcome:
    """Decodes one sample into its slot (C, H, W)."""
    started = time.perf_counter_ns()
    decoded = started
    request = batch.requests[row]
    pixels = batch.pixels
    channels = slot.shape[0]
    # torch has few operations for uint16.
    dtype = torch.int32 if pixels.bits == 16 else torch.uint8
    fill = torch.tensor(pixels.fill_values(channels), dtype=dtype)
    canvas = fill[:, None, None].repeat(1, *slot.shape[1:])
    status = Status.OK
    reason = ""
    try:
        source = batch.source_bytes(int(request["source"]))
        if request["check"] and not is_intact(source):
            status = Status.CORRUPT
            reason = "not a record, or its checksum does not match"
        else:
            stored = _decoded(request, source, pixels.color, channels)
            image = _upright(stored, int(request["orientation"]))
            decoded = time.perf_counter_ns()
            _place(request, image, canvas)
    except BadImage as error:
        status = Status.BAD_IMAGE
        reason = error.why
    except (ConfigError, IndexError) as error:
        status = Status.BAD_REQUEST
        reason = str(error)
    if not slot.is_floating_point():
        slot.copy_(canvas)
    else:
        mean = torch.tensor(pixels.mean_values(channels))[:, None, None]
        std = torch.tensor(pixels.std_values(channels))[:, None, None]
        slot.copy_((canvas.float() - mean) / std)
    return Outcome(status, reason, (0, 0, decoded - started, time.perf_counter_ns() - decoded, 0))


def _decoded(request: np.void, source: memoryview, color: str, channels: int) -> torch.Tensor:
    """Decodes the complete image as stored, (C, H, W)."""
    offset = int(request["offset"])
    size = int(request["size"])
    part = source[offset : offset + size if size else None]
    if len(part) < size:
        raise ConfigError(
            f"image at offset {offset} with {size} bytes exceeds its source of {len(source)} bytes"
        )
    if request["codec"] == Codec.RAW:
        image = _raw(request, part, color, channels)
    else:
        header = read_header(part)
        check_limits(header, len(part))
        gray = header.components == 1 or (channels == 1 and color != "stored")
        try:
            image = simplejpeg.decode_jpeg(
                part, "GRAY" if gray else "BGR" if color == "bgr" else "RGB"
            )
        except ValueError as error:
            raise BadImage(str(error)) from None
    if image.shape[2] != channels and (image.shape[2] != 1 or color == "stored"):
        raise ConfigError(f"image has {image.shape[2]} channels, but the output has {channels}")
    dtype = np.int32 if image.dtype == np.uint16 else np.uint8
    return (
        torch.from_numpy(np.array(image, dtype, order="C"))
        .permute(2, 0, 1)
        .expand(channels, -1, -1)
    )


def _raw(request: np.void, part: memoryview, color: str, channels: int) -> NDArray[Any]:
    """Returns raw pixels; masks as bytes, where missing upper bytes of a number become zero."""
    height, width, n, bits = (
        int(request[name]) for name in ("raw_h", "raw_w", "raw_channels", "raw_bits")
    )
    n_bytes = n * bits // 8
    if min(height, width, n_bytes) < 1 or len(part) != height * width * n_bytes:
        raise BadImage(
            f"raw image of {width}x{height} pixels: expected {height * width * n_bytes} bytes, "
            f"found {len(part)}"
        )
    if color == "stored":
        if bits != 8 and request["filter"] != Filter.NEAREST:
            raise ConfigError(f"mask of {bits} bits per value: expected filter 'nearest'")
        mask = np.frombuffer(part, np.uint8).reshape(height, width, n_bytes)
        missing = channels - n_bytes if n == 1 else 0
        return np.pad(mask, ((0, 0), (0, 0), (0, missing))) if missing > 0 else mask
    if bits not in (8, 16):
        raise ConfigError(f"raw image of {bits} bits per value: expected 8 or 16")
    image = np.frombuffer(part, f"<u{bits // 8}").reshape(height, width, n)
    if color == "gray" and n == 3:
        gray: NDArray[np.int64] = (image @ np.array([19595, 38470, 7471]) + 32768) >> 16
        return gray.astype(image.dtype)[:, :, None]
    return image[:, :, ::-1] if color == "bgr" else image


def _upright(image: torch.Tensor, orientation: int) -> torch.Tensor:
    """Applies the EXIF orientation to (C, H, W) pixels."""
    if not 1 <= orientation <= 8:
        raise ConfigError(f"orientation={orientation}: expected 1 to 8")
    rotated = image.transpose(1, 2) if orientation >= 5 else image
    flipped_by = {2: (2, 3, 6, 7), 1: (3, 4, 7, 8)}  # axis → orientations
    return rotated.flip([axis for axis, numbers in flipped_by.items() if orientation in numbers])


def _place(request: np.void, image: torch.Tensor, canvas: torch.Tensor) -> None:
    """Crops, resizes and flips the image, and writes it to its position on the canvas."""
    x, y, w, h, out_w, out_h = (
        int(request[name]) for name in ("x", "y", "w", "h", "out_w", "out_h")
    )
    left = int(request["pad_left"])
    top = int(request["pad_top"])
    if (x, y, w, h) == (0, 0, 0, 0):
        _, h, w = image.shape
    fits = (
        x + w <= image.shape[2]
        and y + h <= image.shape[1]
        and left + out_w <= canvas.shape[2]
        and top + out_h <= canvas.shape[1]
    )
    if not fits or min(x, y, left, top) < 0 or min(w, h, out_w, out_h) < 1:
        raise ConfigError(
            f"crop {w}x{h} at {x},{y} -> {out_w}x{out_h} at {left},{top}: expected a crop inside "
            f"the image of {image.shape[2]}x{image.shape[1]} pixels and a result inside the output "
            f"of {canvas.shape[2]}x{canvas.shape[1]}"
        )
    image = _resized(image[:, y : y + h, x : x + w], out_h, out_w, int(request["filter"]))
    if image.dtype != canvas.dtype:  # 8 bits in a 16-bit batch, or 16 bits in an 8-bit batch
        image = image.int() * 257 if image.dtype == torch.uint8 else image >> 8
    canvas[:, top : top + out_h, left : left + out_w] = image.flip(2) if request["flip"] else image


def _resized(image: torch.Tensor, height: int, width: int, how: int) -> torch.Tensor:
    if how == Filter.NEAREST:
        rows = (2 * torch.arange(height) + 1) * image.shape[1] // (2 * height)
        columns = (2 * torch.arange(width) + 1) * image.shape[2] // (2 * width)
        return image[:, rows][:, :, columns]
    if how == Filter.BILINEAR:
        across = _blended(image.float() if image.dtype == torch.uint8 else image.double(), width, 2)
        return _blended(across, height, 1).round().to(image.dtype)
    if how != Filter.ANTIALIAS:
        raise ConfigError(f"filter={how}: expected 0, 1 or 2")
    # torch 2.13 fails or returns wrong pixels if a side is 1.
    if 1 in (height, width, *image.shape[1:]):
        planes = [
            Image.fromarray(plane.numpy()).resize((width, height), Image.Resampling.BILINEAR)
            for plane in image.contiguous()
        ]
        return torch.from_numpy(np.stack([np.asarray(plane) for plane in planes]))
    narrow = image.dtype == torch.uint8
    resized = torch.nn.functional.interpolate(
        (image if narrow else image.float()).contiguous()[None],
        (height, width),
        mode="bilinear",
        antialias=True,
    )[0]
    return resized if narrow else resized.round().to(image.dtype)


def _blended(image: torch.Tensor, n: int, axis: int) -> torch.Tensor:
    """Interpolates linearly between neighbors along one axis."""
    size = image.shape[axis]
    place = ((torch.arange(n, dtype=image.dtype) + 0.5) * (size / n) - 0.5).clamp(0, size - 1)
    low = place.floor().long()
    shape = [-1 if i == axis else 1 for i in range(3)]
    return torch.lerp(
        image.index_select(axis, low),
        image.index_select(axis, (low + 1).clamp(max=size - 1)),
        (place - low).view(shape),
    )
