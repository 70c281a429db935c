"""How evenly something comes: from one to the next, and at its worst hundredth. Pure."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence

import numpy as np

DRAWS = 400             # of the epochs, to see how far the figure depends on them


def step_to_step(times: Sequence[float]) -> float:
    """The variation from one to the next: the root of half the mean squared difference of neighbours, over the mean.

    What the coefficient of variation is where times do not depend on each other. Slow changes, of the machine's speed for one, count there
    and not here; whatever happens every few steps counts here at least as much.
    """
    squares = [(one - other) ** 2 for one, other in itertools.pairwise(times)]
    return math.sqrt(statistics.mean(squares) / 2) / statistics.mean(times)


def tail(epochs: Sequence[Sequence[float]]) -> float:
    """p99 / p50 of all times, each over the median of its own epoch: an epoch that the machine spent in a slow mood is slow, not uneven."""
    return float(np.percentile([each / statistics.median(times) for times in epochs for each in times], 99))


def tail_spread(epochs: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The figure, and the quartiles of what it would be with other epochs of the same kind (drawn out of these, with repeats)."""
    draw = random.Random(0)
    drawn = [tail(draw.choices(epochs, k=len(epochs))) for _ in range(DRAWS)]
    low, _, high = statistics.quantiles(drawn, n=4, method="inclusive")
    return tail(epochs), low, high
