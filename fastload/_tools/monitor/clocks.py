"""Clocks and counters of the step probe: stage times, swap traffic, and whether CUDA is in use.

Stage times use the CPU clock here. ``fastload._common.cuda.StageEvents`` times stages on a GPU.
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from types import ModuleType

clock = time.perf_counter
_SWAPPED = re.compile(rb"^pswp(in|out) (\d+)$", re.M)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class StageClock(Protocol):
    """Sums the stage times of each step and returns the sums of completed steps."""

    def begin(self) -> object:
        """Starts a stage and returns a token for ``end``."""

    def end(self, name: str, begun: object, /) -> None:
        """Ends the stage that ``begin`` started."""

    def step_ended(self) -> None:
        """Assigns the stages since the previous step to the step that just ended."""

    def step_dropped(self) -> None:
        """Discards the stages since the previous step, because the loop was left early."""

    def collect(self) -> tuple[int, dict[str, float]]:
        """Returns (steps, total seconds by stage) since the previous call.

        A GPU reports its latest steps in a later call.
        """


class HostStages:
    """Stage times by the CPU clock."""

    def __init__(self) -> None:
        self._steps = 0
        self._totals: dict[str, float] = {}
        self._open: dict[str, float] = {}

    def begin(self) -> object:
        return clock()

    def end(self, name: str, begun: object, /) -> None:
        if isinstance(begun, float):
            self._open[name] = self._open.get(name, 0.0) + clock() - begun

    def step_ended(self) -> None:
        self._steps += 1
        for name, seconds in self._open.items():
            self._totals[name] = self._totals.get(name, 0.0) + seconds
        self._open.clear()

    def step_dropped(self) -> None:
        self._open.clear()

    def collect(self) -> tuple[int, dict[str, float]]:
        collected = self._steps, self._totals
        self._steps = 0
        self._totals = {}
        return collected


def imported_torch() -> ModuleType | None:
    """Returns torch if the program has imported it. The probe never imports it."""
    return sys.modules.get("torch")


def cuda_in_use() -> ModuleType | None:
    """Returns ``fastload._common.cuda`` if the program has initialized CUDA, else None.

    It neither imports torch nor initializes CUDA.
    """
    if imported_torch() is None:
        return None
    from fastload._common import cuda

    return cuda if cuda.in_use() else None


def swapped_bytes() -> tuple[int, int] | None:
    """Returns the bytes swapped (in, out) since boot, or None if the system has no such counter.

    One call takes 40 us because /proc/vmstat is long.
    """
    try:
        descriptor = os.open("/proc/vmstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # not Linux
        return None
    try:
        counters = {
            name: int(count) * _PAGE_BYTES
            for name, count in _SWAPPED.findall(os.read(descriptor, 1 << 16))
        }
    finally:
        os.close(descriptor)
    return (counters[b"in"], counters[b"out"]) if len(counters) == 2 else None
