"""The decode backend of one loader: which one runs and why, and a new one in every other process."""

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
    """Which backend decodes and why. True if it is not the one that the user asked for."""

    name: str
    asked: str  # what the user passed as ``backend``
    reason: str  # empty if the user got what they asked for
    hardware: bool = False  # the GPU's JPEG engine decodes
    measured: str = ""  # for "auto" on a GPU: the measurements, in one line

    def __bool__(self) -> bool:
        return bool(self.reason)

    def __str__(self) -> str:
        name = self.name + " with the JPEG engine" * self.hardware
        if self.reason:
            return f"{name} instead of {self.asked}: {self.reason}"
        return f"{name}: {self.measured}" if self.measured else name


def choose_without_measuring(asked: str) -> BackendChoice:
    """The backend asked for, or the default CPU backend for "auto"."""
    if asked != AUTO:
        return BackendChoice(find_backend(asked).name, asked, "")
    status = native_status()
    return BackendChoice(default_cpu_backend().name, asked, "" if status else str(status))


class Decoder:
    """A decode backend that can be pickled and that a forked child may use.

    At most ``budget`` threads decode, ``threads`` of them at first. ``device`` is where batches end
    up. In another process the same data are decoded on the CPU.
    """

    def __init__(
        self,
        asked: str,
        *,
        threads: int,
        budget: int,
        device: torch.device = _CPU,
        choice: BackendChoice | None = None,
    ) -> None:
        self.choice = choose_without_measuring(asked) if choice is None else choice
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
        """The backend of this process: most backends' threads do not exist in a forked child."""
        if self._pid != os.getpid() and not self._backend.survives_fork:
            _parents_backends.append(self._backend)
            self.choice = choose_without_measuring(self._asked_elsewhere())
            self._device = _CPU
            self._backend = self._make(self.budget)
            self._pid = os.getpid()
        return self._backend

    def _asked_elsewhere(self) -> str:
        """A GPU backend does not follow into another process."""
        return AUTO if find_backend(self.choice.name).on_gpu else self.choice.asked

    @property
    def device(self) -> torch.device:
        """Where the backend writes pixels."""
        return self.backend.device

    @property
    def threads(self) -> int:
        """Decode threads. Setting it does nothing if the backend's number is fixed."""
        return self._backend.threads if self._backend.adjustable_threads else self.budget

    @threads.setter
    def threads(self, n: int) -> None:
        if self._backend.adjustable_threads:
            self._backend.threads = n

    def submit(self, batch: DecodeBatch) -> Ticket:
        """See `DecodeBackend.submit`."""
        return self.backend.submit(batch)

    def collect(self, ticket: Ticket) -> DecodeResult:
        """See `DecodeBackend.collect`."""
        return self.backend.collect(ticket)

    def done(self, ticket: Ticket) -> bool:
        """See `DecodeBackend.done`."""
        return self._backend.done(ticket)

    def unfinished(self, ticket: Ticket) -> list[int]:
        """See `DecodeBackend.unfinished`."""
        return self._backend.unfinished(ticket)

    def on_cpu(self) -> Decoder:
        """A new decoder like this one, for CPU tensors."""
        return _remake(self._asked_elsewhere(), self.threads, self.budget)

    def close(self) -> None:
        """Ends the threads."""
        self._backend.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _remake, (self._asked_elsewhere(), self.threads, self.budget)


# In a forked child: the parent's backends. Destroying them would wait for threads that are not here.
_parents_backends: list[DecodeBackend] = []


def _remake(asked: str, threads: int, budget: int) -> Decoder:
    return Decoder(asked, threads=threads, budget=budget)
