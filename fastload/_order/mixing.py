"""How well an order mixes, compared with a random order of the same samples. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastload._order.permutation import Permutation

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mixing:
    """1.0 = as good as a random order; 0 = not mixed at all."""

    batch_mixture: float  # classes of a batch against the dataset's: 1 - (excess distance over a random order's)
    neighbor_distance: float  # mean distance, in the source, of samples that follow each other, over a random order's
    batch_size: int
    n_classes: int

    def __str__(self) -> str:
        mixture = (
            f"class mixture per batch of {self.batch_size}: {self.batch_mixture:.2f} of ideal ({self.n_classes} classes); "
            if self.n_classes > 1
            else ""
        )
        return f"{mixture}neighbor distance: {self.neighbor_distance:.2f} of ideal"


def measure_mixing(source_index: Ints, labels: Ints | None, *, batch_size: int = 256) -> Mixing:
    """``source_index``, ``labels``: for each position of the order, the sample's position in the source and its label."""
    n = len(source_index)
    # The mean distance of a random order is n / 3.
    distance = float(np.abs(np.diff(source_index)).mean()) / (n / 3) if n > 1 else 1.0
    if labels is None or n < 2:
        return Mixing(1.0, min(distance, 1.0), batch_size, 0)
    classes, numbered = np.unique(labels, return_inverse=True)
    batch_size = max(1, min(batch_size, n // 2))
    random_order = numbered[Permutation(n, seed=1)(np.arange(n))]
    found = _batch_distance(numbered, len(classes), batch_size)
    ideal = _batch_distance(random_order, len(classes), batch_size)
    worst = _batch_distance(np.sort(numbered), len(classes), batch_size)
    mixture = 1.0 if worst <= ideal else 1.0 - (found - ideal) / (worst - ideal)
    return Mixing(float(np.clip(mixture, 0, 1)), min(distance, 1.0), batch_size, len(classes))


def _batch_distance(labels: Ints, n_classes: int, batch_size: int) -> float:
    """Mean total-variation distance between a batch's classes and the dataset's."""
    share = np.bincount(labels, minlength=n_classes) / len(labels)
    n_batches = len(labels) // batch_size
    batches = labels[: n_batches * batch_size].reshape(n_batches, batch_size)
    keys = (np.arange(n_batches)[:, None] * n_classes + batches).ravel()
    # Only classes that occur: 10^6 batches x 1000 classes would not fit into memory.
    rows, counts = np.unique(keys, return_counts=True)
    row_share = share[rows % n_classes]
    differences = np.abs(counts / batch_size - row_share) - row_share
    return float((differences.sum() / n_batches + 1.0) / 2)
