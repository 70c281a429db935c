"""Wall time, processor time, and time in the queue for a core, of the calling thread."""

from __future__ import annotations

import time
from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")        # nanoseconds on a core, nanoseconds ready but waiting for one, turns


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
