"""One bad sample: named, counted, bounded; nothing else stops."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from fastload.errors import ConfigError, FastloadError

KEPT = 100          # errors remembered by name


class FaultPolicy:
    """``raise``: the first bad sample ends the iteration, named. ``substitute``: another sample of the batch takes its place, so that
    all ranks go on with as many samples; counted, and at most ``max_bad`` of them (None: as many as come)."""

    def __init__(self, on_error: str, max_bad: int | None) -> None:
        if on_error not in ("raise", "substitute"):
            raise ConfigError(f"on_error={on_error!r:.40}: expected 'raise' or 'substitute'")
        if max_bad is not None and (type(max_bad) is not int or max_bad < 0):
            raise ConfigError(f"max_bad={max_bad!r:.40}: expected a number of samples, or None")
        self.on_error, self.max_bad = on_error, max_bad
        self.n_bad = 0
        self.errors: list[FastloadError] = []       # the first KEPT
        self._lock = threading.Lock()

    def handle(self, faults: dict[int, FastloadError], ids: NDArray[np.int64]) -> NDArray[np.intp]:
        """Which sample of the batch stands in each place; raises where a bad sample is not to be replaced."""
        first = faults[min(faults)]
        if self.on_error == "raise" or len(faults) == len(ids):
            raise first
        with self._lock:
            self.n_bad += len(faults)
            self.errors += list(faults.values())[:max(0, KEPT - len(self.errors))]
            if self.max_bad is not None and self.n_bad > self.max_bad:
                raise ConfigError(f"{self.n_bad} bad samples, more than max_bad={self.max_bad}; the last one: {first}") from first
        take = np.arange(len(ids))
        take[list(faults)] = next(place for place in range(len(ids)) if place not in faults)
        return take
