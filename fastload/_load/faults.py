"""One bad sample: named, counted, bounded; nothing else stops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastload._common.forks import ForkSafeLock
from fastload.errors import BadImage, ConfigError, FastloadError

KEPT = 100  # errors remembered by name

Faults = dict[int, FastloadError]  # place in the batch → what is wrong with its sample


class FaultPolicy:
    """``raise``: a bad sample is raised, named, in the place of its batch. ``substitute``: another sample of the batch takes its place,
    so that all ranks go on with as many; counted, and at most ``max_bad`` different ones (None: as many as come)."""

    def __init__(self, on_error: str, max_bad: int | None) -> None:
        if on_error not in ("raise", "substitute"):
            raise ConfigError(f"on_error={on_error!r:.40}: expected 'raise' or 'substitute'")
        if max_bad is not None and (type(max_bad) is not int or max_bad < 0):
            raise ConfigError(f"max_bad={max_bad!r:.40}: expected a number of samples, or None")
        if max_bad is not None and on_error == "raise":
            raise ConfigError(
                "max_bad belongs to on_error='substitute'; with 'raise' every bad sample is an error"
            )
        self.on_error, self.max_bad = on_error, max_bad
        self.n_bad = 0  # substitutions; a bad sample counts once an epoch
        self.errors: list[FastloadError] = []  # the first KEPT
        self._ids: set[int] = set()  # different ones, kept where they are bounded
        self._lock = ForkSafeLock()

    def check(self, faults: Faults, ids: NDArray[np.int64]) -> None:
        """Counts the bad samples of a batch; raises where they are not to be replaced, or are too many."""
        first = faults[min(faults)]
        if self.on_error == "raise":
            raise first
        with self._lock():
            self.n_bad += len(faults)
            self.errors += list(faults.values())[: max(0, KEPT - len(self.errors))]
            if self.max_bad is None:
                return
            self._ids.update(ids[list(faults)].tolist())
            if len(self._ids) > self.max_bad:
                raise BadImage(
                    f"{len(self._ids)} bad samples, more than max_bad={self.max_bad}; the newest: {first}",
                    source="loading",
                    image_id=int(ids[min(faults)]),
                ) from first


def substitutes(faults: Faults, n: int) -> NDArray[np.intp]:
    """Which sample of a batch of ``n`` stands in each place: the bad ones' places are shared out among the good ones."""
    take = np.arange(n)
    good = np.array([place for place in range(n) if place not in faults], np.intp)
    for number, place in enumerate(sorted(faults)):
        take[place] = good[number % len(good)]
    return take
