"""All that only a GPU can run. It is small on purpose, each line with the reason for its order: no GPU has run it yet (see README)."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from typing import Any

import torch

from fastload.loader.nested import mapped


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


class StageEvents:
    """Stage times by the GPU's own clock (fastload.observe.clocks.StageClock). Events are read once they have passed: nobody waits."""

    def __init__(self) -> None:
        self._line: deque[tuple[str, torch.cuda.Event, torch.cuda.Event] | None] = deque()         # None = end of a step
        self._free: list[torch.cuda.Event] = []

    def begin(self) -> object:
        """Marks the current stream; the kernels of the stage come behind it."""
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)        # type: ignore[no-untyped-call]
        event.record()
        return event

    def end(self, name: str, begun: object, /) -> None:
        """The second mark, on the stream that is current now."""
        if isinstance(begun, torch.cuda.Event):
            self._line.append((name, begun, self.begin()))                   # type: ignore[arg-type]

    def step_ended(self) -> None:
        """What stands in the line since the last step belongs to this one."""
        self._line.append(None)

    def step_dropped(self) -> None:
        """Takes the stages of a step that does not end out of the line again."""
        while self._line and self._line[-1] is not None:
            self._line.pop()

    def collect(self) -> tuple[int, dict[str, float]]:
        """Whole steps whose last event has passed. query() asks, it does not wait; elapsed_time is in milliseconds."""
        steps, totals, ready = 0, dict[str, float](), self._passed()
        while ready > 0:
            item = self._line.popleft()
            ready -= 1
            if item is None:
                steps += 1
                continue
            name, begun, ended = item
            totals[name] = totals.get(name, 0.0) + begun.elapsed_time(ended) / 1e3
            self._free += (begun, ended)
        return steps, totals

    def _passed(self) -> int:
        """How many of the line's first items make up whole steps that the GPU is through with."""
        whole = 0
        for place, item in enumerate(self._line):
            if item is None:
                whole = place + 1
            elif not item[2].query():               # type: ignore[no-untyped-call]
                break
        return whole


def device_and_name() -> tuple[str, str]:
    """("cuda:0", "NVIDIA ...") of the current device."""
    index = torch.cuda.current_device()
    return f"cuda:{index}", torch.cuda.get_device_name(index)


def allocated_mb() -> float:
    """MiB that tensors take on the current device; the allocator's own count, the GPU is not asked."""
    return round(torch.cuda.memory_allocated() / 2**20, 1)
