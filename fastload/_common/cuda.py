"""All code that only a GPU can run.

No GPU has run this module yet (see docs/gpu.md). It is therefore small, and comments state the
reason for the order of each step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from fastload._common.nested import map_tensors
from fastload._common.nvml import close_gpus, open_gpu

LEASES = 4  # DALI outputs kept at most for a GPU that lags


def numbered(device: torch.device) -> torch.device:
    """Adds the current index to "cuda", which in the feeder thread would always be GPU 0."""
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device


def name_of(device: torch.device) -> str:
    """Returns the name from the driver; for a slice of a GPU it contains "MIG"."""
    return torch.cuda.get_device_name(device)


class CudaTransfer:
    """Copies batches on a separate stream. Only the trainer's stream waits for the copy."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def stream(self) -> AbstractContextManager[object]:
        """Returns the stream for all pixels, copies and color operations; sets the current device.

        The event that ``send`` records on it therefore follows all of them.
        """
        return torch.cuda.stream(self._stream)

    def stage(self, pixels: torch.Tensor) -> torch.Tensor:
        """Copies from pageable memory.

        This blocks only this thread; the buffer is free on return.
        """
        return pixels.to(self.device)

    def send(self, batch: Any) -> Any:
        """Pins a batch, because copying pageable memory blocks, then starts the copy.

        The event in the result marks the end of the copy.
        """
        # The stream also covers pinning, which would otherwise create a context on GPU 0.
        with self.stream():
            pinned = map_tensors(
                batch, lambda tensor: tensor if tensor.is_cuda else tensor.pin_memory()
            )
            copied = map_tensors(pinned, lambda tensor: tensor.to(self.device, non_blocking=True))
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        # `pinned` lives until `receive`. After that, torch keeps the memory until the copy ends.
        return (copied, event, pinned)

    def receive(self, sent: Any) -> Any:
        """Makes the current stream wait for the copy and own the memory until it has used it."""
        copied, event, _ = sent
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(event)
        map_tensors(copied, lambda tensor: tensor.record_stream(stream))
        return copied


class CudaOutputLease:
    """Keeps DALI's outputs until torch's stream has read them.

    DALI frees buffers on its own stream, without waiting for torch's.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[Any, object]] = deque()

    def take(self, pipeline: Any) -> Any:
        """Returns the outputs. The current stream waits for DALI; the host does not.

        Work that this thread queues next runs after decoding.
        """
        return pipeline.share_outputs(torch.cuda.current_stream())

    def hold(self, *things: object) -> None:
        """Keeps ``things`` until the copy has finished; call it after queueing the copy."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()  # on the current stream, after the copy
        self._held.append((event, things))
        # Wait for a slow consumer; otherwise DALI's memory would grow without limit.
        while len(self._held) > LEASES:
            self._held[0][0].synchronize()
            self._held.popleft()
        while self._held and self._held[0][0].query():
            self._held.popleft()


class StageEvents:
    """Measures stage times with GPU events, for ``fastload._tools.monitor.recorder.StageClock``.

    Events are read only after the GPU has reached them.
    """

    def __init__(self) -> None:
        # None = end of a step
        self._line: deque[tuple[str, torch.cuda.Event, torch.cuda.Event] | None] = deque()
        self._free: list[torch.cuda.Event] = []

    def begin(self) -> object:
        """Records the start of a stage on the current stream."""
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def end(self, name: str, begun: object, /) -> None:
        if isinstance(begun, torch.cuda.Event):
            self._line.append((name, begun, self.begin()))  # type: ignore[arg-type]

    def step_ended(self) -> None:
        """Assigns all stages since the last call to one step."""
        self._line.append(None)

    def step_dropped(self) -> None:
        """Removes the stages of a step that did not end."""
        while self._line and self._line[-1] is not None:
            self._line.pop()

    def collect(self) -> tuple[int, dict[str, float]]:
        """Returns the number of finished steps and the total seconds per stage; does not wait."""
        steps = 0
        totals = dict[str, float]()
        for _ in range(self._passed()):
            item = self._line.popleft()
            if item is None:
                steps += 1
                continue
            name, begun, ended = item
            totals[name] = totals.get(name, 0.0) + begun.elapsed_time(ended) / 1e3  # from ms
            self._free += (begun, ended)
        return steps, totals

    def _passed(self) -> int:
        """Returns how many items at the front belong to steps that the GPU has finished."""
        whole = 0
        for place, item in enumerate(self._line):
            if item is None:
                whole = place + 1
            elif not item[2].query():  # type: ignore[no-untyped-call]
                break
        return whole


def in_use() -> bool:
    """Returns True if the program already uses a GPU; does not initialize CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def device_and_name() -> tuple[str, str]:
    """Returns ("cuda:0", "NVIDIA ...") for the current device."""
    index = torch.cuda.current_device()
    return f"cuda:{index}", torch.cuda.get_device_name(index)


def all_names() -> str:
    """Returns the number of GPUs and the name of the first: "4 x NVIDIA ..."."""
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"


def wait() -> None:
    """Waits for all work queued on the current device."""
    torch.cuda.synchronize()


def pin_and_copy_s(batch: Any, rounds: int = 3) -> tuple[float, float]:
    """Returns the seconds to pin a batch and to copy it from pinned memory.

    The fastest round counts, because the first one also allocates memory.
    """
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        pinned = map_tensors(batch, torch.Tensor.pin_memory)
        between = time.perf_counter()
        map_tensors(pinned, lambda tensor: tensor.to("cuda", non_blocking=True))
        wait()  # the copies were only queued
        times.append((between - began, time.perf_counter() - between))
    return min(pin for pin, _ in times), min(copy for _, copy in times)


def generators() -> tuple[torch.Generator, ...]:
    """Returns the default random generators of all GPUs; () if the program uses no GPU."""
    return tuple(torch.cuda.default_generators) if in_use() else ()


def allocated_mb() -> float:
    """Returns the MiB of tensors on the current device, from the allocator's count."""
    return round(torch.cuda.memory_allocated() / 2**20, 1)


class CudaDecodeStream:
    """The stream of nvImageCodec and the fused kernel.

    It implements ``fastload._decode.gpu.nvimgcodec.DecodeStream``.

    The JPEG engine writes its output immediately and ignores other work on its stream (observed on
    H100: torchcodec #1634). The host therefore calls ``synchronize`` before every decode, and again
    before the buffers are reused or the output is handed over.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.decode_arguments = {"cuda_stream": int(self._stream.cuda_stream)}

    def mark(self) -> object:
        """Records an event in the feeder thread after the output was allocated.

        Work that still uses that memory is queued before this event.
        """
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def after(self, point: Any) -> Iterator[None]:
        """Makes the stream wait for ``point``, because earlier work may still use the output."""
        if point is not None:
            self._stream.wait_event(point)
        # Also sets the current device in a thread that has none yet.
        with torch.cuda.stream(self._stream):
            yield

    def synchronize(self) -> None:
        """Waits for the stream. Events are not sufficient: the engine does not run on a stream."""
        self._stream.synchronize()

    def memory(self, address: int, n_bytes: int) -> torch.Tensor:
        """Returns a tensor for device memory.

        DLPack would report the shape of the previous image.
        """
        return torch.as_tensor(_DeviceBytes(address, n_bytes), device=self._device)


class _DeviceBytes:
    """Device memory as a CUDA array interface; version 2, so that torch waits for no stream."""

    def __init__(self, address: int, n_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (n_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 2,
        }


# Functions for `fastload selftest`.


def sums_that_changed(decode: Callable[[], object], device: torch.device, trials: int) -> int:
    """Counts how often a sum is wrong because a decode overwrote the tensor too early."""
    wrong = 0
    with torch.cuda.device(device):
        for trial in range(trials):
            victim = torch.full((64 << 20,), trial % 251, dtype=torch.uint8, device=device)
            torch.cuda.synchronize(device)  # the tensor is filled; the code below only reads it
            # About 50 ms, which delay the sum below.
            torch.cuda._sleep(100_000_000)  # type: ignore[no-untyped-call]
            total = victim.sum(dtype=torch.int64)
            del victim  # torch may reuse its memory for work that is queued after the sum
            decode()  # a decoder that ignores the queue overwrites it before the sum has run
            wrong += int(total.item()) != (64 << 20) * (trial % 251)
    return wrong


def checksums(loader: Any, device: torch.device, *, lag: int) -> list[int]:
    """Returns a checksum per batch, computed on a stream that lags ``lag`` batches; 0 = no lag."""
    totals = []
    for number, batch in enumerate(loader):
        (name,) = (each for each in batch if each != "id")
        if lag and number % lag == 0:
            # On the consumer's stream; batches keep arriving meanwhile.
            torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]
        pixels = batch[name]
        weights = torch.arange(1, pixels.numel() + 1, device=device) % 65_521
        # Only queued: the batch is dropped before the sum has run.
        totals.append((pixels.flatten().long() * weights).sum())
        if not lag:
            torch.cuda.synchronize(device)
    loader.close()
    return [int(total.item()) for total in totals]


def uuid_of(device: torch.device) -> str:
    """Returns the UUID of a GPU, because torch and NVML number GPUs differently."""
    return "GPU-" + str(torch.cuda.get_device_properties(device).uuid)


def utilization(device: torch.device) -> dict[str, int]:
    """Returns the utilization of the GPU and its JPEG engine in percent, where NVML reports it."""
    gpu, _ = open_gpu(uuid_of(device))
    if gpu is None:
        return {}
    found = {"gpu_percent": gpu.number("util"), "jpeg_engine_percent": gpu.number("jpeg")}
    close_gpus()
    return {name: int(value) for name, value in found.items() if value is not None}
