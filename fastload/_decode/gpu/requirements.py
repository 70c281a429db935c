"""What a GPU backend needs on this machine, and one sentence with the command for what is missing.

Reading the facts and judging them are apart, so that every sentence can be tested without a GPU.
"""

from __future__ import annotations

import ctypes.util
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch

from fastload._common.nvml import driver_versions
from fastload._decode.registry import GPU_BACKENDS
from fastload.errors import ConfigError

if TYPE_CHECKING:
    from fastload._decode.gpu.base import GpuBackend

# The first driver branch that runs programs of this CUDA major
_FIRST_DRIVERS = {12: "525", 13: "580"}


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What is known of driver and packages; ``driver_cuda`` is the newest CUDA the driver runs, 12.4 as (12, 4), (0, 0) without one."""

    driver: str = ""  # e.g. "550.54.15"
    driver_cuda: tuple[int, int] = (0, 0)
    no_driver: str = ""  # why there is none, in NVML's words
    mig: bool = False  # the device is a slice of a GPU
    gpu: str = ""  # its name
    torch_cuda: str = ""  # the CUDA that torch was built for; "" = none
    wheels: tuple[str, ...] = ()  # of packages(), those installed
    nvjpeg: bool = True  # libnvjpeg is here, as a wheel or with a CUDA toolkit


def checked_device(device: str | torch.device) -> torch.device:
    """``"cpu"``, or a CUDA device with its number. Raises ConfigError."""
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError):
        raise ConfigError(f"device={device!r:.40}: expected 'cpu' or 'cuda'") from None
    if wanted.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={device!r:.40}: expected 'cpu' or 'cuda'")
    if wanted.type == "cuda" and torch.cuda.is_available():
        from fastload._common.cuda import numbered

        return numbered(wanted)
    return wanted


@dataclass(frozen=True, slots=True)
class Requirements:
    """The packages of one GPU library, by CUDA major version."""

    module: str
    wheels: Mapping[int, str]
    pip_arguments: Mapping[int, str]  # what "pip install" gets to add the wheel
    # Of the shared library that it opens, and without which it decodes on the CPU
    nvjpeg_wheels: Mapping[int, str] = field(default_factory=dict)

    def missing(self, device: torch.device, facts: GpuFacts, *, hardware: bool = False) -> str:
        """What is lacking and what to do; "" if nothing. Pure."""
        installed = [major for major, wheel in self.wheels.items() if wheel in facts.wheels]
        runs_13 = facts.driver_cuda[0] >= 13 or device.type == "cpu"
        wanted = 13 if facts.torch_cuda.startswith("13") and runs_13 else 12
        command = f"pip install {self.pip_arguments[wanted]}"
        if not installed:
            return f"{self.wheels[wanted]} is not installed: {command}"
        if device.type == "cpu":
            return ""
        if not facts.driver:
            return (
                f"there is no NVIDIA driver here ({facts.no_driver or 'NVML does not answer'}): "
                f"install driver {_FIRST_DRIVERS[wanted]} or newer (in a container: start it with "
                "--gpus all), or use backend='native'"
            )
        if not facts.torch_cuda:
            return "this torch was built without CUDA: pip install torch --force-reinstall"
        runs = f"runs CUDA {facts.driver_cuda[0]}.{facts.driver_cuda[1]}"
        first = min(self.wheels)
        if facts.driver_cuda[0] < first:
            return (
                f"driver {facts.driver} is too old, it {runs} and {self.wheels[first]} needs "
                f"{first}.0: install driver {_FIRST_DRIVERS[first]} or newer, or use "
                "backend='native'"
            )
        oldest = self.wheels[min(installed)]
        if min(installed) > facts.driver_cuda[0]:
            return (
                f"{oldest} is for CUDA {min(installed)}, driver {facts.driver} {runs}: "
                f"pip uninstall {oldest} && {command}"
            )
        if self.nvjpeg_wheels and not facts.nvjpeg:
            return (
                "nvJPEG's own library is not here, so nvImageCodec would decode on the CPU: "
                f"pip install {self.nvjpeg_wheels[max(installed)]}"
            )
        if hardware and facts.mig:
            return (
                f"{facts.gpu or 'the device'} is a MIG slice, whose JPEG engine may belong to "
                "another slice: use hardware=False (backend='auto' does), or a whole GPU"
            )
        return ""


def packages() -> list[str]:
    """Every distribution that a GPU backend may use; the self-test's record names their versions."""
    wheels = [wheel for each in all_requirements().values() for wheel in each.wheels.values()]
    return [*wheels, *_nvjpeg_wheels(), "triton"]


def all_requirements() -> dict[str, Requirements]:
    """By backend."""
    found = {name: cast("type[GpuBackend]", each.load()) for name, each in GPU_BACKENDS.items()}
    return {name: backend.needs for name, backend in found.items()}


def installed_version(package: str) -> str:
    """Its version; "" if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def read_facts(device: torch.device) -> GpuFacts:
    """Looks at the installed packages and, for a CUDA device, asks the driver."""
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
    gpu, mig = _device(device) if torch.cuda.is_available() else ("", False)
    return GpuFacts(
        driver,
        cuda,
        mig=mig,
        gpu=gpu,
        torch_cuda=built_for,
        wheels=wheels,
        nvjpeg=nvjpeg,
    )


def _device(device: torch.device) -> tuple[str, bool]:
    """Its name, and whether it is a MIG slice: torch names those so."""
    from fastload._common.cuda import name_of

    name = name_of(device)
    return name, " MIG " in f" {name} "


def _nvjpeg_wheels() -> list[str]:
    return [w for each in all_requirements().values() for w in each.nvjpeg_wheels.values()]
