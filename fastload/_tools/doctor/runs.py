"""What a recorded run is: rows of each rank as arrays, events, what is known of the machine; and a recorded window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fastload._common.metrics import EventRow, SlowStep

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rank:
    """The rows of one rank, in file order; each is the mean of ``steps`` steps, the last of them number ``iter``. NaN: not known."""

    rank: int
    session: Ints  # grows by one where the run was started again
    time: Floats  # unix, end of the last step
    iter: Ints
    steps: Ints
    data_time: Floats  # seconds a step waits for its batch
    data_time_max: Floats
    iter_time: Floats  # seconds of the whole step, waiting included
    iter_time_max: Floats
    stage_times: Mapping[str, Floats]
    data_probe: Mapping[str, Floats]  # mean seconds a sample, by stage of the loader
    data_probe_max: Mapping[str, Floats]
    samples: Floats  # in these steps
    swap_bytes: Floats  # bytes since the last row
    gpu_mem_mb: Floats
    slow: tuple[tuple[SlowStep, ...], ...]

    @property
    def seconds(self) -> Floats:
        """Time of each row."""
        return self.steps * self.iter_time


@dataclass(frozen=True, slots=True)
class Run:
    """One training run: all its ranks."""

    name: str
    ranks: tuple[Rank, ...]
    events: tuple[EventRow, ...] = ()
    header: Mapping[str, str | int | float] = field(default_factory=dict)
    foreign: bool = False  # rows of another tool
    notes: tuple[str, ...] = ()  # what was odd in the files


@dataclass(frozen=True, slots=True)
class Gpu:
    """Samples of one GPU; all arrays as long as ``t``, NaN where not known."""

    index: int
    name: str
    t: Floats
    util: Floats
    power_w: Floats
    limit_w: Floats
    sm_mhz: Floats
    temp_c: Floats
    throttle: tuple[tuple[str, ...], ...]
    state: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """What ``fastload monitor`` recorded."""

    name: str
    seconds: float
    started: float
    gpus: tuple[Gpu, ...]
    cpu: Floats  # mean over cores, percent
    cores: int
    iowait: Floats
    swap_mb_s: Floats
    disk_read_mb_s: Floats
    tree_cpu: Floats  # percent of one core, of the processes watched (fastload monitor --pid)
    notes: tuple[str, ...] = ()


def mean_of(values: Floats, weights: NDArray[np.generic] | None = None) -> float:
    """Mean of what is known; NaN where nothing is. Weights are steps or seconds, never negative."""
    known = np.isfinite(values)
    if weights is not None:
        known &= np.asarray(weights, np.float64) > 0
    if not known.any():
        return float("nan")
    return float(
        np.average(
            values[known],
            weights=None if weights is None else np.asarray(weights, np.float64)[known],
        )
    )


def weighted_median(values: Floats, weights: Ints) -> float:
    """The value at which half the weight is reached; NaN for nothing."""
    if not len(values):
        return float("nan")
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
