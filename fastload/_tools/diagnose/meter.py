"""Wall time, processor time, and time in the queue for a core, of the calling thread; and what a batch cost in them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SCHEDSTAT = Path(
    "/proc/thread-self/schedstat"
)  # nanoseconds on a core, nanoseconds ready but waiting for one, turns


def queued_s() -> float:
    """Seconds that this thread was ready to run while all cores were busy; 0 where the kernel does not tell."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class Meter:
    """Counts from its making on. Without the queue, a busy machine would look like a slow disk."""

    def __init__(self) -> None:
        self._queued, self._cpu, self._wall = queued_s(), time.thread_time(), time.perf_counter()

    def read(self) -> tuple[float, float, float]:
        """Wall, processor and queue seconds."""
        wall, cpu = time.perf_counter() - self._wall, time.thread_time() - self._cpu
        return wall, cpu, min(queued_s() - self._queued, wall)


@dataclass(frozen=True, slots=True)
class Work:
    """What one batch cost where it was made."""

    items: int
    wall_s: float  # of all items, without collate
    cpu_s: float
    queued_s: float  # of the wall time: ready to run, but no core was free
    stages: Mapping[str, float]
    collate_s: float


def mean_of(works: Sequence[Work], size: int) -> Work:
    """A batch of ``size``, from all items together: some batches may have been cut short by the clock."""
    n = sum(each.items for each in works)
    scale = size / max(n, 1)
    names = {name for each in works for name in each.stages}
    return Work(
        size,
        scale * sum(each.wall_s for each in works),
        scale * sum(each.cpu_s for each in works),
        scale * sum(each.queued_s for each in works),
        {name: scale * sum(each.stages.get(name, 0.0) for each in works) for name in sorted(names)},
        scale * sum(each.collate_s for each in works),
    )
