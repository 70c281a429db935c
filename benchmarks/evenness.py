"""Variation of times: from one to the next, and in the tail, without disturbances by the host."""

from __future__ import annotations

import itertools
import math
import os
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fastload._common.cpus import available_cpus

DRAWS = 400  # bootstrap samples of the epochs
STOLEN = 0.05  # times are excluded if the host of the virtual machine took more of the CPU time


def stolen_s() -> float:
    """CPU seconds that the host of a virtual machine has taken since boot; 0 if unknown."""
    try:
        with Path("/proc/stat").open() as file:
            return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def undisturbed(times: Sequence[float], stolen: Sequence[float]) -> list[float]:
    """The times during which the host took little (``stolen``, in seconds).

    Returns all times if less than half would be left.
    """
    limit = STOLEN * available_cpus()
    own = [time for time, taken in zip(times, stolen, strict=True) if taken <= limit * time]
    return own if len(own) >= len(times) / 2 else list(times)


def step_to_step(times: Sequence[float]) -> float:
    """Variation from one time to the next.

    It is the root of half the mean squared difference of neighbors, divided by the mean. For
    independent times this equals the coefficient of variation. Slow changes, such as those of the
    machine's speed, do not count here; events every few steps count at least as much.
    """
    squares = [(one - other) ** 2 for one, other in itertools.pairwise(times)]
    return math.sqrt(statistics.mean(squares) / 2) / statistics.mean(times)


def tail(epochs: Sequence[Sequence[float]]) -> float:
    """p99 / p50 of all times, each relative to the median of its epoch.

    A slow epoch does not count as uneven.
    """
    return float(
        np.percentile([each / statistics.median(times) for times in epochs for each in times], 99)
    )


def tail_spread(epochs: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """``tail`` of the epochs, with the quartiles of a bootstrap over them."""
    draw = random.Random(0)
    drawn = [tail(draw.choices(epochs, k=len(epochs))) for _ in range(DRAWS)]
    low, _, high = statistics.quantiles(drawn, n=4, method="inclusive")
    return tail(epochs), low, high
