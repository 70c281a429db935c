"""Moves batches to their device. GPU-only code is in ``fastload._common.cuda``."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from fastload._common.nested import map_tensors
from fastload.errors import ConfigError


class Transfer(Protocol):
    """Moves batches from the feeder thread to the trainer's thread."""

    @property
    def device(self) -> torch.device:
        """Device of the delivered batches; a CUDA device with its index."""

    def stream(self) -> AbstractContextManager[object]:
        """Returns the stream that the feeder thread queues its work on."""

    def stage(self, pixels: torch.Tensor) -> torch.Tensor:
        """Copies pixels to the device for pixel operations. Called inside ``stream()``."""

    def send(self, batch: Any) -> Any:
        """Starts moving a batch. Called by the feeder thread."""

    def receive(self, sent: Any) -> Any:
        """Returns a batch that is safe to use on the current stream of the trainer's thread."""


class Stay:
    """Leaves batches on the CPU, in pinned memory with ``pin``."""

    device = torch.device("cpu")

    def __init__(self, *, pin: bool) -> None:
        self._pin = pin

    def stream(self) -> AbstractContextManager[object]:
        return nullcontext()

    def stage(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels

    def send(self, batch: Any) -> Any:
        return map_tensors(batch, torch.Tensor.pin_memory) if self._pin else batch

    def receive(self, sent: Any) -> Any:
        return sent


def make_transfer(device: str | torch.device | None, *, pin_memory: bool) -> Transfer:
    """Returns the transfer to a device; ``None`` and ``"cpu"`` move nothing."""
    try:
        wanted = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError):
        raise ConfigError(f"device={device!r:.40}: expected None, 'cpu' or 'cuda'") from None
    if wanted.type == "cpu":
        if pin_memory and not torch.cuda.is_available():
            warnings.warn(
                "fastload.DataLoader: pin_memory has no effect: torch sees no CUDA device",
                UserWarning,
                stacklevel=3,
            )
        return Stay(pin=pin_memory and torch.cuda.is_available())
    if wanted.type != "cuda":
        raise ConfigError(f"device={device!r}: expected None, 'cpu' or 'cuda'")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device={device!r}: torch {torch.__version__} sees no CUDA device here. "
            "Pass device=None, or install torch with CUDA"
        )
    from fastload._common.cuda import CudaTransfer, numbered

    return CudaTransfer(numbered(wanted))
