"""Batches onto their device. What only a GPU can run is in `fastload._common.cuda`."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from fastload._common.nested import map_tensors
from fastload.errors import ConfigError


class Transfer(Protocol):
    """``stage`` and ``send`` run in the feeder thread, inside ``stream()``; ``receive`` runs in the trainer's."""

    @property
    def device(self) -> torch.device:
        """Where batches end up; a CUDA device has its number."""

    def stream(self) -> AbstractContextManager[object]:
        """Where the feeder's work on the device is queued."""

    def stage(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels on the device, for what is still to be done to them there."""

    def send(self, batch: Any) -> Any:
        """Begins to move a batch."""

    def receive(self, sent: Any) -> Any:
        """The batch, safe to use on the current stream."""


class Stay:
    """CPU tensors, as torch gives them; pinned where asked."""

    device = torch.device("cpu")

    def __init__(self, *, pin: bool) -> None:
        self._pin = pin

    def stream(self) -> AbstractContextManager[object]:
        """There is none."""
        return nullcontext()

    def stage(self, pixels: torch.Tensor) -> torch.Tensor:
        """They are where they belong."""
        return pixels

    def send(self, batch: Any) -> Any:
        """Pins, where that was asked for and means something."""
        return map_tensors(batch, torch.Tensor.pin_memory) if self._pin else batch

    def receive(self, sent: Any) -> Any:
        """Nothing to wait for."""
        return sent


def make_transfer(device: str | torch.device | None, *, pin_memory: bool) -> Transfer:
    """For ``device=None`` or ``"cpu"`` nothing moves."""
    try:
        wanted = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError):
        raise ConfigError(f"device={device!r:.40}: expected None, 'cpu' or 'cuda'") from None
    if wanted.type == "cpu":
        if pin_memory and not torch.cuda.is_available():
            warnings.warn(
                "fastload.DataLoader: pin_memory has no effect: torch sees no CUDA device here",
                UserWarning,
                stacklevel=3,
            )
        return Stay(pin=pin_memory and torch.cuda.is_available())
    if wanted.type != "cuda":
        raise ConfigError(f"device={device!r}: expected None, 'cpu' or 'cuda'")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device={device!r}: torch sees no CUDA device here (torch {torch.__version__}); use device=None"
        )
    from fastload._common.cuda import CudaTransfer, numbered

    return CudaTransfer(numbered(wanted))
