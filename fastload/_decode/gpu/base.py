"""Shared parts of the GPU backends: requirements, results, output of pixels, CPU fallback.

``read_facts`` reads the state of the machine and ``Requirements.missing`` evaluates it, so that
every message can be tested without a GPU.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.metadata
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import torch

from fastload._common.nvml import driver_versions
from fastload._decode.backend import (
    STAGES,
    DecodeBackend,
    DecodeBatch,
    DecodeResult,
    check_threads,
)
from fastload._decode.gpu.staging import Rows, StreamCutter
from fastload._decode.registry import GPU_BACKENDS, default_cpu_backend
from fastload.errors import ConfigError, MissingPart

# CUDA major version → first driver branch that supports it
_FIRST_DRIVERS = {12: "525", 13: "580"}
# A forked child does not have the threads of the libraries, and destroying their objects would wait
# for these threads.
abandoned_after_fork: weakref.WeakSet[Abandonable] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """State of driver, GPU and packages."""

    driver: str = ""  # for example "550.54.15"; "" without a driver
    driver_cuda: tuple[int, int] = (0, 0)  # newest CUDA version of the driver, 12.4 as (12, 4)
    no_driver: str = ""  # NVML's reason if there is no driver
    mig: bool = False  # the device is a MIG slice
    gpu: str = ""  # name of the GPU
    torch_cuda: str = ""  # CUDA version that torch was built for; "" if none
    wheels: tuple[str, ...] = ()  # installed packages of packages()
    nvjpeg: bool = True  # libnvjpeg is installed, as a wheel or with a CUDA toolkit


def checked_device(device: str | torch.device) -> torch.device:
    """Returns the CPU, or a CUDA device with its index. Raises ConfigError for other devices."""
    try:
        found: torch.device | None = torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={device!r:.40}: expected 'cpu' or 'cuda'")
    if found.type == "cuda" and torch.cuda.is_available():
        from fastload._common.cuda import numbered

        return numbered(found)
    return found


@dataclass(frozen=True, slots=True)
class Requirements:
    """Packages of one GPU library, by CUDA major version."""

    module: str
    wheels: Mapping[int, str]
    pip_arguments: Mapping[int, str]  # arguments of "pip install" that install the wheel
    # Packages with libnvjpeg, without which the library decodes on the CPU.
    nvjpeg_wheels: Mapping[int, str] = field(default_factory=dict)

    def missing(self, device: torch.device, facts: GpuFacts, *, hardware: bool = False) -> str:
        """Returns what is missing and how to install it; "" if nothing is missing."""
        installed = [major for major, wheel in self.wheels.items() if wheel in facts.wheels]
        runs_13 = facts.driver_cuda[0] >= 13 or device.type == "cpu"
        wanted = 13 if facts.torch_cuda.startswith("13") and runs_13 else 12
        command = f"pip install {self.pip_arguments[wanted]}"
        if not installed:
            return f"{self.wheels[wanted]} is not installed. Run: {command}"
        if device.type == "cpu":
            return ""
        if not facts.driver:
            return (
                f"no NVIDIA driver found ({facts.no_driver or 'NVML does not respond'}). "
                f"Install driver {_FIRST_DRIVERS[wanted]} or newer (start a container with "
                "--gpus all), or use backend='native'"
            )
        if not facts.torch_cuda:
            return "torch was built without CUDA. Run: pip install torch --force-reinstall"
        supports = f"supports CUDA {facts.driver_cuda[0]}.{facts.driver_cuda[1]}"
        first = min(self.wheels)
        if facts.driver_cuda[0] < first:
            return (
                f"driver {facts.driver} {supports}, but {self.wheels[first]} requires {first}.0. "
                f"Install driver {_FIRST_DRIVERS[first]} or newer, or use backend='native'"
            )
        oldest = self.wheels[min(installed)]
        if min(installed) > facts.driver_cuda[0]:
            return (
                f"{oldest} requires CUDA {min(installed)}, but driver {facts.driver} {supports}. "
                f"Run: pip uninstall {oldest} && {command}"
            )
        if self.nvjpeg_wheels and not facts.nvjpeg:
            return (
                "libnvjpeg is not installed, so nvImageCodec would decode on the CPU. "
                f"Run: pip install {self.nvjpeg_wheels[max(installed)]}"
            )
        if hardware and facts.mig:
            return (
                f"{facts.gpu or 'the device'} is a MIG slice, and its JPEG engine may belong to "
                "another slice. Use hardware=False (backend='auto' does), or a complete GPU"
            )
        return ""


def packages() -> list[str]:
    """Returns all packages that a GPU backend can use. The self-test records their versions."""
    wheels = [wheel for each in all_requirements().values() for wheel in each.wheels.values()]
    return [*wheels, *_nvjpeg_wheels(), "triton"]


def all_requirements() -> dict[str, Requirements]:
    """Returns the requirements by backend name."""
    return {
        name: cast("type[GpuBackend]", entry.load()).needs for name, entry in GPU_BACKENDS.items()
    }


def installed_version(package: str) -> str:
    """Returns the version of a package; "" if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def read_facts(device: torch.device) -> GpuFacts:
    """Reads the installed packages and, for a CUDA device, queries the driver."""
    wheels = tuple(name for name in packages() if installed_version(name))
    built_for = torch.version.cuda or ""
    nvjpeg = not set(_nvjpeg_wheels()).isdisjoint(wheels) or bool(
        ctypes.util.find_library("nvjpeg")
    )
    if device.type == "cpu":
        return GpuFacts(torch_cuda=built_for, wheels=wheels)
    try:
        driver, cuda = driver_versions()
    except OSError as error:
        return GpuFacts(no_driver=str(error), torch_cuda=built_for, wheels=wheels)
    gpu = ""
    if torch.cuda.is_available():
        from fastload._common.cuda import name_of

        gpu = name_of(device)
    return GpuFacts(
        driver,
        cuda,
        mig=" MIG " in f" {gpu} ",  # torch includes "MIG" in the name of a slice
        gpu=gpu,
        torch_cuda=built_for,
        wheels=wheels,
        nvjpeg=nvjpeg,
    )


def _nvjpeg_wheels() -> list[str]:
    return [w for each in all_requirements().values() for w in each.nvjpeg_wheels.values()]


class GpuBackend:
    """Base class of backends that decode on ``device``.

    ``threads`` CPU threads cut streams, decode Huffman codes and run the fallback. ``hardware``
    enables the JPEG engine of the GPU. It is safe only after ``fastload selftest`` has passed on
    this machine.
    """

    name: ClassVar[str]
    needs: ClassVar[Requirements]
    adjustable_threads: ClassVar[bool] = False
    survives_fork: ClassVar[bool] = False
    checks_crc: ClassVar[bool] = True  # when it cuts the streams
    edge_error: ClassVar[int]
    max_cut_threads: ClassVar[int] = 1024

    @classmethod
    def missing(cls, device: torch.device, *, hardware: bool = False) -> str:
        return cls.needs.missing(device, read_facts(device), hardware=hardware)

    def __init__(
        self,
        *,
        threads: int | None = None,
        device: str | torch.device = "cpu",
        hardware: bool = False,
    ) -> None:
        self.device = checked_device(device)
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
        self._start()

    def _start(self) -> None:
        """Creates what the subclass decodes with."""

    def check_output(self, batch: DecodeBatch) -> None:
        """Raises ConfigError if the output is on another device."""
        found = torch.as_tensor(batch.output).device
        if found != self.device:
            raise ConfigError(f"output: expected a tensor on {self.device}, found one on {found}")

    def done(self, ticket: Any) -> bool:  # noqa: ARG002 - signature of DecodeBackend
        """Returns False: the libraries cannot report progress without blocking."""
        return False

    def unfinished(self, ticket: Any) -> list[int]:  # noqa: ARG002
        """Returns nothing: the libraries cannot report progress."""
        return []

    def close(self) -> None:
        """Stops the CPU threads. Subclasses finish their own work first."""
        self._cutter.close()
        self._fallback.close()


def empty_result(batch: DecodeBatch) -> DecodeResult:
    """Returns the result of a batch, to be filled in. Samples are OK unless set otherwise."""
    n = len(batch.requests)
    times_ns = np.zeros((n, len(STAGES)), np.uint32)
    return DecodeResult(np.zeros(n, np.uint8), times_ns, {}, batch.output)


def add_time(result: DecodeResult, stage: str, total_ns: int, rows: Rows) -> None:
    """Divides the total time of these rows evenly among them."""
    if len(rows):
        result.times_ns[rows, STAGES.index(stage)] = min(total_ns // len(rows), 2**32 - 1)


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

    def collect(self, ticket: FallbackTicket | None, result: DecodeResult) -> None:
        """Waits for the rows. Pixels are in the output, or queued on the current stream."""
        if ticket is None or self._backend is None:
            return
        found = self._backend.collect(ticket.ticket)
        output = torch.as_tensor(ticket.batch.output)
        if ticket.pixels.data_ptr() != output.data_ptr():
            # .to() from pageable memory returns after it has read the source, so `pixels` can be
            # freed.
            rows = torch.from_numpy(ticket.rows).to(output.device)
            pixels = ticket.pixels.to(output.device)
            if output.dtype == torch.uint16:  # torch 2.13 has no index_copy_ for it
                output, pixels = output.view(torch.int16), pixels.view(torch.int16)
            output.index_copy_(0, rows, pixels)
        result.status[ticket.rows] = found.status
        result.times_ns[ticket.rows] = found.times_ns
        result.reasons.update({int(ticket.rows[row]): why for row, why in found.reasons.items()})

    def redo(self, batch: DecodeBatch, rows: Rows, result: DecodeResult) -> None:
        """Decodes rows on which the GPU decoder failed, and waits for them."""
        self.collect(self.submit(batch, rows), result)

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


def leak(*objects: object) -> None:
    """Adds a reference, so that the objects are never destroyed, not even at exit."""
    for each in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def _abandon_all() -> None:
    for each in list(abandoned_after_fork):
        each.abandon()
    abandoned_after_fork.clear()


os.register_at_fork(after_in_child=_abandon_all)
