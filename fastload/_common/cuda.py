"""All that only a GPU can run. It is small on purpose, each line with the reason for its order: no GPU has run it yet (see docs/gpu.md)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from fastload._common.nested import map_tensors
from fastload._common.nvml import close_gpus, open_gpu

LEASES = 4  # of DALI outputs that a lagging GPU has not read yet


def numbered(device: torch.device) -> torch.device:
    """ "cuda" of the thread that asks, with its number: the feeder thread's own "cuda" would always be GPU 0."""
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device


def name_of(device: torch.device) -> str:
    """As the driver has it; a slice of a GPU has "MIG" in it."""
    return torch.cuda.get_device_name(device)


class CudaTransfer:
    """Copies on a stream of its own; the trainer's stream waits for the copy, nobody else does."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def stream(self) -> AbstractContextManager[object]:
        """One for all pixels, copies and colors: the event that ``send`` records comes after them. Also sets the current device."""
        return torch.cuda.stream(self._stream)

    def stage(self, pixels: torch.Tensor) -> torch.Tensor:
        """Copied from pageable memory, which blocks this thread but nobody else, so the buffer is free again on return."""
        return pixels.to(self.device)

    def send(self, batch: Any) -> Any:
        """Pinned first (a copy from pageable memory would block), then copied; the event marks the end of the copy."""
        # Around the pinning, too: it would make a context on GPU 0 from this thread
        with self.stream():
            pinned = map_tensors(
                batch, lambda tensor: tensor if tensor.is_cuda else tensor.pin_memory()
            )
            copied = map_tensors(pinned, lambda tensor: tensor.to(self.device, non_blocking=True))
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        # Pinned lives until receive; after that torch keeps it until the copy has read it
        return (copied, event, pinned)

    def receive(self, sent: Any) -> Any:
        """Makes the current stream wait for the copy, and keeps the memory until that stream is done with it."""
        copied, event, _ = sent
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(event)
        map_tensors(copied, lambda tensor: tensor.record_stream(stream))
        return copied


class CudaOutputLease:
    """DALI's outputs to torch: its buffers are freed on DALI's stream, not on ours, so they are kept until ours has read them."""

    def __init__(self) -> None:
        self._held: deque[tuple[Any, object]] = deque()

    def take(self, pipeline: Any) -> Any:
        """The current stream waits for DALI, the host does not; whatever this thread queues next comes after the decoding."""
        return pipeline.share_outputs(torch.cuda.current_stream())

    def hold(self, *things: object) -> None:
        """Called after the copy was queued: the event comes behind it, and ``things`` go when the event has passed."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()  # on the current stream, which the copy is on
        self._held.append((event, things))
        # A consumer that lags: wait, or DALI's memory would grow without end
        while len(self._held) > LEASES:
            self._held[0][0].synchronize()
            self._held.popleft()
        while self._held and self._held[0][0].query():
            self._held.popleft()


class StageEvents:
    """Stage times by the GPU's own clock (fastload._tools.monitor.clocks.StageClock). Events are read once they have passed."""

    def __init__(self) -> None:
        # None = end of a step
        self._line: deque[tuple[str, torch.cuda.Event, torch.cuda.Event] | None] = deque()
        self._free: list[torch.cuda.Event] = []

    def begin(self) -> object:
        """Marks the current stream; the kernels of the stage come behind it."""
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def end(self, name: str, begun: object, /) -> None:
        """The second mark, on the stream that is current now."""
        if isinstance(begun, torch.cuda.Event):
            self._line.append((name, begun, self.begin()))  # type: ignore[arg-type]

    def step_ended(self) -> None:
        """What stands in the line since the last step belongs to this one."""
        self._line.append(None)

    def step_dropped(self) -> None:
        """Takes the stages of a step that does not end out of the line again."""
        while self._line and self._line[-1] is not None:
            self._line.pop()

    def collect(self) -> tuple[int, dict[str, float]]:
        """Whole steps whose last event has passed. query() asks, it does not wait; elapsed_time is in milliseconds."""
        steps = 0
        totals = dict[str, float]()
        for _ in range(self._passed()):
            item = self._line.popleft()
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
            elif not item[2].query():  # type: ignore[no-untyped-call]
                break
        return whole


def in_use() -> bool:
    """The program has begun to use a GPU. Asking does not start CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def device_and_name() -> tuple[str, str]:
    """("cuda:0", "NVIDIA ...") of the current device."""
    index = torch.cuda.current_device()
    return f"cuda:{index}", torch.cuda.get_device_name(index)


def all_names() -> str:
    """How many GPUs, and the first one's name: "4 x NVIDIA ..."."""
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"


def wait() -> None:
    """Until all that was queued on the current device is done."""
    torch.cuda.synchronize()


def pin_and_copy_s(batch: Any, rounds: int = 3) -> tuple[float, float]:
    """Seconds to pin a batch, and to copy it from pinned memory; the quickest round, since the first one also makes the memory."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        pinned = map_tensors(batch, torch.Tensor.pin_memory)
        between = time.perf_counter()
        map_tensors(pinned, lambda tensor: tensor.to("cuda", non_blocking=True))
        wait()  # the copies were only queued
        times.append((between - began, time.perf_counter() - between))
    return min(pin for pin, _ in times), min(copy for _, copy in times)


def random_states() -> list[torch.Tensor]:
    """Of every GPU's generator."""
    return torch.cuda.get_rng_state_all()


def restore_random(states: list[torch.Tensor]) -> None:
    """Puts them back."""
    torch.cuda.set_rng_state_all(states)


def allocated_mb() -> float:
    """MiB that tensors take on the current device; the allocator's own count, the GPU is not asked."""
    return round(torch.cuda.memory_allocated() / 2**20, 1)


class CudaDecodeStream:
    """The stream that nvImageCodec decodes on and the fused kernel runs on (`fastload._decode.gpu.nvimgcodec.DecodeStream`).

    The JPEG engine writes its output at once, whatever is queued on the stream it was given (seen on H100: torchcodec #1634). So the host
    waits (``synchronize``) before every decode, and again before the buffers are used anew or the output is anybody else's.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.decode_arguments = {"cuda_stream": int(self._stream.cuda_stream)}

    def mark(self) -> object:
        """In the feeder's thread, after the output was allocated: what still uses that memory is queued before this event."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def after(self, point: Any) -> Iterator[None]:
        """Waits for ``point`` first: the kernel writes an output that others may have used until then."""
        if point is not None:
            self._stream.wait_event(point)
        # Also sets the current device, in a thread that has none yet
        with torch.cuda.stream(self._stream):
            yield

    def synchronize(self) -> None:
        """Events would not do: they order streams, and the engine is in none."""
        self._stream.synchronize()

    def memory(self, address: int, n_bytes: int) -> torch.Tensor:
        """Not by dlpack: the image still has the shape of the picture before."""
        return torch.as_tensor(_DeviceBytes(address, n_bytes), device=self._device)


class _DeviceBytes:
    """Bytes of a buffer that is not torch's, in the words that torch understands; version 2, so that no stream is waited for."""

    def __init__(self, address: int, n_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (n_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 2,
        }


# What `fastload selftest` needs of a GPU.


def sums_that_changed(decode: Callable[[], object], device: torch.device, trials: int) -> int:
    """How often a sum over a tensor is wrong because a decode wrote into its memory before its turn."""
    wrong = 0
    with torch.cuda.device(device):
        for trial in range(trials):
            victim = torch.full((64 << 20,), trial % 251, dtype=torch.uint8, device=device)
            torch.cuda.synchronize(device)  # the value is there; what follows only reads it
            torch.cuda._sleep(100_000_000)  # type: ignore[no-untyped-call] # some 50 ms: the sum below waits behind it
            total = victim.sum(dtype=torch.int64)
            del victim  # torch may give its memory away now: for work queued behind the sum
            decode()  # whoever ignores the queue writes into it before the sum has run
            wrong += int(total.item()) != (64 << 20) * (trial % 251)
    return wrong


def checksums(loader: Any, device: torch.device, *, behind: int) -> list[int]:
    """A sum over each batch, taken by a stream that is ``behind`` batches late; 0: it waits for each."""
    totals = []
    for number, batch in enumerate(loader):
        (name,) = (each for each in batch if each != "id")
        if behind and number % behind == 0:
            torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call] # on the consumer's stream: batches go on arriving meanwhile
        pixels = batch[name]
        weights = torch.arange(1, pixels.numel() + 1, device=device) % 65_521
        # Queued, not read: the batch is dropped before it has run
        totals.append((pixels.flatten().long() * weights).sum())
        if not behind:
            torch.cuda.synchronize(device)
    loader.close()
    return [int(total.item()) for total in totals]


def uuid_of(device: torch.device) -> str:
    """The GPU's UUID: torch and NVML number GPUs differently."""
    return "GPU-" + str(torch.cuda.get_device_properties(device).uuid)


def utilization(device: torch.device) -> dict[str, int]:
    """Per cent of time in which kernels ran, and the JPEG engine; what NVML does not tell is left out."""
    gpu, _ = open_gpu(uuid_of(device))
    if gpu is None:
        return {}
    found = {"gpu_percent": gpu.number("util"), "jpeg_engine_percent": gpu.number("jpeg")}
    close_gpus()
    return {name: int(value) for name, value in found.items() if value is not None}
