"""The decode backend of a loader, and the reason why it was chosen."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from fastload._common.native import native_status
from fastload._common.public import public
from fastload._decode.backend import DecodeBackend, DecodeBatch, DecodeResult, Ticket
from fastload._decode.registry import AUTO, default_cpu_backend, find_backend

_CPU = torch.device("cpu")


@public()
@dataclass(frozen=True, slots=True)
class BackendChoice:
    """The decode backend of a loader (``loader.backend``). True if it is a fallback.

    Attributes:
        name: The backend that decodes.
        requested: The ``backend`` argument of the loader.
        reason: Why ``name`` replaces ``requested``; empty if it does not.
        hardware: Whether the JPEG engine of the GPU decodes.
        measured: The measurements in one line, for ``backend="auto"`` on a GPU.

    Examples:
        >>> loader = fastload.DataLoader("data/train", batch_size=256)
        >>> if loader.backend:
        ...     print(f"slower than expected: {loader.backend}")
    """

    name: str
    requested: str
    reason: str
    hardware: bool = False
    measured: str = ""

    def __bool__(self) -> bool:
        return bool(self.reason)

    def __str__(self) -> str:
        name = self.name + " with the JPEG engine" * self.hardware
        if self.reason:
            return f"{name} instead of {self.requested}: {self.reason}"
        return f"{name}: {self.measured}" if self.measured else name


def choose_without_measuring(requested: str) -> BackendChoice:
    """Returns the requested backend; for "auto", the default CPU backend."""
    if requested != AUTO:
        return BackendChoice(find_backend(requested).name, requested, "")
    status = native_status()
    return BackendChoice(default_cpu_backend().name, requested, "" if status else str(status))


class Decoder:
    """A decode backend that can be pickled and that works in a forked child.

    In another process, the same data is decoded on the CPU.

    Args:
        requested: Name of a backend, or "auto".
        threads: Initial number of decode threads.
        budget: Maximum number of decode threads.
        device: Device of the delivered batches.
        choice: The result of a measurement; None to choose without measuring.
    """

    def __init__(
        self,
        requested: str,
        *,
        threads: int,
        budget: int,
        device: torch.device = _CPU,
        choice: BackendChoice | None = None,
    ) -> None:
        self.choice = choose_without_measuring(requested) if choice is None else choice
        self.budget = budget
        self._device = device
        self._pid = os.getpid()
        self._backend = self._make(threads)

    def _make(self, threads: int) -> DecodeBackend:
        entry = find_backend(self.choice.name)
        return entry.make(
            threads=threads if entry.load().adjustable_threads else self.budget,
            device=self._device,
            hardware=self.choice.hardware,
        )

    @property
    def backend(self) -> DecodeBackend:
        """The backend of this process. A forked child, which has no threads, makes its own."""
        if self._pid != os.getpid() and not self._backend.survives_fork:
            _parents_backends.append(self._backend)
            self.choice = choose_without_measuring(self._requested_in_child())
            self._device = _CPU
            self._backend = self._make(self.budget)
            self._pid = os.getpid()
        return self._backend

    def _requested_in_child(self) -> str:
        # GPU backends run only in the process of the loader.
        return AUTO if find_backend(self.choice.name).on_gpu else self.choice.requested

    @property
    def device(self) -> torch.device:
        """The device that the backend writes pixels to."""
        return self.backend.device

    @property
    def threads(self) -> int:
        """Number of decode threads. Setting it has no effect if the backend's number is fixed."""
        return self._backend.threads if self._backend.adjustable_threads else self.budget

    @threads.setter
    def threads(self, n: int) -> None:
        if self._backend.adjustable_threads:
            self._backend.threads = n

    def submit(self, batch: DecodeBatch) -> Ticket:
        return self.backend.submit(batch)

    def collect(self, ticket: Ticket) -> DecodeResult:
        return self.backend.collect(ticket)

    def done(self, ticket: Ticket) -> bool:
        return self._backend.done(ticket)

    def unfinished(self, ticket: Ticket) -> list[int]:
        return self._backend.unfinished(ticket)

    def on_cpu(self) -> Decoder:
        """Returns a new decoder for CPU tensors."""
        return _remake(self._requested_in_child(), self.threads, self.budget)

    def close(self) -> None:
        """Stops the decode threads."""
        self._backend.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _remake, (self._requested_in_child(), self.threads, self.budget)


# Backends of the parent process, in a forked child. Their destructors would wait for threads that
# do not exist in the child.
_parents_backends: list[DecodeBackend] = []


def _remake(requested: str, threads: int, budget: int) -> Decoder:
    return Decoder(requested, threads=threads, budget=budget)
