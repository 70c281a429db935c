"""What the machine does beside the GPU: processors, memory, swap, disks, network, and a process with its children."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from fastload._common.swap import swapped_bytes

_LOOK_FOR_CHILDREN_S = 1.0  # goes through all of /proc
_STACKED = (
    "dm-",
    "md",
    "loop",
    "ram",
    "zram",
)  # their bytes are counted at the disks below, or are no disk's


@dataclass(frozen=True, slots=True)
class HostReading:
    """Rates since the reading before; None where the system does not tell."""

    cpu: list[float]  # % per core
    iowait: float | None  # % of all cores
    ram_used_mb: float
    swap_in_mb_s: float | None
    swap_out_mb_s: float | None
    disk_read_mb_s: float | None
    disk_write_mb_s: float | None
    net_mb_s: float | None  # in and out
    tree_cpu: float | None  # % of one core, of the processes watched
    tree_rss_mb: float | None


@dataclass(frozen=True, slots=True)
class _Counters:
    """All that only grows, at one moment."""

    at: float
    swap: tuple[int, int] | None
    disk: tuple[int, int] | None
    net: tuple[int, int] | None


class Host:
    """``read`` gives what happened since the last time it was called."""

    def __init__(self, pids: Sequence[int] = ()) -> None:
        self.tree = ProcessTree(pids)
        psutil.cpu_percent(percpu=True)  # from here on
        psutil.cpu_times_percent()
        self._before = _counters()

    def read(self) -> HostReading:
        """Now."""
        now, before = _counters(), self._before
        self._before = now
        seconds = max(now.at - before.at, 1e-3)
        swap, disk = _rates(now.swap, before.swap, seconds), _rates(now.disk, before.disk, seconds)
        net = _rates(now.net, before.net, seconds)
        tree_cpu, tree_rss = self.tree.read(seconds) or (None, None)
        return HostReading(
            [float(each) for each in psutil.cpu_percent(percpu=True)],
            getattr(psutil.cpu_times_percent(), "iowait", None),
            psutil.virtual_memory().used / 2**20,
            swap[0],
            swap[1],
            disk[0],
            disk[1],
            net[0],
            tree_cpu,
            tree_rss,
        )


class ProcessTree:
    """Processor time and memory of some processes and all their descendants; those that end just leave."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._roots: list[psutil.Process] = []
        self.missing: list[int] = []
        for pid in pids:
            try:
                self._roots.append(psutil.Process(pid))
            except psutil.Error:
                self.missing.append(pid)
        self._all: dict[int, psutil.Process] = {}
        self._times: dict[int, float] = {}
        self._looked = 0.0
        self.read(1.0)

    @property
    def alive(self) -> bool:
        """One of the processes named is still there."""
        for root in self._roots:
            with contextlib.suppress(psutil.Error):
                if root.is_running() and root.status() != psutil.STATUS_ZOMBIE:
                    return True
        return False

    def read(self, seconds: float) -> tuple[float, float] | None:
        """(% of one core, resident MiB), or None where no process was named."""
        if not self._roots:
            return None
        if time.monotonic() - self._looked > _LOOK_FOR_CHILDREN_S:
            self._look()
        times, used, rss = {}, 0.0, 0
        for pid, process in self._all.items():
            with contextlib.suppress(psutil.Error):
                spent = process.cpu_times()
                times[pid] = float(spent.user + spent.system)
                used += max(times[pid] - self._times.get(pid, times[pid]), 0.0)
                rss += int(process.memory_info().rss)
        self._times = times
        return 100 * used / seconds, rss / 2**20

    def _look(self) -> None:
        self._looked = time.monotonic()
        found = {}
        for root in self._roots:
            with contextlib.suppress(psutil.Error):
                for process in (root, *root.children(recursive=True)):
                    found[process.pid] = process
        self._all = found


def _counters() -> _Counters:
    return _Counters(time.monotonic(), swapped_bytes(), _disk_bytes(), _net_bytes())


def _disk_bytes() -> tuple[int, int] | None:
    """Read and written by whole disks, once each."""
    try:
        disks = psutil.disk_io_counters(perdisk=True) or {}
    except (OSError, RuntimeError, NotImplementedError):  # containers without /proc/diskstats
        return None
    whole = [
        each
        for name, each in disks.items()
        if not name.startswith(_STACKED) and Path("/sys/block", name).exists()
    ]
    return (
        (sum(each.read_bytes for each in whole), sum(each.write_bytes for each in whole))
        if whole
        else None
    )


def _net_bytes() -> tuple[int, int] | None:
    try:
        cards = psutil.net_io_counters(pernic=True) or {}
    except (OSError, RuntimeError):
        return None
    return sum(each.bytes_sent + each.bytes_recv for name, each in cards.items() if name != "lo"), 0


def _rates(
    now: tuple[int, int] | None, before: tuple[int, int] | None, seconds: float
) -> tuple[float | None, float | None]:
    """MB/s."""
    if now is None or before is None:
        return None, None
    return max(now[0] - before[0], 0) / seconds / 1e6, max(now[1] - before[1], 0) / seconds / 1e6
