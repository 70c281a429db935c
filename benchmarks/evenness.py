"""How evenly something comes: from one to the next, and at its worst hundredth, while the machine is ours. Pure, but for `stolen_s`."""

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

DRAWS = 400  # of the epochs, to see how far the figure depends on them
STOLEN = 0.05  # of the processors' time: if the host of a virtual machine takes more of it, a time says nothing about us


def stolen_s() -> float:
    """Processor time that the host of a virtual machine gave to others since it began, of all processors; 0 where nobody says."""
    try:
        with Path("/proc/stat").open() as file:
            return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def undisturbed(times: Sequence[float], stolen: Sequence[float]) -> list[float]:
    """The times during each of which the host took little (``stolen``, in seconds); all of them where few would be left."""
    limit = STOLEN * available_cpus()
    own = [time for time, taken in zip(times, stolen, strict=True) if taken <= limit * time]
    return own if len(own) >= len(times) / 2 else list(times)


def step_to_step(times: Sequence[float]) -> float:
    """The variation from one to the next: the root of half the mean squared difference of neighbors, over the mean.

    What the coefficient of variation is where times do not depend on each other. Slow changes, of the machine's speed for one, count there
    and not here; whatever happens every few steps counts here at least as much.
    """
    squares = [(one - other) ** 2 for one, other in itertools.pairwise(times)]
    return math.sqrt(statistics.mean(squares) / 2) / statistics.mean(times)


def tail(epochs: Sequence[Sequence[float]]) -> float:
    """p99 / p50 of all times, each over the median of its own epoch: an epoch that the machine spent in a slow mood is slow, not uneven."""
    return float(
        np.percentile([each / statistics.median(times) for times in epochs for each in times], 99)
    )


def tail_spread(epochs: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The figure, and the quartiles of what it would be with other epochs of the same kind (drawn out of these, with repeats)."""
    draw = random.Random(0)
    drawn = [tail(draw.choices(epochs, k=len(epochs))) for _ in range(DRAWS)]
    low, _, high = statistics.quantiles(drawn, n=4, method="inclusive")
    return tail(epochs), low, high
