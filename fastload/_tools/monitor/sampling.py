"""Reads GPUs and host in background threads, about ten times per second, and keeps every sample."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from fastload._common.nvml import FAST, SLOW, Gpu
from fastload._tools.monitor.window import (
    GPU_SERIES,
    HOST_SERIES,
    GpuWindow,
    HostWindow,
    Series,
    energy,
    mean,
    summarize,
)

_HOST_HZ = 5.0
_PCIE_S = 1.0
_SCAN_CHILDREN_S = 1.0  # a scan reads all of /proc
# The bytes of these devices are counted at the disks below them, or belong to no disk.
_VIRTUAL_DISKS = ("dm-", "md", "loop", "ram", "zram")


class ProcessTree:
    """CPU time and memory of processes and their descendants. Processes may end at any time."""

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
        """Whether at least one of the given processes is running."""
        for root in self._roots:
            with contextlib.suppress(psutil.Error):
                if root.is_running() and root.status() != psutil.STATUS_ZOMBIE:
                    return True
        return False

    def read(self, seconds: float) -> tuple[float, float] | None:
        """Returns (percent of one core, resident MiB), or None without processes."""
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
        self._all = {}
        for root in self._roots:
            with contextlib.suppress(psutil.Error):
                processes = (root, *root.children(recursive=True))
                self._all |= {process.pid: process for process in processes}


def _byte_counters() -> dict[str, int]:
    """Returns the known bytes since boot. The keys are the rates in ``HOST_SERIES``."""
    swap = psutil.swap_memory()
    return {
        "swap_in_mb_s": swap.sin,
        "swap_out_mb_s": swap.sout,
        **_disk_bytes(),
        **_net_bytes(),
    }


def _disk_bytes() -> dict[str, int]:
    """Counts whole disks only, because a partition would count again."""
    try:
        disks = psutil.disk_io_counters(perdisk=True) or {}
    except (OSError, RuntimeError, NotImplementedError):  # a container without /proc/diskstats
        return {}
    whole = [
        each
        for name, each in disks.items()
        if not name.startswith(_VIRTUAL_DISKS) and Path("/sys/block", name).exists()
    ]
    if not whole:
        return {}
    return {
        "disk_read_mb_s": sum(each.read_bytes for each in whole),
        "disk_write_mb_s": sum(each.write_bytes for each in whole),
    }


def _net_bytes() -> dict[str, int]:
    """Counts all interfaces but the loopback."""
    cards = psutil.net_io_counters(pernic=True)
    return {
        "net_mb_s": sum(
            each.bytes_sent + each.bytes_recv for name, each in cards.items() if name != "lo"
        )
    }


class GpuSamples:
    """Samples of one GPU so far."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.t: list[float] = []
        self.series: dict[str, Series] = {name: [] for name in GPU_SERIES}
        self.throttle: list[list[str] | None] = []
        self.slow: dict[str, float | None] = dict.fromkeys(SLOW)
        self._joules: list[float] = []  # the energy counter at the first and at the last sample

    def read(self, at: float) -> None:
        """Takes one sample. PCIe values are the latest that the slow thread has read."""
        numbers = {name: self.gpu.number(name) for name in FAST if name != "throttle"} | self.slow
        reasons = self.gpu.strings("throttle")
        joules = self.gpu.number("energy_j")
        if joules is not None:
            self._joules[1:] = [joules]
        for name, values in self.series.items():
            value = numbers[name]
            values.append(None if value is None else round(value, 2))
        self.throttle.append(reasons)
        # Must be last: other threads use the length of ``t`` to slice the series.
        self.t.append(round(at, 4))

    def read_slow(self) -> None:
        """Reads the PCIe counters, which takes 20 ms each."""
        self.slow = {name: self.gpu.number(name) for name in SLOW}

    def window(self, seconds: float) -> GpuWindow:
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
    """Samples of the host so far. Rates are relative to the previous sample."""

    def __init__(self, pids: Sequence[int] = ()) -> None:
        self.tree = ProcessTree(pids)
        self.t: list[float] = []
        self.cpu: list[list[float]] = []
        self.series: dict[str, Series] = {name: [] for name in HOST_SERIES}
        # psutil reports percentages since the previous call. These calls start the first period.
        psutil.cpu_percent(percpu=True)
        psutil.cpu_times_percent()
        self._read_at = time.monotonic()
        self._counters = _byte_counters()

    def read(self, at: float) -> None:
        """Takes one sample."""
        now = time.monotonic()
        seconds = max(now - self._read_at, 1e-3)
        before, self._counters = self._counters, _byte_counters()
        self._read_at = now
        tree_cpu, tree_rss = self.tree.read(seconds) or (None, None)
        numbers: dict[str, float | None] = {
            **dict.fromkeys(HOST_SERIES),
            "iowait": psutil.cpu_times_percent().iowait,
            "ram_used_mb": psutil.virtual_memory().used / 2**20,
            "tree_cpu": tree_cpu,
            "tree_rss_mb": tree_rss,
        }
        numbers |= {
            name: max(count - before[name], 0) / seconds / 1e6
            for name, count in self._counters.items()
            if name in before
        }
        self.cpu.append([float(each) for each in psutil.cpu_percent(percpu=True)])
        for name, values in self.series.items():
            value = numbers[name]
            values.append(None if value is None else round(value, 3))
        self.t.append(round(at, 4))

    def window(self) -> HostWindow:
        cores = [sum(each) / len(each) for each in self.cpu if each]
        means = {name: mean(values) for name, values in self.series.items()}
        return HostWindow(self.t, self.cpu, self.series, {"cpu": mean(cores)} | means)


class Sampler:
    """A context in which ``gpus`` and ``host`` collect samples."""

    def __init__(self, gpus: Sequence[Gpu], pids: Sequence[int], *, hz: float) -> None:
        self.hz = hz
        self.gpus = [GpuSamples(gpu) for gpu in gpus]
        self.host = HostSamples(pids)
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
        """Blocks until ``until`` seconds after the start."""
        while not self._stop.is_set() and (left := until - self.elapsed) > 0:
            self._stop.wait(left)

    def _sample(self) -> None:
        number = 0
        host_every = max(round(self.hz / _HOST_HZ), 1)
        while not self._stop.is_set():
            for gpu in self.gpus:
                gpu.read(self.elapsed)
            number += 1
            if number % host_every == 0:  # never for the first sample: rates need a period
                self._read_host()
            # Skip samples that are already due because the driver was slow.
            number = max(number, int(self.elapsed * self.hz))
            self._stop.wait(max(number / self.hz - self.elapsed, 0.0))

    def _read_host(self) -> None:
        try:
            self.host.read(self.elapsed)
        except (psutil.Error, OSError, RuntimeError, ValueError) as error:
            # This system lacks a file in /proc.
            note = f"host: cannot read the counters: {error!s:.200}"
            if note not in self.notes:
                self.notes.append(note)

    def _sample_slow(self) -> None:
        while not self._stop.is_set():
            for gpu in self.gpus:
                gpu.read_slow()
            self._stop.wait(_PCIE_S)
