"""What only a GPU can tell: copy speed, share of the engines at work, joules. No GPU has run it yet (see README)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fastload._tools.bench.measure import timed

WATCHED_S = 2.0  # NVML renews its shares every sixth of a second to a second; its energy counter every few milliseconds


def figures(n_bytes: int, runs: Mapping[str, Callable[[], int]]) -> dict[str, object]:
    """Copy speed of ``n_bytes`` of pixels, and of each run the joules and shares; {} without CUDA."""
    if not torch.cuda.is_available():
        return {}
    found: dict[str, object] = {"h2d_gb_per_s": _copy_speed(n_bytes)}
    for name, run in runs.items():
        try:
            meter = Meter()
        except (ImportError, OSError) as error:
            return {**found, "nvml": f"not read: {error}"}
        found[name] = meter.read(timed(run, at_least_s=WATCHED_S).n)
    return found


def _copy_speed(n_bytes: int) -> float:
    """Host to device, from pinned memory, GB/s."""
    from fastload._common.cuda import wait

    host = torch.empty(max(1 << 20, min(n_bytes, 256 << 20)), dtype=torch.uint8).pin_memory()
    host.to("cuda", non_blocking=True)
    wait()
    started = time.perf_counter()
    for _ in range(8):
        host.to("cuda", non_blocking=True)
    wait()
    return round(8 * host.nbytes / (time.perf_counter() - started) / 1e9, 2)


class Meter:
    """NVML around a stretch of work: joules of the whole GPU, and the share of time that SMs and JPEG engine were at work at its end."""

    def __init__(self, device: int = 0) -> None:
        import pynvml

        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(device)
            self._before = self._millijoules()
        except pynvml.NVMLError as error:
            raise OSError(str(error)) from None

    def read(self, n_images: int) -> dict[str, float]:
        """Since this meter was made; a figure the driver does not have is left out."""
        found = {"joules_per_image": (self._millijoules() - self._before) / 1e3 / max(n_images, 1)}
        with contextlib.suppress(AttributeError, self._nvml.NVMLError):
            found["sm_share"] = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        with contextlib.suppress(AttributeError, self._nvml.NVMLError):
            found["jpeg_engine_share"] = (
                self._nvml.nvmlDeviceGetJpgUtilization(self._handle)[0] / 100
            )
        return found

    def _millijoules(self) -> float:
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
