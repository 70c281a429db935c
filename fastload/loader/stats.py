"""What the loader spends its time on: counted per batch, at negligible cost, in the vocabulary of metrics.jsonl."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fastload.decode.backend import STAGES

_BINS = 256                  # of log2(ns), eight to an octave: percentiles are right to 9 %
_PER_OCTAVE = 8


@dataclass(frozen=True, slots=True)
class StageStats:
    """Time of one stage: seconds per sample (``wait``, ``plan``, ``copy``: per batch)."""

    mean: float
    p50: float
    p99: float
    max: float
    count: int


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """Since the loader was made, or ``reset``: what was delivered and where the time went."""

    batches: int
    samples: int
    bad: int                            # samples substituted (on_error="substitute")
    bytes_read: int                     # encoded bytes
    images_per_s: float                 # delivered, over the time since the first batch was asked for
    queue_depth: float                  # ready batches found by the consumer, mean; near 0 = the consumer waits
    threads: int
    buffer_bytes: int                   # memory of all batch buffers
    stages: dict[str, StageStats] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.samples} samples in {self.batches} batches, {self.images_per_s:.0f} images/s, {self.threads} threads, "
                 f"{self.buffer_bytes / 2**20:.0f} MiB of buffers, ready on average {self.queue_depth:.1f}, {self.bad} bad"]
        lines += [f"  {name:8} mean {1e6 * each.mean:9.1f} us  p50 {1e6 * each.p50:9.1f}  p99 {1e6 * each.p99:9.1f}  "
                  f"max {1e6 * each.max:9.1f}" for name, each in self.stages.items()]
        return "\n".join(lines)


class _Histogram:
    """Mean and maximum exactly, percentiles from logarithmic bins."""

    def __init__(self) -> None:
        self.total, self.largest, self.count = 0.0, 0, 0
        self.bins = np.zeros(_BINS, np.int64)

    def add(self, nanoseconds: NDArray[np.integer]) -> None:
        if not len(nanoseconds):
            return
        self.total += float(nanoseconds.sum())
        self.largest = max(self.largest, int(nanoseconds.max()))
        self.count += len(nanoseconds)
        places = (np.log2(np.maximum(nanoseconds, 1)) * _PER_OCTAVE).astype(np.int64)
        self.bins += np.bincount(np.minimum(places, _BINS - 1), minlength=_BINS)

    def stats(self) -> StageStats:
        if not self.count:
            return StageStats(0.0, 0.0, 0.0, 0.0, 0)
        below = np.cumsum(self.bins)
        p50, p99 = (float(2 ** ((np.searchsorted(below, share * self.count) + 0.5) / _PER_OCTAVE)) for share in (0.5, 0.99))
        largest = float(self.largest)
        return StageStats(self.total / self.count / 1e9, min(p50, largest) / 1e9, min(p99, largest) / 1e9, largest / 1e9, self.count)


class StatsCollector:
    """Where loader, feeder and consumer report to. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Starts counting anew."""
        with self._lock:
            self._stages = {name: _Histogram() for name in (*STAGES, "plan", "copy", "wait")}
            self._batches = self._samples = self._bad = self._bytes = self._depth = 0
            self._started: float | None = None
            self._last = 0.0

    def decoded(self, times_ns: NDArray[np.uint32], n_bytes: int, bad: int) -> None:
        """A batch came out of the decode threads."""
        with self._lock:
            for number, name in enumerate(STAGES):
                self._stages[name].add(times_ns[:, number])
            self._bytes += n_bytes
            self._bad += bad

    def took(self, stage: str, seconds: float) -> None:
        """A step that is done once a batch."""
        with self._lock:
            self._stages[stage].add(np.array([int(seconds * 1e9)]))

    def asked(self) -> None:
        """The consumer wants its first batch."""
        with self._lock:
            if self._started is None:
                self._started = time.monotonic()

    def delivered(self, n_samples: int, waited_s: float, ready: int) -> None:
        """The consumer has got a batch."""
        with self._lock:
            self._batches += 1
            self._samples += n_samples
            self._depth += ready
            self._last = time.monotonic()
            self._stages["wait"].add(np.array([int(waited_s * 1e9)]))

    def snapshot(self, *, threads: int, buffer_bytes: int) -> LoaderStats:
        """The figures so far."""
        with self._lock:
            seconds = self._last - self._started if self._started is not None and self._batches else 0.0
            return LoaderStats(self._batches, self._samples, self._bad, self._bytes, self._samples / seconds if seconds > 0 else 0.0,
                               self._depth / max(self._batches, 1), threads, buffer_bytes,
                               {name: each.stats() for name, each in self._stages.items()})
