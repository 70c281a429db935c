"""What a GPU backend needs on this machine, and one sentence with the command for what is missing.

Reading the facts and judging them are apart, so that every sentence can be tested without a GPU.
"""

from __future__ import annotations

import ctypes.util
import importlib.metadata
from dataclasses import dataclass

import torch

from fastload._common.nvml import driver_versions
from fastload.errors import ConfigError, MissingPart

# backend → (module, its wheels by CUDA major and the extra of ours that brings each)
WHEELS: dict[str, tuple[str, dict[int, tuple[str, str]]]] = {
    "dali": (
        "nvidia.dali",
        {
            12: ("nvidia-dali-cuda120", "fastload-vision[dali]"),
            13: ("nvidia-dali-cuda130", "fastload-vision[dali-cuda130]"),
        },
    ),
    "nvjpeg": (
        "nvidia.nvimgcodec",
        {
            12: ("nvidia-nvimgcodec-cu12", "fastload-vision[nvjpeg]"),
            13: ("nvidia-nvimgcodec-cu13", "nvidia-nvjpeg"),
        },
    ),
}
_NVJPEG = {
    12: "nvidia-nvjpeg-cu12",
    13: "nvidia-nvjpeg",
}  # the library that nvImageCodec opens, and does without if it is not there
_FIRST_DRIVERS = {
    12: "525",
    13: "580",
}  # the first driver branch that runs programs of this CUDA major


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What is known of driver and packages; ``driver_cuda`` is the newest CUDA the driver runs, 12.4 as (12, 4), (0, 0) without one."""

    driver: str = ""  # e.g. "550.54.15"
    driver_cuda: tuple[int, int] = (0, 0)
    no_driver: str = ""  # why there is none, in NVML's words
    mig: bool = False  # the device is a slice of a GPU
    gpu: str = ""  # its name
    torch_cuda: str = ""  # the CUDA that torch was built for; "" = none
    wheels: tuple[str, ...] = ()  # of WHEELS, those installed
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


def require(backend: str, device: torch.device, *, hardware: bool = False) -> None:
    """Raises MissingPart, in one sentence, where this backend cannot run on this device."""
    wrong = missing(backend, device, read_facts(device), hardware=hardware)
    if wrong:
        raise MissingPart(f"decoding with backend={backend!r} on {device}: {wrong}")


def missing(backend: str, device: torch.device, facts: GpuFacts, *, hardware: bool = False) -> str:
    """What is lacking and what to do; "" where all is there. Pure."""
    wheels = WHEELS[backend][1]
    installed = [major for major, (wheel, _) in wheels.items() if wheel in facts.wheels]
    wanted = (
        13
        if facts.torch_cuda.startswith("13")
        and (facts.driver_cuda[0] >= 13 or device.type == "cpu")
        else 12
    )
    command = (
        f"pip install '{wheels[wanted][1]}'"
        if backend == "dali" or wanted == 12
        else f"pip install {' '.join(wheels[wanted])}"
    )
    if not installed:
        return f"{wheels[wanted][0]} is not installed: {command}"
    if device.type == "cpu":
        return ""
    if not facts.driver:
        return (
            f"there is no NVIDIA driver here ({facts.no_driver or 'NVML does not answer'}): install driver {_FIRST_DRIVERS[wanted]} "
            "or newer (in a container: start it with --gpus all), or use backend='native'"
        )
    if not facts.torch_cuda:
        return "this torch was built without CUDA: pip install torch --force-reinstall"
    if facts.driver_cuda[0] < min(wheels):
        first = min(wheels)
        return (
            f"driver {facts.driver} is too old, it runs CUDA {_version(facts.driver_cuda)} and {wheels[first][0]} needs {first}.0: "
            f"install driver {_FIRST_DRIVERS[first]} or newer, or use backend='native'"
        )
    if min(installed) > facts.driver_cuda[0]:
        return (
            f"{wheels[min(installed)][0]} is for CUDA {min(installed)}, driver {facts.driver} runs CUDA {_version(facts.driver_cuda)}: "
            f"pip uninstall {wheels[min(installed)][0]} && {command}"
        )
    if backend == "nvjpeg" and not facts.nvjpeg:
        return f"nvJPEG's own library is not here, so nvImageCodec would decode on the CPU: pip install {_NVJPEG[max(installed)]}"
    if hardware and facts.mig:
        return (
            f"{facts.gpu or 'the device'} is a MIG slice, whose JPEG engine may belong to another slice: use hardware=False "
            "(backend='auto' does), or a whole GPU"
        )
    return ""


def read_facts(device: torch.device) -> GpuFacts:
    """Looks at the installed packages and, for a CUDA device, asks the driver."""
    names = [wheel for _, wheels in WHEELS.values() for wheel, _ in wheels.values()]
    wheels = tuple(name for name in names if _installed(name))
    built_for = torch.version.cuda or ""
    nvjpeg = (
        any(map(_installed, _NVJPEG.values())) or ctypes.util.find_library("nvjpeg") is not None
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


def _installed(wheel: str) -> bool:
    try:
        importlib.metadata.version(wheel)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _version(cuda: tuple[int, int]) -> str:
    return f"{cuda[0]}.{cuda[1]}"
