"""Requirements of the GPU backends, and the command that installs what is missing.

``read_facts`` reads the state of the machine and ``Requirements.missing`` evaluates it, so that
every message can be tested without a GPU.
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

# CUDA major version → first driver branch that supports it
_FIRST_DRIVERS = {12: "525", 13: "580"}


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
