"""What the loader spends its time on: counted per batch, at negligible cost, in the vocabulary of metrics.jsonl."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._common.metrics import BATCH_STAGES, IMAGE_STAGES, LoaderStats, StageStats
from fastload._common.threads import ForkSafeLock

_BINS = 256  # of log2(ns), eight to an octave: percentiles are right to 9 %
_PER_OCTAVE = 8
_SAMPLES, _BATCHES, _ONES = (
    4096,
    32,
    256,
)  # whose times are counted at once; the last stage of a sample is "finish"


class _Histograms:
    """Mean and maximum exactly, percentiles from logarithmic bins; for some stages that are always counted together."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.total, self.largest = np.zeros(len(self.names)), np.zeros(len(self.names), np.int64)
        self.bins = np.zeros((len(self.names), _BINS), np.int64)
        self._first = _BINS * np.arange(len(self.names))
        self._waiting: list[NDArray[np.integer[Any]]] = []  # (n, stages)
        self._later: list[int] = []  # for each: what is to be added to every sample's last stage
        self._ones: list[int] = []  # of a single stage, one by one
        self._n_waiting = 0

    def add(self, nanoseconds: NDArray[np.integer[Any]], later: int) -> None:
        """(n, stages), and what each of the n spent in the last stage later. Counted when there are many: numpy's cost is per call."""
        self._waiting.append(nanoseconds)
        self._later.append(later)
        self._n_waiting += len(nanoseconds)
        if self._n_waiting >= _SAMPLES or len(self._waiting) >= _BATCHES:
            self._count()

    def add_one(self, nanoseconds: int) -> None:
        """Of the only stage."""
        self._ones.append(nanoseconds)
        if len(self._ones) >= _ONES:
            self._count()

    def _count(self) -> None:
        nanoseconds = (
            np.array(self._ones, np.int64)[:, None]
            if self._ones
            else np.empty((0, len(self.names)), np.int64)
        )
        if self._waiting:
            nanoseconds = np.concatenate(self._waiting).astype(np.int64)
            nanoseconds[:, -1] += np.repeat(self._later, [len(each) for each in self._waiting])
        self._waiting, self._later, self._ones, self._n_waiting = [], [], [], 0
        if not len(nanoseconds):
            return
        self.total += nanoseconds.sum(axis=0, dtype=np.float64)
        self.largest = np.maximum(self.largest, nanoseconds.max(axis=0))
        places = (np.log2(np.maximum(nanoseconds, 1)) * _PER_OCTAVE).astype(np.int64)
        places = np.minimum(places, _BINS - 1) + self._first
        self.bins += np.bincount(places.ravel(), minlength=self.bins.size).reshape(self.bins.shape)

    def stats(self) -> dict[str, StageStats]:
        self._count()
        return {name: self._stats(place) for place, name in enumerate(self.names)}

    def _stats(self, place: int) -> StageStats:
        below = np.cumsum(self.bins[place])
        count, largest = int(below[-1]), float(self.largest[place])
        if not count:
            return StageStats(0.0, 0.0, 0.0, 0.0, 0)
        p50, p99 = (
            float(2 ** ((np.searchsorted(below, share * count) + 0.5) / _PER_OCTAVE))
            for share in (0.5, 0.99)
        )
        return StageStats(
            float(self.total[place]) / count / 1e9,
            min(p50, largest) / 1e9,
            min(p99, largest) / 1e9,
            largest / 1e9,
            count,
        )


class StatsCollector:
    """Where loader, feeder and consumer report to. Thread-safe."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self.reset()

    def reset(self) -> None:
        """Starts counting anew."""
        with self._lock():
            self._images = _Histograms(IMAGE_STAGES)
            self._steps = {name: _Histograms((name,)) for name in BATCH_STAGES}
            self._batches = self._samples = self._n_images = self._bytes = self._depth = 0
            self._started: float | None = None
            self._last = 0.0

    def decoded(self, times_ns: NDArray[np.uint32], n_bytes: int, finish_s: float) -> None:
        """A batch came out of the decode threads; ``finish_s`` was spent on it in Python afterwards."""
        with self._lock():
            self._images.add(times_ns, int(finish_s * 1e9 / max(len(times_ns), 1)))
            self._bytes += n_bytes

    def took(self, stage: str, seconds: float) -> None:
        """A step that is done once a batch."""
        with self._lock():
            self._steps[stage].add_one(int(seconds * 1e9))

    def asked(self) -> None:
        """The consumer wants its first batch."""
        with self._lock():
            if self._started is None:
                self._started = time.monotonic()

    def delivered(self, n_samples: int, n_images: int, waited_s: float, ready: int) -> None:
        """The consumer has got a batch."""
        with self._lock():
            self._batches += 1
            self._samples += n_samples
            self._n_images += n_images
            self._depth += ready
            self._last = time.monotonic()
            self._steps["wait"].add_one(int(waited_s * 1e9))

    def snapshot(self, *, threads: int, buffer_bytes: int, bad: int) -> LoaderStats:
        """The figures so far."""
        with self._lock():
            seconds = (
                self._last - self._started if self._started is not None and self._batches else 0.0
            )
            stages = self._images.stats()
            for each in self._steps.values():
                stages |= each.stats()
            return LoaderStats(
                self._batches,
                self._samples,
                bad,
                self._bytes,
                self._n_images / seconds if seconds > 0 else 0.0,
                self._depth / max(self._batches, 1),
                threads,
                buffer_bytes,
                stages,
            )
