"""Collects where the loader spends its time, at negligible cost per batch.

``fastload._common.metrics`` defines the names of stages and figures.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._common.metrics import BATCH_STAGES, IMAGE_STAGES, LoaderStats, StageStats
from fastload._common.threads import ForkSafeLock

_BINS = 256  # logarithmic, of nanoseconds
_PER_OCTAVE = 8  # bins per factor of two: percentiles are accurate to 9 %
# Times are collected and counted together, because the cost of NumPy is per call.
_MAX_SAMPLES = 4096
_MAX_BATCHES = 32
_MAX_SINGLE = 256


class _Histograms:
    """Exact mean and maximum, and percentiles from logarithmic bins, of several stages."""

    def __init__(self, names: Sequence[str]) -> None:
        n = len(names)
        self._names = names
        self._total = np.zeros(n)
        self._largest = np.zeros(n, np.int64)
        self._bins = np.zeros((n, _BINS), np.int64)
        self._first_bin = _BINS * np.arange(n)
        self._clear()

    def _clear(self) -> None:
        self._waiting: list[NDArray[np.integer[Any]]] = []  # (n, stages)
        self._extra: list[int] = []  # per array: time to add to the last stage of every sample
        self._single: list[int] = []  # times of a histogram with one stage
        self._n_waiting = 0

    def add(self, times_ns: NDArray[np.integer[Any]], extra_ns: int) -> None:
        """Adds times (n, stages); ``extra_ns`` is added to the last stage of each sample."""
        self._waiting.append(times_ns)
        self._extra.append(extra_ns)
        self._n_waiting += len(times_ns)
        if self._n_waiting >= _MAX_SAMPLES or len(self._waiting) >= _MAX_BATCHES:
            self._count()

    def add_one(self, time_ns: int) -> None:
        """Adds a time of a histogram with one stage."""
        self._single.append(time_ns)
        if len(self._single) >= _MAX_SINGLE:
            self._count()

    def _count(self) -> None:
        times_ns = np.array(self._single, np.int64)[:, None]
        if self._waiting:
            times_ns = np.concatenate(self._waiting).astype(np.int64)
            times_ns[:, -1] += np.repeat(self._extra, [len(each) for each in self._waiting])
        self._clear()
        if not len(times_ns):
            return
        self._total += times_ns.sum(axis=0, dtype=np.float64)
        self._largest = np.maximum(self._largest, times_ns.max(axis=0))
        bins = (np.log2(np.maximum(times_ns, 1)) * _PER_OCTAVE).astype(np.int64)
        bins = np.minimum(bins, _BINS - 1) + self._first_bin
        self._bins += np.bincount(bins.ravel(), minlength=self._bins.size).reshape(self._bins.shape)

    def stats(self) -> dict[str, StageStats]:
        self._count()
        return {name: self._stats(stage) for stage, name in enumerate(self._names)}

    def _stats(self, stage: int) -> StageStats:
        below = np.cumsum(self._bins[stage])
        count = int(below[-1])
        if not count:
            return StageStats(0.0, 0.0, 0.0, 0.0, 0)
        largest_ns = float(self._largest[stage])

        def percentile_s(share: float) -> float:
            bin_number = np.searchsorted(below, share * count)
            return min(float(2 ** ((bin_number + 0.5) / _PER_OCTAVE)), largest_ns) / 1e9

        return StageStats(
            mean=float(self._total[stage]) / count / 1e9,
            p50=percentile_s(0.5),
            p99=percentile_s(0.99),
            max=largest_ns / 1e9,
            count=count,
        )


class StatsCollector:
    """The statistics of one loader. The loader, its iterators and their threads report to it."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._images = _Histograms(IMAGE_STAGES)
        self._stages = {name: _Histograms((name,)) for name in BATCH_STAGES}
        self._n_batches = 0
        self._n_samples = 0
        self._n_images = 0
        self._n_bytes = 0
        self._n_ready = 0
        self._started: float | None = None
        self._last = 0.0

    def decoded(self, times_ns: NDArray[np.uint32], n_bytes: int, finish_s: float) -> None:
        """Records a decoded batch, and the time that Python spent on it afterwards."""
        with self._lock():
            self._images.add(times_ns, int(finish_s * 1e9 / max(len(times_ns), 1)))
            self._n_bytes += n_bytes

    def add_time(self, stage: str, seconds: float) -> None:
        """Records the time of a stage that runs once per batch."""
        with self._lock():
            self._stages[stage].add_one(int(seconds * 1e9))

    def requested(self) -> None:
        """Records when the trainer requests its first batch."""
        with self._lock():
            if self._started is None:
                self._started = time.monotonic()

    def delivered(self, n_samples: int, n_images: int, waited_s: float, n_ready: int) -> None:
        """Records a delivered batch; ``n_ready`` batches were ready when it was requested."""
        with self._lock():
            self._n_batches += 1
            self._n_samples += n_samples
            self._n_images += n_images
            self._n_ready += n_ready
            self._last = time.monotonic()
            self._stages["wait"].add_one(int(waited_s * 1e9))

    def snapshot(self, *, threads: int, buffer_bytes: int, bad: int) -> LoaderStats:
        """Returns the statistics since the loader was created."""
        with self._lock():
            seconds = 0.0
            if self._started is not None and self._n_batches:
                seconds = self._last - self._started
            stages = self._images.stats()
            for each in self._stages.values():
                stages |= each.stats()
            return LoaderStats(
                batches=self._n_batches,
                samples=self._n_samples,
                bad=bad,
                bytes_read=self._n_bytes,
                images_per_s=self._n_images / seconds if seconds > 0 else 0.0,
                queue_depth=self._n_ready / max(self._n_batches, 1),
                threads=threads,
                buffer_bytes=buffer_bytes,
                stages=stages,
            )
