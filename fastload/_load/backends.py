"""Which decoder a loader gets; what the user got instead of what was asked is an object he can print."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from fastload._common.native import native_status
from fastload._common.public import public
from fastload._decode.backend import DecodeBackend
from fastload.errors import ConfigError

BACKENDS = ("auto", "native", "dali", "nvjpeg", "reference")
ON_GPU = ("dali", "nvjpeg")  # decode on a CUDA device; on the CPU for tests
_CPU = torch.device("cpu")


@public()
@dataclass(frozen=True, slots=True)
class BackendChoice:
    """Which decoder runs and why; ``if loader.backend:`` reads "if it is not what was asked for"."""

    name: str  # one of BACKENDS but "auto"
    asked: str
    reason: str  # empty when the user got what was asked
    hardware: bool = False  # the GPU's JPEG engine decodes
    measured: str = ""  # "auto" on a GPU: what was measured, in one line

    def __bool__(self) -> bool:
        return bool(self.reason)

    def __str__(self) -> str:
        name = self.name + " with the JPEG engine" * self.hardware
        return name + (
            f" instead of {self.asked}: {self.reason}"
            if self.reason
            else f": {self.measured}"
            if self.measured
            else ""
        )


class Backend:
    """The decoder of one loader, with ``threads`` of at most ``budget`` threads at work. It pickles, and survives a fork.

    ``device`` is where batches end up. A copy in another process is on the CPU, whatever this one is.
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
        check_name(asked)
        self.choice, self._wanted = _chosen(asked) if choice is None else choice, device
        self.budget, self._pid = budget, os.getpid()
        self._decoder = self._new(threads)

    def _new(self, threads: int) -> DecodeBackend[Any]:
        name = self.choice.name
        if name in ON_GPU:
            return gpu_backend(
                name, threads=self.budget, device=self._wanted, hardware=self.choice.hardware
            )
        return cpu_backend(name, threads=threads if name == "native" else self.budget)

    @property
    def device(self) -> torch.device:
        """Where the decoder writes pixels."""
        return self.decoder.device

    @property
    def decoder(self) -> DecodeBackend[Any]:
        """What decodes, in this process: Python's threads and DALI's do not follow into a forked child, the native ones come back there."""
        if self._pid != os.getpid() and self.choice.name != "native":
            _parents.append(self._decoder)
            self.choice, self._wanted = (
                _chosen("auto") if self.choice.name in ON_GPU else self.choice,
                _CPU,
            )
            self._decoder, self._pid = self._new(self.budget), os.getpid()
        return self._decoder

    @property
    def threads(self) -> int:
        """Decode threads at work."""
        return int(getattr(self._decoder, "threads", self.budget))

    @threads.setter
    def threads(self, n: int) -> None:
        if self.choice.name == "native":
            self._decoder.threads = n  # type: ignore[attr-defined]

    def unfinished(self, ticket: Any) -> list[int]:
        """Slots of a batch that have no result yet, where the decoder can tell."""
        if self.choice.name == "native":
            return list(self._decoder.under_way(ticket))  # type: ignore[attr-defined]
        return [
            slot
            for slot, outcome in enumerate(getattr(ticket, "outcomes", ()))
            if not outcome.done()
        ]

    def on_cpu(self) -> Backend:
        """Its like for CPU tensors."""
        return _again(
            "auto" if self.choice.name in ON_GPU else self.choice.asked, self.threads, self.budget
        )

    def close(self) -> None:
        """Ends the threads."""
        self._decoder.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (
            "auto" if self.choice.name in ON_GPU else self.choice.asked,
            self.threads,
            self.budget,
        )


_parents: list[
    object
] = []  # in a forked child: the parent's decoders, kept: their ends would wait for threads that are not here


def check_name(asked: str) -> None:
    """Raises ConfigError for a backend that there is not."""
    if asked not in BACKENDS:
        raise ConfigError(f"backend={asked!r:.40}: expected one of {', '.join(BACKENDS)}")


def _again(asked: str, threads: int, budget: int) -> Backend:
    return Backend(asked, threads=threads, budget=budget)


def _chosen(asked: str) -> BackendChoice:
    status = native_status()
    name = asked if asked != "auto" else "native" if status else "reference"
    return BackendChoice(name, asked, "" if name in (asked, "native") else str(status))


def cpu_backend(name: str, *, threads: int) -> DecodeBackend[Any]:
    """``native`` or ``reference``."""
    if name == "native":
        from fastload._decode.native import NativeBackend

        return NativeBackend(threads=threads)
    from fastload._decode.reference import ReferenceBackend

    return ReferenceBackend(threads=threads)


def gpu_backend(
    name: str, *, threads: int, device: torch.device | str, hardware: bool = False
) -> DecodeBackend[Any]:
    """``dali`` or ``nvjpeg``; raises MissingPart where its packages or what they need are not here. ``hardware``: the JPEG engine."""
    if name == "dali":
        from fastload._decode.gpu.dali import DaliBackend

        return DaliBackend(threads=threads, device=device, hardware=hardware)
    from fastload._decode.gpu.nvjpeg import NvjpegBackend

    return NvjpegBackend(threads=threads, device=device, hardware=hardware)
