"""Which decoder a loader gets; what the user got instead of what was asked is an object he can print."""

from __future__ import annotations

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


def choose_backend(asked: str, *, threads: int) -> tuple[BackendChoice, DecodeBackend[Any]]:
    """``auto``: the native core, or the reference path where it was not built."""
    if asked not in BACKENDS:
        raise ConfigError(f"backend={asked!r:.40}: expected one of {', '.join(BACKENDS)}")
    status = native_status()
    if asked == "native" or (asked == "auto" and status):
        from fastload.decode.native import NativeBackend

        return BackendChoice("native", asked, ""), NativeBackend(threads=threads)
    from fastload.decode.reference import ReferenceBackend

    reason = "" if asked == "reference" else str(status)
    return BackendChoice("reference", asked, reason), ReferenceBackend(threads=threads)
