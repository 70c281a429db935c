"""Compares accuracies of the same training with different loaders, paired by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

BASE = "torch DataLoader"
ENOUGH = 8  # seeds; with fewer, the interval is wider than any difference that a loader can cause
# Student's t for a two-sided confidence of 95 %, by degrees of freedom from 1; 2.2 for more.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


def interval(base: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Returns (mean difference, half of its 95 % confidence interval), paired by seed."""
    differences = [value - other for value, other in zip(values, base, strict=True)]
    n = len(differences)
    if n < 2:
        return differences[0], math.inf
    t = _T95[n - 2] if n - 2 < len(_T95) else 2.2
    return statistics.mean(differences), t * statistics.stdev(differences) / math.sqrt(n)


def verdict(accuracies: Mapping[str, Sequence[float]]) -> str:
    """States the difference to torch with its uncertainty. It never says that both are the same."""
    base = accuracies[BASE]
    if len(base) < ENOUGH:
        return (
            f"Accuracy is not compared: {len(base)} seeds, at least {ENOUGH} are needed to tell a "
            "difference from the variation between seeds."
        )
    sentences = []
    for name, values in accuracies.items():
        if name == BASE:
            continue
        difference, half = interval(base, values)
        judged = (
            f"these runs show no difference, and would not show one below {100 * half:.1f} points"
            if abs(difference) <= half
            else "the difference is larger than the variation between seeds explains"
        )
        sentences.append(
            f"{name}: {100 * difference:+.1f} ± {100 * half:.1f} percentage points compared with "
            f"torch (95 % confidence, {len(base)} seeds): {judged}."
        )
    return " ".join(sentences)
