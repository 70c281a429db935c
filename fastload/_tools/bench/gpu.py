"""What only a GPU can tell: copy speed, share of the engines at work, joules. No GPU has run it yet (see README)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from fastload._common.cuda import uuid_of, wait
from fastload._common.nvml import Gpu, close_gpus, open_gpu
from fastload._tools.bench.measure import timed

WATCHED_S = 2.0  # NVML renews its shares every sixth of a second to a second; its energy counter every few milliseconds


def figures(n_bytes: int, runs: Mapping[str, Callable[[], int]]) -> dict[str, object]:
    """Copy speed of ``n_bytes`` of pixels, and of each run the joules and shares; {} without CUDA."""
    if not torch.cuda.is_available():
        return {}
    found: dict[str, object] = {"h2d_gb_per_s": _copy_speed(n_bytes)}
    gpu, why = open_gpu(uuid_of(torch.device("cuda")))
    if gpu is None:
        return {**found, "nvml": f"not read: {why}"}
    for name, run in runs.items():
        meter = Meter(gpu)
        found[name] = meter.read(timed(run, at_least_s=WATCHED_S).n)
    close_gpus()
    return found


def _copy_speed(n_bytes: int) -> float:
    """Host to device, from pinned memory, GB/s."""
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

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._before_j = gpu.number("energy_j")

    def read(self, n_images: int) -> dict[str, float]:
        """Since this meter was created; a figure the driver does not have is left out."""
        found: dict[str, float] = {}
        now_j = self._gpu.number("energy_j")
        if now_j is not None and self._before_j is not None:
            found["joules_per_image"] = (now_j - self._before_j) / max(n_images, 1)
        for name, quantity in (("sm_share", "util"), ("jpeg_engine_share", "jpeg")):
            percent = self._gpu.number(quantity)
            if percent is not None:
                found[name] = percent / 100
        return found
