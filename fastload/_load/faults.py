"""Handling of bad samples: ``on_error`` and ``max_bad``. Other samples are not affected."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastload._common.threads import ForkSafeLock
from fastload._load.records import BatchRecords
from fastload._store.dataset import Dataset
from fastload.errors import BadImage, ConfigError, FastloadError

MAX_ERRORS = 100  # kept for loader.errors

Faults = dict[int, FastloadError]  # place in the batch -> error of its sample


class FaultPolicy:
    """Decides what happens to bad samples.

    With ``raise``, an error that names the sample replaces the batch. With ``substitute``, another
    sample of the batch replaces the bad sample, so that all ranks keep the same number of samples.
    At most ``max_bad`` different samples are substituted (None: no limit).
    """

    def __init__(self, on_error: str, max_bad: int | None) -> None:
        if on_error not in ("raise", "substitute"):
            raise ConfigError(f"on_error={on_error!r:.40}: expected 'raise' or 'substitute'")
        if max_bad is not None and (type(max_bad) is not int or max_bad < 0):
            raise ConfigError(f"max_bad={max_bad!r:.40}: expected None or a number of samples")
        if max_bad is not None and on_error == "raise":
            raise ConfigError(
                f"max_bad={max_bad}: expected None with on_error='raise', which raises every bad "
                "sample. Pass on_error='substitute'"
            )
        self.on_error = on_error
        self.max_bad = max_bad
        self.n_bad = 0  # substitutions; a bad sample counts once per epoch
        self.errors: list[FastloadError] = []  # the first MAX_ERRORS
        self._ids: set[int] = set()  # ids of bad samples, only with max_bad
        self._lock = ForkSafeLock()

    def check(self, faults: Faults, ids: NDArray[np.int64]) -> None:
        """Counts the bad samples of a batch; raises if the policy does not allow them."""
        first = faults[min(faults)]
        if self.on_error == "raise":
            raise first
        with self._lock():
            self.n_bad += len(faults)
            self.errors += list(faults.values())[: max(0, MAX_ERRORS - len(self.errors))]
            if self.max_bad is None:
                return
            self._ids.update(ids[list(faults)].tolist())
            if len(self._ids) > self.max_bad:
                raise BadImage(
                    f"{len(self._ids)} bad samples, more than max_bad={self.max_bad}. "
                    f"Last one: {first}",
                    source="loading",
                    image_id=int(ids[min(faults)]),
                ) from first


def substitutes(faults: Faults, n: int) -> NDArray[np.intp]:
    """Returns which sample fills each place of a batch; good samples replace bad ones in turn."""
    take = np.arange(n)
    good = [place for place in range(n) if place not in faults]
    for number, place in enumerate(sorted(faults)):
        take[place] = good[number % len(good)]
    return take


def bad_sample(
    dataset: Dataset, records: BatchRecords, place: int, field: str, why: str
) -> BadImage:
    """Returns the error for a sample whose data is intact but unusable."""
    sample_id = int(records.ids[place])
    why = why if why.startswith("field ") else f"field {field!r}: {why}"
    return BadImage(
        f"sample {sample_id} in {dataset.reader(sample_id).path}, {why}",
        image_id=sample_id,
        source=records.source(place),
    )
