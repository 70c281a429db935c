"""The interface of decode backends.

A batch consists of a NumPy array of requests (``REQUEST``, one row of integers per sample), the
sources that they refer to, and memory for the result. Row *i* is decoded into slot *i*. This design
costs about one microsecond of Python per sample. All random decisions are made before a backend
gets the batch.

::

    ticket = backend.submit(DecodeBatch(sources, requests, output))  # returns immediately
    result = backend.collect(ticket)  # waits until the output is written
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fastload._common.cpus import available_cpus
from fastload._common.metrics import IMAGE_STAGES
from fastload.errors import BadImage, ConfigError

if TYPE_CHECKING:
    import torch

    Source = bytes | bytearray | memoryview | NDArray[np.uint8]
    Output = torch.Tensor | NDArray[np.generic]

Ticket = Any  # each backend has its own type

STAGES = IMAGE_STAGES
COLORS = ("rgb", "bgr", "gray", "stored")

# The request for one sample. Offsets and sizes are bytes of its source, all other lengths are
# pixels. A test compares this layout with native/pool/decode_request.h.
REQUEST = np.dtype(
    [
        ("offset", "<u8"),
        ("size", "<u8"),  # of the encoded image; 0 means up to the end of the source
        ("index_offset", "<u8"),  # of the restart segment index, in the same source
        ("index_count", "<u4"),  # number of entries in the index; 0 if there is none
        ("interval", "<u4"),  # MCUs per restart segment
        ("source", "<u4"),  # number of the source; several rows may share one
        ("x", "<i4"),
        ("y", "<i4"),
        ("w", "<i4"),
        ("h", "<i4"),  # crop in the upright image; all 0 means the whole image
        ("out_w", "<i4"),
        ("out_h", "<i4"),  # size of the resized crop
        ("pad_left", "<i4"),
        ("pad_top", "<i4"),  # its position in the slot; the rest of the slot is filled
        ("raw_w", "<i4"),
        ("raw_h", "<i4"),  # stored size, for raw pixels only
        ("codec", "u1"),
        ("raw_channels", "u1"),
        ("raw_bits", "u1"),
        ("orientation", "u1"),  # EXIF 1..8, applied before the crop
        ("flip", "u1"),  # left to right, after resizing
        ("filter", "u1"),
        ("exact", "u1"),  # 1: decode at full scale, without DCT scaling
        ("check", "u1"),  # 1: the source is a complete record; verify its CRC first
    ],
    align=True,
)


class Codec(enum.IntEnum):
    """Encoding of a stored image."""

    JPEG = 0
    # H*W*C, row-major, interleaved, little-endian. Images have 8 or 16 bits. Masks (the color
    # "stored") also have 32; above 8 bits they require Filter.NEAREST, and each byte counts as a
    # channel.
    RAW = 1


class Filter(enum.IntEnum):
    """Resize filter."""

    ANTIALIAS = 0  # BILINEAR of Pillow, antialias=True of torch
    BILINEAR = 1  # INTER_LINEAR of OpenCV
    NEAREST = 2  # floor((i + 0.5) * scale); for masks


class Status(enum.IntEnum):
    """Result of one sample. If it is not OK, the slot contains the fill color."""

    OK = 0
    BAD_IMAGE = 1  # cannot be decoded, or exceeds the limits
    BAD_REQUEST = 2  # for example, the crop exceeds the image
    CORRUPT = 3  # the CRC of the record does not match
    CANCELLED = 4
    NO_MEMORY = 5


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """Layout, color order and normalization of an output; its shape and dtype define the rest.

    A floating-point value is ``(pixel - mean) / std``. ``white`` is the value of a white pixel in
    the units of ``mean`` and ``std``: 1.0 as in torchvision, or 255.0 or 65535.0. The color
    ``stored`` keeps the stored channels, for masks. If the output has more channels than the bytes
    of a raw number, the upper bytes are zero.

    ``bits`` is the depth of the batch: 16 for uint16, 8 for uint8, either for floating point. Each
    image is resized in its own depth. Then 8-bit values are multiplied by 257 in a 16-bit batch,
    and 16-bit values lose their lower 8 bits in an 8-bit batch.
    """

    layout: Literal["nhwc", "nchw"] = "nhwc"
    color: Literal["rgb", "bgr", "gray", "stored"] = "rgb"
    # Pixel value of padding and of failed samples, 0 to 255 or 65535, before normalization.
    fill: int | tuple[int, ...] = 0
    mean: tuple[float, ...] | None = None  # in the channel order of the output
    std: tuple[float, ...] | None = None
    white: float = 1.0
    bits: int = 8

    def __post_init__(self) -> None:
        if self.layout not in ("nhwc", "nchw"):
            raise ConfigError(f"layout={self.layout!r}: expected 'nhwc' or 'nchw'")
        if self.color not in COLORS:
            raise ConfigError(f"color={self.color!r}: expected one of {', '.join(COLORS)}")
        if not self.white > 0:
            raise ConfigError(f"white={self.white!r}: expected a number above 0, 1.0 or 255.0")
        if self.bits not in (8, 16):
            raise ConfigError(f"bits={self.bits!r}: expected 8 or 16")

    def fill_values(self, channels: int) -> tuple[int, ...]:
        """Returns the fill value of each channel."""
        return (self.fill,) * channels if isinstance(self.fill, int) else self.fill

    def mean_values(self, channels: int) -> tuple[float, ...]:
        """Returns the mean of each channel in units of pixel values, 0 to 255 or 65535."""
        return tuple(self._unit * value for value in self.mean or (0.0,) * channels)

    def std_values(self, channels: int) -> tuple[float, ...]:
        """Returns the standard deviation of each channel in the same units."""
        return tuple(self._unit * value for value in self.std or (1.0,) * channels)

    @property
    def _unit(self) -> float:
        return ((1 << self.bits) - 1) / self.white


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """A batch to decode.

    Sources and output must not change until the batch is collected or its ticket is dropped.
    """

    sources: Sequence[Source]  # records or files, as bytes-like objects
    requests: NDArray[np.void]  # REQUEST; at most as many rows as the output has slots
    # (N, H, W, C) or (N, C, H, W), any strides; uint8, uint16, float32, float16 or bfloat16
    output: Output
    pixels: PixelFormat = PixelFormat()

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the output."""
        shape = self.output.shape
        height, width = shape[2:] if self.pixels.layout == "nchw" else shape[1:3]
        return int(height), int(width)

    @property
    def channels(self) -> int:
        return int(self.output.shape[1 if self.pixels.layout == "nchw" else 3])

    def source_bytes(self, number: int) -> memoryview:
        """Returns a source as bytes; it may be an array of another dtype."""
        return memoryview(cast("memoryview", self.sources[number])).cast("B")


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """Status, times and errors of the samples of a batch."""

    status: NDArray[np.uint8]  # Status
    times_ns: NDArray[np.uint32]  # (n, len(STAGES))
    reasons: dict[int, str]  # slot → error, for each sample that is not OK
    output: Output

    @property
    def ok(self) -> bool:
        """Whether every sample was decoded."""
        return not self.reasons

    def raise_first(self) -> None:
        """Raises BadImage for the first sample that failed."""
        if self.reasons:
            slot = min(self.reasons)
            raise BadImage(
                f"{self.reasons[slot]} ({Status(int(self.status[slot])).name.lower()}, slot {slot})"
            )


class DecodeBackend(Protocol):
    """Decodes batches. The caller may submit more batches before it collects the first.

    A ticket belongs to the backend that returned it. The caller may drop a ticket.

    **Stream rule** for CUDA devices: ``submit`` and ``collect`` run in one thread (the feeder
    thread of the loader), inside ``transfer.stream()``, and the output was allocated there.
    When ``collect`` returns, the pixels are complete, or work queued on that stream completes them.
    A backend that writes on its own stream must make that stream wait for the feeder's stream
    before it writes, and make the feeder's stream wait for its own stream afterwards. The next
    reader of the pixels waits for an event recorded on the feeder's stream. Sources are valid only
    until ``collect`` returns.
    """

    name: ClassVar[str]
    adjustable_threads: ClassVar[bool]  # ``threads`` can be set at any time
    survives_fork: ClassVar[bool]  # a forked child can use the object; otherwise it creates its own
    checks_crc: ClassVar[bool]  # verifies records without the GIL; otherwise the reader must
    edge_error: ClassVar[int]  # largest difference to a CPU backend in the outermost pixels
    threads: int

    @classmethod
    def missing(cls, device: torch.device, *, hardware: bool = False) -> str:
        """Returns what is missing to run on ``device`` and how to install it; "" if nothing.

        ``hardware`` includes the requirements of the JPEG engine of the GPU.
        """

    @property
    def device(self) -> torch.device:
        """The device of the outputs."""

    def submit(self, batch: DecodeBatch) -> Ticket:
        """Starts a batch. Raises ConfigError if the batch as a whole is invalid."""

    def collect(self, ticket: Ticket) -> DecodeResult:
        """Waits for a batch. Reports samples that fail; never raises an error for them."""

    def done(self, ticket: Ticket) -> bool:
        """Whether ``collect`` would return immediately; False if unknown."""

    def unfinished(self, ticket: Ticket) -> list[int]:
        """Returns the slots that ``collect`` waits for; empty if unknown."""

    def close(self) -> None:
        """Stops the threads. Samples that have not started are CANCELLED."""


def new_requests(n: int) -> NDArray[np.void]:
    """Returns requests for n complete, upright JPEGs in sources 0 to n - 1."""
    requests = np.zeros(n, REQUEST)
    requests["orientation"] = 1
    requests["source"] = np.arange(n)
    return requests


def check_threads(threads: int | None) -> int:
    """Returns the number of decode threads. Raises ConfigError."""
    if threads is not None and not 1 <= threads <= 1024:
        raise ConfigError(
            f"threads={threads!r}: expected 1 to 1024, or None for one per available CPU"
        )
    return threads or available_cpus()


_INTEGER_BITS = {"uint8": 8, "torch.uint8": 8, "uint16": 16, "torch.uint16": 16}


def check_batch(batch: DecodeBatch) -> None:
    """Raises ConfigError for a batch that no backend supports."""
    dtype = batch.requests.dtype
    same_dtype = dtype is REQUEST or dtype == REQUEST  # == compares every member, which is slower
    if not same_dtype or batch.requests.ndim != 1:
        raise ConfigError(
            f"requests: expected a one-dimensional array of dtype REQUEST, "
            f"found shape {batch.requests.shape} and dtype {dtype!s:.40}"
        )
    shape = tuple(batch.output.shape)
    if len(shape) != 4 or shape[0] < len(batch.requests):
        raise ConfigError(
            f"output: expected at least {len(batch.requests)} slots and 4 dimensions "
            f"({batch.pixels.layout.upper()}), found shape {shape}"
        )
    bits = _INTEGER_BITS.get(str(batch.output.dtype), batch.pixels.bits)
    if bits != batch.pixels.bits:
        raise ConfigError(
            f"bits={batch.pixels.bits}: expected {bits}, because the output is {batch.output.dtype}"
        )


def check_channels(batch: DecodeBatch) -> None:
    """Raises ConfigError if the output has another number of channels than its color."""
    expected = {"rgb": 3, "bgr": 3, "gray": 1, "stored": batch.channels}[batch.pixels.color]
    if batch.channels != expected:
        raise ConfigError(
            f"output: expected {expected} channels for color={batch.pixels.color!r}, "
            f"found {batch.channels}"
        )
