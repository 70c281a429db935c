"""What the step probe reads: times of the stages of a step, swap counters, whether CUDA is in use.

Stage times are by the CPU clock here; on a GPU by its own (fastload/_common/cuda.py, StageEvents).
"""

from __future__ import annotations

import os
import re
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from types import ModuleType

clock = time.perf_counter
_SWAPPED = re.compile(rb"^pswp(in|out) (\d+)$", re.M)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class StageClock(Protocol):
    """Adds up the stages of each step, and hands out those of steps that are over."""

    def begin(self) -> object:
        """A stage starts; what this returns goes to ``end``."""

    def end(self, name: str, begun: object, /) -> None:
        """The stage is over."""

    def step_ended(self) -> None:
        """What was timed since the last step belongs to this one."""

    def step_dropped(self) -> None:
        """What was timed since the last step belongs to none: the loop was left in the middle of it."""

    def collect(self) -> tuple[int, dict[str, float]]:
        """(steps, seconds by stage in all of them), and forgets them. A GPU's last steps come later."""


class HostStages:
    """Stage times by the processor's clock."""

    def __init__(self) -> None:
        self._steps = 0
        self._totals: dict[str, float] = {}
        self._open: dict[str, float] = {}

    def begin(self) -> object:
        """Now."""
        return clock()

    def end(self, name: str, begun: object, /) -> None:
        """A stage entered twice in a step counts with both."""
        if isinstance(begun, float):
            self._open[name] = self._open.get(name, 0.0) + clock() - begun

    def step_ended(self) -> None:
        """The open stages are this step's."""
        self._steps += 1
        if self._open:
            for name, seconds in self._open.items():
                self._totals[name] = self._totals.get(name, 0.0) + seconds
            self._open.clear()

    def step_dropped(self) -> None:
        """The open stages belong to no step."""
        self._open.clear()

    def collect(self) -> tuple[int, dict[str, float]]:
        """Everything up to the last step."""
        steps = self._steps
        totals = self._totals
        self._steps = 0
        self._totals = {}
        return steps, totals


class Stage:
    """``with`` this the part of a step is timed. One for a name, made once: it costs two clock readings."""

    __slots__ = ("_begun", "_name", "_owner")

    def __init__(self, name: str, owner: HasStages) -> None:
        self._name = name
        self._owner = owner
        self._begun: object = None

    def __enter__(self) -> None:
        self._begun = self._owner.stages.begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            self._owner.stages.end(self._name, begun)


class HasStages(Protocol):
    """Who has a stage clock; it may be changed for another between two steps."""

    stages: StageClock


def torch_here() -> ModuleType | None:
    """torch, if the program uses it: a probe does not bring it in."""
    return sys.modules.get("torch")


def cuda_in_use() -> bool:
    """The program has begun to use a GPU; asking must not be what starts CUDA."""
    if torch_here() is None:
        return False
    from fastload._common.cuda import in_use

    return in_use()


def swapped_bytes() -> tuple[int, int] | None:
    """Bytes that this host has swapped (in, out) since it started, or None where the system does not tell. 40 us: /proc/vmstat is long."""
    try:
        descriptor = os.open("/proc/vmstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # not Linux
        return None
    try:
        found = {
            name: int(count) * _PAGE_BYTES
            for name, count in _SWAPPED.findall(os.read(descriptor, 1 << 16))
        }
    finally:
        os.close(descriptor)
    return (found[b"in"], found[b"out"]) if len(found) == 2 else None
