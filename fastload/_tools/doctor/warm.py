"""Which rows are warm-up and do not count."""

from __future__ import annotations

import numpy as np

from fastload._tools.doctor.limits import CHUNK_STEPS, WARM_FACTOR, WARM_PART, WARM_STEPS
from fastload._tools.doctor.runs import Bools, Floats, Ints, Rank

RULE = (
    f"left out: all before the first {CHUNK_STEPS} steps that take at most {WARM_FACTOR} x the median of the run's second half "
    f"(at most 1/{WARM_PART} of the run; of a short one {WARM_STEPS} steps, up to half of it)"
)


def steady_rows(rank: Rank) -> Bools:
    """True for rows that count. Every start of the run (a resume appends to its file) has a warm-up of its own."""
    keep = np.ones(len(rank.iter_time), bool)
    for session in np.unique(rank.session):
        rows = np.flatnonzero(rank.session == session)
        keep[rows[: warm_rows(rank.iter_time[rows], rank.steps[rows])]] = False
    return keep if keep.any() else ~keep


def warm_rows(step: Floats, steps: Ints) -> int:
    """How many rows at the start are warm-up, by ``RULE``; the first 10 steps always are, where there are 80 and more."""
    chunk = (np.cumsum(steps) - steps) // CHUNK_STEPS
    _, first = np.unique(chunk, return_index=True)
    means = np.add.reduceat(step * steps, first) / np.add.reduceat(steps, first)
    n = len(means)
    if n < 2:
        return int(len(step) >= 4 and step[0] > WARM_FACTOR * float(np.median(step[1:])))
    fine = means <= WARM_FACTOR * float(np.median(means[n // 2 :]))
    least = 1 if n >= 2 * WARM_PART else 0
    most = max(n // WARM_PART, min(n // 2, WARM_STEPS // CHUNK_STEPS), 1)
    end = least + int(np.argmax(fine[least:])) if fine[least:].any() else most
    return int(first[min(end, most)])
