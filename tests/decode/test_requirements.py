"""Messages about missing requirements of GPU backends, tested with invented machines."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fastload._decode.gpu.base import (
    GpuFacts,
    Requirements,
    all_requirements,
    checked_device,
    read_facts,
)
from fastload._decode.registry import GPU_BACKENDS
from fastload.errors import ConfigError, MissingPart

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
FINE = GpuFacts(
    "550.54.15",
    (12, 4),
    gpu="NVIDIA A100-SXM4-40GB",
    torch_cuda="12.6",
    wheels=("nvidia-dali-cuda120", "nvidia-nvimgcodec-cu12"),
)
NEW = dataclasses.replace(FINE, driver="580.65", driver_cuda=(13, 0), torch_cuda="13.0")
OLD = dataclasses.replace(FINE, driver="470.82", driver_cuda=(11, 4))
THIRTEEN = ("nvidia-dali-cuda130", "nvidia-nvimgcodec-cu13")
MIG = dataclasses.replace(FINE, mig=True, gpu="NVIDIA A100-SXM4-40GB MIG 1g.5gb")

CASES = [
    (
        "dali",
        dataclasses.replace(FINE, wheels=()),
        "nvidia-dali-cuda120 is not installed. Run: pip install 'fastload-vision[dali]'",
    ),
    (
        "dali",
        dataclasses.replace(NEW, wheels=()),
        "nvidia-dali-cuda130 is not installed. Run: pip install 'fastload-vision[dali-cuda130]'",
    ),
    (
        "nvjpeg",
        dataclasses.replace(FINE, wheels=()),
        "nvidia-nvimgcodec-cu12 is not installed. Run: pip install 'fastload-vision[nvjpeg]'",
    ),
    (
        "nvjpeg",
        dataclasses.replace(NEW, wheels=()),
        "nvidia-nvimgcodec-cu13 is not installed. Run: pip install nvidia-nvimgcodec-cu13 nvidia-nvjpeg",
    ),
    (
        "dali",
        GpuFacts(no_driver="NVML Shared Library Not Found", torch_cuda="12.6", wheels=FINE.wheels),
        "no NVIDIA driver found (NVML Shared Library Not Found). Install driver 525 or newer",
    ),
    (
        "nvjpeg",
        dataclasses.replace(FINE, torch_cuda=""),
        "torch was built without CUDA. Run: pip install torch",
    ),
    (
        "dali",
        OLD,
        "driver 470.82 supports CUDA 11.4, but nvidia-dali-cuda120 requires 12.0. Install driver 525 or newer",
    ),
    (
        "dali",
        dataclasses.replace(FINE, wheels=THIRTEEN),
        "nvidia-dali-cuda130 requires CUDA 13, but driver 550.54.15 supports CUDA 12.4. Run: pip uninstall nvidia-dali-cuda130 && pip install 'fastload-vision[dali]'",
    ),
    (
        "nvjpeg",
        dataclasses.replace(FINE, wheels=THIRTEEN),
        "nvidia-nvimgcodec-cu13 requires CUDA 13",
    ),
    (
        "nvjpeg",
        dataclasses.replace(FINE, nvjpeg=False),
        "libnvjpeg is not installed, so nvImageCodec would decode on the CPU. Run: pip install nvidia-nvjpeg-cu12",
    ),
    (
        "nvjpeg",
        dataclasses.replace(NEW, wheels=THIRTEEN, nvjpeg=False),
        "libnvjpeg is not installed, so nvImageCodec would decode on the CPU. Run: pip install nvidia-nvjpeg",
    ),
]


@pytest.mark.parametrize(
    ("backend", "facts", "sentence"), CASES, ids=[case[2][:40] for case in CASES]
)
def test_the_message_names_the_problem_and_the_command(
    backend: str, facts: GpuFacts, sentence: str
) -> None:
    found = all_requirements()[backend].missing(CUDA, facts)
    assert found.startswith(sentence)
    assert "\n" not in found


@pytest.mark.parametrize(
    "facts",
    [
        FINE,
        NEW,
        dataclasses.replace(NEW, wheels=THIRTEEN),
        dataclasses.replace(NEW, wheels=(*FINE.wheels, *THIRTEEN)),
        dataclasses.replace(FINE, wheels=(*FINE.wheels, *THIRTEEN)),
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", sorted(GPU_BACKENDS))
def test_there_is_no_message_if_nothing_is_missing(backend: str, facts: GpuFacts) -> None:
    assert all_requirements()[backend].missing(CUDA, facts) == ""
    assert all_requirements()[backend].missing(CUDA, facts, hardware=True) == ""


def test_a_mig_slice_can_decode_but_not_with_the_jpeg_engine() -> None:
    assert all_requirements()["dali"].missing(CUDA, MIG) == ""
    assert (
        all_requirements()["dali"]
        .missing(CUDA, MIG, hardware=True)
        .startswith("NVIDIA A100-SXM4-40GB MIG 1g.5gb is a MIG slice")
    )


def test_the_cpu_requires_only_the_package() -> None:
    assert all_requirements()["dali"].missing(CPU, GpuFacts(wheels=FINE.wheels)) == ""
    assert "is not installed" in all_requirements()["nvjpeg"].missing(CPU, GpuFacts())


def test_this_machine_without_a_driver() -> None:
    if torch.cuda.is_available():
        pytest.skip("not run: there is a CUDA device")
    facts = read_facts(CUDA)
    assert (facts.driver, facts.driver_cuda) == ("", (0, 0))
    assert facts.no_driver
    with pytest.raises(
        MissingPart,
        match=r"backend='(dali|nvjpeg)' cannot run on cuda:0: (no NVIDIA driver found|.* is not installed)",
    ):
        GPU_BACKENDS["dali"].make(threads=1, device=CUDA)


@pytest.mark.parametrize("name", sorted(GPU_BACKENDS))
def test_a_missing_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = Requirements("nvidia.none", {12: "no-such-wheel"}, {12: "'fastload-vision[none]'"})
    monkeypatch.setattr(GPU_BACKENDS[name].load(), "needs", needs)
    with pytest.raises(
        MissingPart,
        match=rf"backend='{name}' cannot run on cpu: no-such-wheel is not installed. Run: "
        r"pip install 'fastload-vision\[none\]'",
    ):
        GPU_BACKENDS[name].make(threads=1)


@pytest.mark.parametrize("device", ["mps", "gpu", "", 5.5])
def test_other_devices_raise(device: str) -> None:
    with pytest.raises(ConfigError, match="expected 'cpu' or 'cuda'"):
        checked_device(device)
    assert checked_device("cpu") == CPU
