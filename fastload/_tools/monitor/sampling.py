"""Reads GPUs and host in a thread, about ten times per second, and keeps every sample."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from fastload._common.nvml import FAST, SLOW, Gpu
from fastload._tools.monitor.clocks import swapped_bytes
from fastload._tools.monitor.series import energy, mean, summarize
from fastload._tools.monitor.window import GPU_SERIES, HOST_SERIES, GpuWindow, HostWindow, Series

_SCAN_CHILDREN_S = 1.0  # goes through all of /proc
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
        now = _counters()
        before = self._before
        self._before = now
        seconds = max(now.at - before.at, 1e-3)
        swap = _rates(now.swap, before.swap, seconds)
        disk = _rates(now.disk, before.disk, seconds)
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
        self._scanned = 0.0
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
        if time.monotonic() - self._scanned > _SCAN_CHILDREN_S:
            self._scan()
        times = {}
        used = 0.0
        rss = 0
        for pid, process in self._all.items():
            with contextlib.suppress(psutil.Error):
                spent = process.cpu_times()
                times[pid] = float(spent.user + spent.system)
                used += max(times[pid] - self._times.get(pid, times[pid]), 0.0)
                rss += int(process.memory_info().rss)
        self._times = times
        return 100 * used / seconds, rss / 2**20

    def _scan(self) -> None:
        self._scanned = time.monotonic()
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


_HOST_HZ = 5.0
_SLOW_S = 1.0  # PCIe counters


class GpuSamples:
    """What was read from one GPU so far."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.t: list[float] = []
        self.series: dict[str, Series] = {
            name: [] for name in GPU_SERIES if name not in ("t", "throttle")
        }
        self.throttle: list[list[str] | None] = []
        self.slow: dict[str, float | None] = dict.fromkeys(SLOW)
        self._joules: list[float] = []  # the counter at the first sample and at the last

    def read(self, at: float) -> None:
        """One sample. PCIe figures are the last that the slow thread has got."""
        numbers = {name: self.gpu.number(name) for name in FAST if name != "throttle"} | self.slow
        reasons = self.gpu.strings("throttle")
        joules = self.gpu.number("energy_j")
        if joules is not None:
            self._joules[1:] = [joules]
        for name, values in self.series.items():
            value = numbers[name]
            values.append(None if value is None else round(value, 2))
        self.throttle.append(reasons)
        self.t.append(round(at, 4))  # last: readers in other threads take its length

    def read_slow(self) -> None:
        """Takes 20 ms each."""
        self.slow = {name: self.gpu.number(name) for name in SLOW}

    def window(self, seconds: float) -> GpuWindow:
        """All of it, with its summary."""
        joules = (
            self._joules[1] - self._joules[0]
            if len(self._joules) > 1
            else energy(self.t, self.series["power_w"])
        )
        return GpuWindow(
            self.gpu.index,
            self.gpu.name,
            self.gpu.uuid,
            self.t,
            self.series,
            self.throttle,
            summarize(self.t, self.series["util"], seconds=seconds, energy_j=joules),
            self.gpu.mem_total_mb,
        )


class HostSamples:
    """What was read from the machine so far."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.t: list[float] = []
        self.cpu: list[list[float]] = []
        self.series: dict[str, Series] = {name: [] for name in HOST_SERIES[2:]}

    def read(self, at: float) -> None:
        """One sample."""
        reading = self.host.read()
        for name, values in self.series.items():
            value: float | None = getattr(reading, name)
            values.append(None if value is None else round(value, 3))
        self.cpu.append(reading.cpu)
        self.t.append(round(at, 4))

    def window(self) -> HostWindow:
        """All of it, with means."""
        cores = [sum(each) / len(each) for each in self.cpu if each]
        means = {name: mean(values) for name, values in self.series.items()}
        return HostWindow(self.t, self.cpu, self.series, {"cpu": mean(cores)} | means)


class Sampler:
    """A context in which GPUs and host are read; ``gpus`` and ``host`` grow meanwhile."""

    def __init__(self, gpus: Sequence[Gpu], pids: Sequence[int], *, hz: float) -> None:
        self.hz = hz
        self.gpus = [GpuSamples(gpu) for gpu in gpus]
        self.host = HostSamples(Host(pids))
        self.notes: list[str] = []
        self.started = time.time()
        self._origin = time.monotonic()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"fastload-monitor-{name}", daemon=True)
            for name, target in (("samples", self._sample), ("pcie", self._sample_slow))
        ]

    def __enter__(self) -> Sampler:
        self.started = time.time()
        self._origin = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._origin

    def wait(self, until: float) -> None:
        """Returns at ``until`` seconds after the start."""
        while not self._stop.is_set() and (left := until - self.elapsed) > 0:
            self._stop.wait(left)

    def _sample(self) -> None:
        number = 0
        host_every = max(round(self.hz / _HOST_HZ), 1)
        while not self._stop.is_set():
            for gpu in self.gpus:
                gpu.read(self.elapsed)
            number += 1
            if number % host_every == 0:  # not the first: rates need a time before
                self._read_host()
            # Behind, because a driver was slow: the lost samples are left out, not made up for.
            number = max(number, int(self.elapsed * self.hz))
            self._stop.wait(max(number / self.hz - self.elapsed, 0.0))

    def _read_host(self) -> None:
        try:
            self.host.read(self.elapsed)
        except (
            psutil.Error,
            OSError,
            RuntimeError,
            ValueError,
        ) as error:  # a file of /proc that this system has not
            note = f"host figures: {error!s:.200}"
            if note not in self.notes:
                self.notes.append(note)

    def _sample_slow(self) -> None:
        while not self._stop.is_set():
            for gpu in self.gpus:
                gpu.read_slow()
            self._stop.wait(_SLOW_S)
