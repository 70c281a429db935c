"""Reads GPUs and host in a thread, some ten times a second, and keeps every sample."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import psutil

from fastload._common.nvml import FAST, SLOW, Gpu
from fastload._tools.monitor.host import Host
from fastload._tools.monitor.series import energy, mean, summarise
from fastload._tools.monitor.window import GPU_SERIES, HOST_SERIES, GpuWindow, HostWindow, Series

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
        words = self.gpu.words("throttle")
        joules = self.gpu.number("energy_j")
        if joules is not None:
            self._joules[1:] = [joules]
        for name, values in self.series.items():
            value = numbers[name]
            values.append(None if value is None else round(value, 2))
        self.throttle.append(words)
        self.t.append(round(at, 4))  # last: whoever looks on takes its length

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
            summarise(self.t, self.series["util"], seconds=seconds, energy_j=joules),
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
        self.started, self._origin = time.time(), time.monotonic()
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
        number, host_every = 0, max(round(self.hz / _HOST_HZ), 1)
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
