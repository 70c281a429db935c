"""The decode backend in plain Python: simplejpeg and torch. The oracle in tests, and what serves without the native core."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg
import torch

from fastload.decode.backend import STAGES, Codec, DecodeBatch, DecodeResult, Filter, PixelFormat, Status, check_batch
from fastload.decode.cpus import available_cpus
from fastload.decode.header import check_limits, read_header
from fastload.errors import BadImage, ConfigError

if TYPE_CHECKING:
    from fastload.decode.backend import Source

Outcome = tuple[Status, str, tuple[int, ...]]       # status, why, nanoseconds per stage


@dataclass(frozen=True, slots=True)
class ReferenceTicket:
    """A batch under way."""

    batch: DecodeBatch
    outcomes: Sequence[Future[Outcome]]


class ReferenceBackend:
    """Every sample decoded whole, then cropped, turned, resized and flipped, each step in its plainest form."""

    name = "reference"

    def __init__(self, *, threads: int | None = None) -> None:
        self._threads = ThreadPoolExecutor(threads or available_cpus(), "fastload-reference")

    def submit(self, batch: DecodeBatch) -> ReferenceTicket:
        """Queues a batch."""
        check_batch(batch)
        output = torch.as_tensor(batch.output)
        slots = output if batch.pixels.layout == "nchw" else output.permute(0, 3, 1, 2)
        _check_channels(batch.pixels, slots.shape[1])
        return ReferenceTicket(batch, [self._threads.submit(_load, batch, row, slots[row]) for row in range(len(batch.requests))])

    def collect(self, ticket: ReferenceTicket) -> DecodeResult:
        """Waits for a batch."""
        outcomes = [future.result() for future in ticket.outcomes]
        return DecodeResult(np.array([status for status, _, _ in outcomes], np.uint8),
                            np.array([times for _, _, times in outcomes], np.uint32).reshape(-1, len(STAGES)),
                            {slot: why for slot, (status, why, _) in enumerate(outcomes) if status}, ticket.batch.output)

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)


def _load(batch: DecodeBatch, row: int, slot: torch.Tensor) -> Outcome:
    """One sample into its slot (C, H, W)."""
    request, pixels = batch.requests[row], batch.pixels
    x, y, w, h, out_w, out_h = (int(request[name]) for name in ("x", "y", "w", "h", "out_w", "out_h"))
    left, top, begin = int(request["pad_left"]), int(request["pad_top"]), time.perf_counter_ns()
    channels, canvas_h, canvas_w = slot.shape
    canvas = torch.tensor(pixels.fill_levels(channels), dtype=torch.uint8)[:, None, None].expand(slot.shape).contiguous()
    status, why, decoded = Status.OK, "", begin
    try:
        image = _decode(request, batch.sources[int(request["source"])], pixels.colour, channels)
        image = _upright(image, int(request["orientation"]))
        decoded = time.perf_counter_ns()
        if (x, y, w, h) == (0, 0, 0, 0):
            _, h, w = image.shape
        if min(x, y, left, top) < 0 or min(w, h, out_w, out_h) < 1 or x + w > image.shape[2] or y + h > image.shape[1] \
                or left + out_w > canvas_w or top + out_h > canvas_h:
            raise ConfigError(f"ROI {w}x{h} at {x},{y} -> {out_w}x{out_h} at {left},{top} does not fit the image or the output")
        image = _resized(image[:, y:y + h, x:x + w], out_h, out_w, Filter(int(request["filter"])))
        canvas[:, top:top + out_h, left:left + out_w] = image.flip(2) if request["flip"] else image
    except BadImage as error:
        status, why = Status.BAD_IMAGE, error.why
    except (ConfigError, IndexError) as error:
        status, why = Status.BAD_REQUEST, str(error)
    if slot.dtype == torch.uint8:
        slot.copy_(canvas)
    else:
        mean, std = (torch.tensor(values)[:, None, None] for values in (pixels.mean_levels(channels), pixels.std_levels(channels)))
        slot.copy_((canvas.float() - mean) / std)
    return status, why, (0, 0, decoded - begin, time.perf_counter_ns() - decoded, 0)


def _decode(request: np.void, source: Source, colour: str, channels: int) -> torch.Tensor:
    """The whole image as stored, (C, H, W)."""
    part = memoryview(source).cast("B")[int(request["offset"]):int(request["offset"]) + int(request["size"])]
    if request["codec"] == Codec.RAW:
        shape = (int(request["raw_h"]), int(request["raw_w"]), int(request["raw_channels"]) * int(request["raw_bits"]) // 8)
        if len(part) != np.prod(shape):
            raise BadImage(f"raw image: {len(part)} bytes, expected {np.prod(shape)}")
        image = np.frombuffer(part, np.uint8).reshape(shape)
        if colour == "gray" and shape[2] == 3:
            image = ((image @ np.array([19595, 38470, 7471]) + 32768) >> 16).astype(np.uint8)[:, :, None]
        image = image[:, :, ::-1] if colour == "bgr" else image
    else:
        header = read_header(part)
        check_limits(header, len(part))
        gray = header.components == 1 or channels == 1
        try:
            image = simplejpeg.decode_jpeg(part, "GRAY" if gray else "BGR" if colour == "bgr" else "RGB")
        except ValueError as error:
            raise BadImage(str(error)) from None
    if image.shape[2] not in (1, channels):
        raise ConfigError(f"an image of {image.shape[2]} channels does not fit an output of {channels}")
    return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1).expand(channels, -1, -1)


def _upright(image: torch.Tensor, orientation: int) -> torch.Tensor:
    """EXIF orientation applied to (C, H, W)."""
    if not 1 <= orientation <= 8:
        raise ConfigError(f"orientation {orientation}: expected 1 to 8")
    turned = image.transpose(1, 2) if orientation >= 5 else image
    return turned.flip([axis for axis, those in ((2, (2, 3, 6, 7)), (1, (3, 4, 7, 8))) if orientation in those])


def _resized(image: torch.Tensor, height: int, width: int, how: Filter) -> torch.Tensor:
    if how == Filter.NEAREST:
        rows, columns = ((2 * torch.arange(n) + 1) * size // (2 * n) for n, size in ((height, image.shape[1]), (width, image.shape[2])))
        return image[:, rows][:, :, columns]
    if image.shape[1:] == (height, width):
        return image
    pixels = image.contiguous(memory_format=torch.contiguous_format)[None]
    return torch.nn.functional.interpolate(pixels, (height, width), mode="bilinear", antialias=how == Filter.ANTIALIAS, align_corners=False)[0]


def _check_channels(pixels: PixelFormat, channels: int) -> None:
    wanted = {"rgb": 3, "bgr": 3, "gray": 1, "stored": channels}[pixels.colour]
    if channels != wanted:
        raise ConfigError(f"output: expected {wanted} channels for {pixels.colour!r}, found {channels}")
