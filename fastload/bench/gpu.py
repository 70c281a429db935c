"""What only a GPU can tell: copy speed, share of the engines at work, joules. No GPU has run it yet (see README)."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch


def figures(n_bytes: int) -> dict[str, object]:
    """Host-to-device GB/s of a batch of ``n_bytes`` from pinned memory; {} without CUDA."""
    if not torch.cuda.is_available():
        return {}
    host = torch.empty(max(1 << 20, min(n_bytes, 256 << 20)), dtype=torch.uint8).pin_memory()
    host.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(8):
        host.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return {"h2d_gb_per_s": round(8 * host.nbytes / (time.perf_counter() - started) / 1e9, 2)}


class Meter:
    """NVML around a stretch of work: joules, and the share of time that SMs and the JPEG engine were at work at its end."""

    def __init__(self, device: int = 0) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml: Any = pynvml
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(device)
        self._before = self._millijoules()

    def read(self, n_images: int) -> dict[str, float]:
        """Since this meter was made; a figure the driver does not have is left out."""
        found = {"joules_per_image": (self._millijoules() - self._before) / 1e3 / max(n_images, 1)}
        found["sm_share"] = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        with contextlib.suppress(AttributeError, self._nvml.NVMLError):
            found["jpeg_engine_share"] = self._nvml.nvmlDeviceGetJpgUtilization(self._handle)[0] / 100
        return found

    def _millijoules(self) -> float:
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
