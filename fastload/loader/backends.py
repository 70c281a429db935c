"""Which decoder a loader gets; what the user got instead of what was asked is an object he can print."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from fastload.decode.backend import DecodeBackend
from fastload.errors import ConfigError
from fastload.native import native_status

BACKENDS = ("auto", "native", "reference")


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """Which decoder runs and why; ``if loader.backend:`` reads "if it is not what was asked for"."""

    name: str           # "native", "reference"
    asked: str
    reason: str         # empty when the user got what was asked

    def __bool__(self) -> bool:
        return bool(self.reason)

    def __str__(self) -> str:
        return f"{self.name}" + (f" instead of {self.asked}: {self.reason}" if self.reason else "")


class Backend:
    """The decoder of one loader, with ``threads`` of at most ``budget`` threads at work. It pickles, and survives a fork."""

    def __init__(self, asked: str, *, threads: int, budget: int) -> None:
        if asked not in BACKENDS:
            raise ConfigError(f"backend={asked!r:.40}: expected one of {', '.join(BACKENDS)}")
        status = native_status()
        name = "native" if asked == "native" or (asked == "auto" and status) else "reference"
        self.choice = BackendChoice(name, asked, "" if name == "native" or asked == "reference" else str(status))
        self.budget, self._pid = budget, os.getpid()
        self._decoder = self._new(threads)

    def _new(self, threads: int) -> DecodeBackend[Any]:
        if self.choice.name == "native":
            from fastload.decode.native import NativeBackend

            return NativeBackend(threads=threads)
        from fastload.decode.reference import ReferenceBackend

        return ReferenceBackend(threads=self.budget)

    @property
    def decoder(self) -> DecodeBackend[Any]:
        """What decodes, in this process: Python's threads do not follow into a forked child, the native ones do that by themselves."""
        if self._pid != os.getpid() and self.choice.name != "native":
            self._decoder, self._pid = self._new(self.budget), os.getpid()
        return self._decoder

    @property
    def threads(self) -> int:
        """Decode threads at work."""
        return int(getattr(self._decoder, "threads", self.budget))

    @threads.setter
    def threads(self, n: int) -> None:
        if self.choice.name == "native":
            self._decoder.threads = n           # type: ignore[attr-defined]

    def unfinished(self, ticket: Any) -> list[int]:
        """Slots of a batch that have no result yet, where the decoder can tell."""
        return [slot for slot, outcome in enumerate(getattr(ticket, "outcomes", ())) if not outcome.done()]

    def close(self) -> None:
        """Ends the threads."""
        self._decoder.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self.choice.asked, self.threads, self.budget)


def _again(asked: str, threads: int, budget: int) -> Backend:
    return Backend(asked, threads=threads, budget=budget)
