"""What every decode backend is asked, and what it answers.

A batch is one numpy array of requests (``REQUEST``, a row per sample, whole numbers only), the sources they point into, and
memory for the result; row *i* is written to slot *i*. That way Python costs about a microsecond per sample, and every
random decision has been made before a backend sees it.

::

    ticket = backend.submit(DecodeBatch(sources, requests, output))      # returns at once
    result = backend.collect(ticket)                                     # waits; output is written, status says how it went
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fastload._common.cpus import available_cpus
from fastload._common.metrics import IMAGE_STAGES
from fastload.errors import BadImage, ConfigError

if TYPE_CHECKING:
    import torch

    Source = bytes | bytearray | memoryview | NDArray[np.uint8]
    Output = torch.Tensor | NDArray[np.generic]

Ticket = Any  # the backend's own

STAGES = IMAGE_STAGES
COLORS = ("rgb", "bgr", "gray", "stored")
MAX_CHANNELS = 8

# One sample. Offsets are bytes in its source; x, y, w, h and the rest pixels. Kept equal to native/pool/decode_request.h by a test.
REQUEST = np.dtype(
    [
        ("offset", "<u8"),
        ("size", "<u8"),  # the encoded image; size 0: up to the end of the source
        ("index_offset", "<u8"),
        ("index_count", "<u4"),  # its restart-segment index in the same source; count 0 = none
        ("interval", "<u4"),  # MCUs per restart segment
        ("source", "<u4"),  # which of the batch's sources; several rows may share one
        ("x", "<i4"),
        ("y", "<i4"),
        ("w", "<i4"),
        ("h", "<i4"),  # ROI in the upright image; all 0 = the whole image
        ("out_w", "<i4"),
        ("out_h", "<i4"),  # what the ROI becomes
        ("pad_left", "<i4"),
        ("pad_top", "<i4"),  # where that goes in the output; the rest of the slot is filled
        ("raw_w", "<i4"),
        ("raw_h", "<i4"),  # raw pixels: size as stored
        ("codec", "u1"),
        ("raw_channels", "u1"),
        ("raw_bits", "u1"),
        ("orientation", "u1"),  # EXIF 1..8, still to be applied; x, y, w, h are those after it
        ("flip", "u1"),  # left-right, after resizing
        ("filter", "u1"),
        ("exact", "u1"),  # 1: always decode at full scale, then resize
        ("check", "u1"),  # 1: the source is one whole record; check its CRC first
    ],
    align=True,
)


class Codec(enum.IntEnum):
    """How the image is stored."""

    JPEG = 0
    RAW = 1  # H*W*C, row major, interleaved; 16 and 32 bits only with Filter.NEAREST, each byte then counts as a channel


class Filter(enum.IntEnum):
    """How pixels are resized."""

    ANTIALIAS = 0  # Pillow's BILINEAR and torch's antialias=True
    BILINEAR = 1  # OpenCV's INTER_LINEAR
    NEAREST = 2  # floor((i + 0.5) * scale); for masks


class Status(enum.IntEnum):
    """What became of a sample. Only OK has pixels; the slot of any other holds the fill color."""

    OK = 0
    BAD_IMAGE = 1  # cannot be decoded, or is beyond the limits
    BAD_REQUEST = 2  # e.g. the ROI is not inside the image
    CORRUPT = 3  # the record's CRC is wrong
    CANCELLED = 4
    NO_MEMORY = 5


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """How pixels are laid out in the output, whose shape and dtype say the rest.

    Floating-point outputs are ``(pixel - mean) / std``, with white at ``white`` in the unit of ``mean`` and ``std``: 1.0 as in
    torchvision, or 255.0. Without mean and std that is 0..white. ``stored`` takes the channels as they are (masks); raw numbers
    of one channel get zeros as upper bytes where the output has more.
    """

    layout: Literal["nhwc", "nchw"] = "nhwc"
    color: Literal["rgb", "bgr", "gray", "stored"] = "rgb"
    fill: int | tuple[int, ...] = (
        0  # letterbox borders and failed samples, 0..255, before normalizing
    )
    mean: tuple[float, ...] | None = None  # in the order of the output's channels
    std: tuple[float, ...] | None = None
    white: float = 1.0

    def __post_init__(self) -> None:
        if self.layout not in ("nhwc", "nchw"):
            raise ConfigError(f"layout {self.layout!r}: expected 'nhwc' or 'nchw'")
        if self.color not in COLORS:
            raise ConfigError(f"color {self.color!r}: expected one of {', '.join(COLORS)}")
        if not self.white > 0:
            raise ConfigError(f"white {self.white!r}: expected a positive number, 1.0 or 255.0")

    def fill_values(self, channels: int) -> tuple[int, ...]:
        """One fill level a channel."""
        return (self.fill,) * channels if isinstance(self.fill, int) else self.fill

    def mean_values(self, channels: int) -> tuple[float, ...]:
        """The mean in levels of 0..255."""
        return tuple(255.0 / self.white * value for value in self.mean or (0.0,) * channels)

    def std_values(self, channels: int) -> tuple[float, ...]:
        """The standard deviation in levels of 0..255."""
        return tuple(255.0 / self.white * value for value in self.std or (1.0,) * channels)


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """What to decode and where to. Sources and output must stay as they are until the batch is collected or dropped."""

    sources: Sequence[Source]  # records or files, as bytes-like objects
    requests: NDArray[np.void]  # REQUEST; no more rows than the output has slots
    output: Output  # (N, H, W, C) or (N, C, H, W), any strides; uint8, float32, float16 or bfloat16
    pixels: PixelFormat = PixelFormat()


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """How a batch went, sample by sample."""

    status: NDArray[np.uint8]  # Status
    times_ns: NDArray[np.uint32]  # (n, len(STAGES)): where each sample's time went
    reasons: dict[int, str]  # slot -> why, for each sample that is not OK
    output: Output

    @property
    def ok(self) -> bool:
        """Every sample has its pixels."""
        return not self.reasons

    def raise_first(self) -> None:
        """Raises BadImage for the first sample that failed."""
        if self.reasons:
            slot = min(self.reasons)
            raise BadImage(
                f"{self.reasons[slot]} ({Status(int(self.status[slot])).name.lower()}, slot {slot})"
            )


class DecodeBackend(Protocol):
    """Anything that decodes batches. ``submit`` may be called again before ``collect``.

    A ticket belongs to the backend that returned it. Dropping a ticket is allowed.

    **The stream rule**, where ``device`` is a CUDA device: ``submit`` and ``collect`` run in one
    thread (the loader's feeder), inside ``transfer.stream()``, and the output was allocated there.
    When ``collect`` returns, the pixels are complete, or will be by work queued on that stream. A
    backend that writes an output on its own stream must first let that stream wait for the feeder's
    stream, and the feeder's stream for its own afterwards. The next reader of the pixels waits for
    an event recorded on the feeder's stream. Sources stay valid until ``collect`` returns, no
    longer.
    """

    name: ClassVar[str]
    adjustable_threads: ClassVar[bool]  # ``threads`` may be set at any time
    survives_fork: ClassVar[bool]  # a forked child may use the object; if not, it makes its own
    checks_crc: ClassVar[bool]  # verifies records outside the GIL; if not, the reader must
    edge_error: ClassVar[int]  # largest difference of outermost pixels from a CPU backend
    threads: int

    @classmethod
    def missing(cls, device: torch.device, *, hardware: bool = False) -> str:
        """What this backend lacks to run on ``device``, and the command that adds it; "" if nothing.

        ``hardware``: with the GPU's JPEG engine.
        """

    @property
    def device(self) -> torch.device:
        """Where outputs must be."""

    def submit(self, batch: DecodeBatch) -> Ticket:
        """Starts a batch. Raises ConfigError for a batch that cannot be right for any sample."""

    def collect(self, ticket: Ticket) -> DecodeResult:
        """Waits until the batch is done. A sample that fails is reported, never raised."""

    def done(self, ticket: Ticket) -> bool:
        """``collect`` would not wait. False if the backend cannot tell."""

    def unfinished(self, ticket: Ticket) -> list[int]:
        """Slots that ``collect`` waits for. Empty if the backend cannot tell."""

    def close(self) -> None:
        """Ends the threads. Samples not yet started are CANCELLED."""


def new_requests(n: int) -> NDArray[np.void]:
    """``n`` rows of zeros (whole image, antialiased, JPEG) from sources 0..n-1, upright."""
    requests = np.zeros(n, REQUEST)
    requests["orientation"] = 1
    requests["source"] = np.arange(n)
    return requests


def check_threads(threads: int | None) -> int:
    """How many decode threads to start. Raises ConfigError."""
    if threads is not None and not 1 <= threads <= 1024:
        raise ConfigError(
            f"threads {threads!r}: expected 1 to 1024, or None for one per available processor"
        )
    return threads or available_cpus()


def check_batch(batch: DecodeBatch) -> None:
    """Raises ConfigError for what no backend can serve."""
    dtype = batch.requests.dtype
    if (
        dtype is not REQUEST and dtype != REQUEST
    ) or batch.requests.ndim != 1:  # numpy compares member by member
        raise ConfigError(
            f"requests: expected one axis of dtype backend.REQUEST, found {batch.requests.shape} of "
            f"{dtype!s:.40}"
        )
    shape = tuple(batch.output.shape)
    if len(shape) != 4 or shape[0] < len(batch.requests):
        raise ConfigError(
            f"output: expected {len(batch.requests)} slots and 4 axes ({batch.pixels.layout.upper()}), found "
            f"shape {shape}"
        )
