"""Batches onto their device. What only a GPU can run is in this module, and the README says that no GPU has run it yet."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from fastload.errors import ConfigError


class Transfer(Protocol):
    """``stage`` and ``send`` run in the feeder thread, inside ``stream()``; ``receive`` runs in the trainer's."""

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
        return mapped(batch, torch.Tensor.pin_memory) if self._pin else batch

    def receive(self, sent: Any) -> Any:
        """Nothing to wait for."""
        return sent


class CudaTransfer:
    """Copies on a stream of its own; the trainer's stream waits for the copy, nobody else does."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)            # type: ignore[no-untyped-call]

    def stream(self) -> AbstractContextManager[object]:
        """One for all copies and colours: the event that ``send`` records comes after both."""
        return torch.cuda.stream(self._stream)

    def stage(self, pixels: torch.Tensor) -> torch.Tensor:
        """Copied from pageable memory, which blocks this thread but nobody else, so the buffer is free again on return."""
        return pixels.to(self._device)

    def send(self, batch: Any) -> Any:
        """Pinned first (a copy from pageable memory would block), then copied; the event marks the end of the copy."""
        pinned = mapped(batch, lambda tensor: tensor if tensor.is_cuda else tensor.pin_memory())
        with self.stream():
            copied = mapped(pinned, lambda tensor: tensor.to(self._device, non_blocking=True))
            event = torch.cuda.Event()                      # type: ignore[no-untyped-call]
            event.record(self._stream)
        return copied, event, pinned           # pinned lives until receive: the copy reads it

    def receive(self, sent: Any) -> Any:
        """Makes the current stream wait for the copy, and keeps the memory until that stream is done with it."""
        copied, event, _ = sent
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        mapped(copied, lambda tensor: tensor.record_stream(stream))
        event.synchronize()                     # the pinned memory may go back to torch now; the copy was done long ago
        return copied


def make_transfer(device: str | torch.device | None, *, pin_memory: bool) -> Transfer:
    """For ``device=None`` or ``"cpu"`` nothing moves."""
    try:
        wanted = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError):
        raise ConfigError(f"device={device!r:.40}: expected None, 'cpu' or 'cuda'") from None
    if wanted.type == "cpu":
        if pin_memory and not torch.cuda.is_available():
            warnings.warn("fastload.DataLoader: pin_memory has no effect: torch sees no CUDA device here", UserWarning, stacklevel=3)
        return Stay(pin=pin_memory and torch.cuda.is_available())
    if wanted.type != "cuda":
        raise ConfigError(f"device={device!r}: expected None, 'cpu' or 'cuda'")
    if not torch.cuda.is_available():
        raise ConfigError(f"device={device!r}: torch sees no CUDA device here (torch {torch.__version__}); use device=None")
    return CudaTransfer(wanted)


def mapped(batch: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """The same structure with a function applied to every tensor in it."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return {name: mapped(value, function) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):          # a named tuple takes its values one by one
        return type(batch)(*(mapped(value, function) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(mapped(value, function) for value in batch)
    return batch
