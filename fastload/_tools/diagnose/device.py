"""Whether this process uses a GPU, and waiting for it. No GPU has run this yet."""

from __future__ import annotations

import torch


def gpu_in_use() -> bool:
    """CUDA was initialised by this process: asking must not do that itself."""
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def synchronise() -> None:
    """Waits for the GPU, where one is in use."""
    if gpu_in_use():
        from fastload._common.cuda import wait

        wait()
