"""Shared parts of the GPU backends: startup checks, results, output of pixels, CPU fallback."""

from __future__ import annotations

import ctypes
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._decode.backend import (
    STAGES,
    DecodeBackend,
    DecodeBatch,
    DecodeResult,
    check_threads,
)
from fastload._decode.gpu import requirements
from fastload._decode.gpu.staging import StreamCutter
from fastload._decode.registry import default_cpu_backend
from fastload.errors import ConfigError, MissingPart

if TYPE_CHECKING:
    from fastload._decode.gpu.staging import Rows


class GpuBackend:
    """Base class of backends that decode on ``device``.

    ``threads`` CPU threads cut streams, decode Huffman codes and run the fallback. ``hardware``
    enables the JPEG engine of the GPU. It is safe only after ``fastload selftest`` has passed on
    this machine.
    """

    name: ClassVar[str]
    needs: ClassVar[requirements.Requirements]
    adjustable_threads: ClassVar[bool] = False
    survives_fork: ClassVar[bool] = False
    checks_crc: ClassVar[bool] = True  # when it cuts the streams
    edge_error: ClassVar[int]
    max_cut_threads: ClassVar[int] = 1024

    @classmethod
    def missing(cls, device: torch.device, *, hardware: bool = False) -> str:
        return cls.needs.missing(device, requirements.read_facts(device), hardware=hardware)

    def __init__(
        self,
        *,
        threads: int | None = None,
        device: str | torch.device = "cpu",
        hardware: bool = False,
    ) -> None:
        self.device = requirements.checked_device(device)
        if hardware and self.device.type == "cpu":
            raise ConfigError(
                "hardware=True requires a GPU, but device='cpu'; remove hardware=True"
            )
        self.threads = check_threads(threads)
        missing = self.missing(self.device, hardware=hardware)
        if missing:
            raise MissingPart(f"backend={self.name!r} cannot run on {self.device}: {missing}")
        self._hardware = hardware
        self._cutter = StreamCutter(threads=min(self.threads, self.max_cut_threads))
        self._fallback = CpuFallback(threads=self.threads)

    def check_output(self, batch: DecodeBatch) -> None:
        """Raises ConfigError if the output is on another device."""
        found = torch.as_tensor(batch.output).device
        if found != self.device:
            raise ConfigError(f"output: expected a tensor on {self.device}, found one on {found}")

    def done(self, ticket: Any) -> bool:
        """Returns False: the libraries cannot report progress without blocking."""
        del ticket
        return False

    def unfinished(self, ticket: Any) -> list[int]:
        """Returns nothing: the libraries cannot report progress."""
        del ticket
        return []

    def close(self) -> None:
        """Stops the CPU threads. Subclasses finish their own work first."""
        self._cutter.close()
        self._fallback.close()


class BatchOutcome:
    """Collects status, times and errors of a batch. Samples are OK unless set otherwise."""

    def __init__(self, batch: DecodeBatch) -> None:
        n = len(batch.requests)
        self._output = batch.output
        self.status: NDArray[np.uint8] = np.zeros(n, np.uint8)
        self.times_ns: NDArray[np.uint32] = np.zeros((n, len(STAGES)), np.uint32)
        self.reasons: dict[int, str] = {}

    def add_time(self, stage: str, total_ns: int, rows: Rows) -> None:
        """Divides the total time of these rows evenly among them."""
        if len(rows):
            self.times_ns[rows, STAGES.index(stage)] = min(total_ns // len(rows), 2**32 - 1)

    def add(self, rows: Rows, result: DecodeResult) -> None:
        """Copies the result of a CPU backend for these rows."""
        self.status[rows] = result.status
        self.times_ns[rows] = result.times_ns
        self.reasons.update({int(rows[row]): why for row, why in result.reasons.items()})

    def result(self) -> DecodeResult:
        return DecodeResult(self.status, self.times_ns, self.reasons, self._output)


@dataclass(frozen=True, slots=True)
class FallbackTicket:
    """Rows of a batch that the CPU is decoding."""

    batch: DecodeBatch
    rows: Rows
    pixels: torch.Tensor  # the output itself if the CPU can write it in place
    ticket: Any  # of the CPU backend


class CpuFallback:
    """Decodes on the CPU the rows that a GPU decoder does not support or failed to decode.

    These are raw pixels, masks, rotated images, unusual JPEGs, and images that cannot be decoded,
    for which the CPU backend reports the reason. The CPU backend starts with the first row.
    """

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self._backend: DecodeBackend | None = None

    def submit(self, batch: DecodeBatch, rows: Rows) -> FallbackTicket | None:
        """Starts to decode these rows (ascending); returns None if there are none."""
        if not len(rows):
            return None
        output = torch.as_tensor(batch.output)
        in_place = output.device.type == "cpu" and len(rows) == len(batch.requests)
        pixels = (
            output if in_place else torch.empty((len(rows), *output.shape[1:]), dtype=output.dtype)
        )
        requests = batch.requests[rows]  # a copy
        requests["exact"] = 1  # GPU decoders do not use DCT scaling, so the CPU must not either
        if self._backend is None:
            self._backend = default_cpu_backend().make(threads=self._threads)
        ticket = self._backend.submit(DecodeBatch(batch.sources, requests, pixels, batch.pixels))
        return FallbackTicket(batch, rows, pixels, ticket)

    def collect(self, ticket: FallbackTicket | None, outcome: BatchOutcome) -> None:
        """Waits for the rows. Pixels are in the output, or queued on the current stream."""
        if ticket is None or self._backend is None:
            return
        result = self._backend.collect(ticket.ticket)
        output = torch.as_tensor(ticket.batch.output)
        if ticket.pixels.data_ptr() != output.data_ptr():
            # .to() from pageable memory returns after it has read the source, so `pixels` can be
            # freed.
            rows = torch.from_numpy(ticket.rows).to(output.device)
            output.index_copy_(0, rows, ticket.pixels.to(output.device))
        outcome.add(ticket.rows, result)

    def redo(self, batch: DecodeBatch, rows: Rows, outcome: BatchOutcome) -> None:
        """Decodes rows on which the GPU decoder failed, and waits for them."""
        self.collect(self.submit(batch, rows), outcome)

    def close(self) -> None:
        if self._backend is not None:
            self._backend.close()


def write_pixels(pixels: torch.Tensor, batch: DecodeBatch, rows: Rows) -> None:
    """Writes uint8 (k, H, W, C) pixels, RGB or gray, into slots ``rows`` of the output.

    Applies color order, normalization, dtype and layout on the device of the pixels, queued on the
    current stream. The result is bit-identical to the native core: float32 arithmetic, then rounded
    to the dtype of the output.
    """
    output = torch.as_tensor(batch.output)
    pixel_format = batch.pixels
    values = pixels.flip(-1) if pixel_format.color == "bgr" else pixels
    if output.dtype != torch.uint8:
        channels = pixels.shape[-1]
        values = values.to(torch.float32)
        for numbers, neutral, apply in (
            (pixel_format.mean_values(channels), 0.0, values.sub_),
            (pixel_format.std_values(channels), 1.0, values.div_),
        ):
            if any(number != neutral for number in numbers):
                apply(torch.tensor(numbers, dtype=torch.float32, device=values.device))
    if pixel_format.layout == "nchw":
        values = values.permute(0, 3, 1, 2)
    if len(rows) == len(batch.requests):
        output[: len(rows)].copy_(values)
    else:
        output.index_copy_(0, torch.from_numpy(rows).to(output.device), values.to(output.dtype))


class Abandonable(Protocol):
    """Holds objects of a library that a forked child must not destroy."""

    def abandon(self) -> None:
        """Leaks the objects."""


# A forked child does not have the threads of the libraries, and destroying their objects would wait
# for these threads.
abandoned_after_fork: weakref.WeakSet[Abandonable] = weakref.WeakSet()


def leak(*objects: object) -> None:
    """Adds a reference, so that the objects are never destroyed, not even at exit."""
    for each in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def _abandon_all() -> None:
    for each in list(abandoned_after_fork):
        each.abandon()
    abandoned_after_fork.clear()


os.register_at_fork(after_in_child=_abandon_all)
