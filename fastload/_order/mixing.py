"""Measures how well an order mixes the dataset, compared with a random order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastload._order.permutation import Permutation

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mixing:
    """How well an order mixes; 1.0 is as good as a random order, 0 is not mixed at all.

    Attributes:
        batch_mixture: How close the class distribution of a batch is to that of the dataset.
        neighbor_distance: Mean distance in the source between consecutive samples, divided by that
            of a random order.
        batch_size: Batch size that ``batch_mixture`` was measured with.
        n_classes: Number of classes, 0 without labels.
    """

    batch_mixture: float
    neighbor_distance: float
    batch_size: int
    n_classes: int

    def __str__(self) -> str:
        distance = f"neighbor distance: {self.neighbor_distance:.2f} of ideal"
        if self.n_classes < 2:
            return distance
        return (
            f"class mixture per batch of {self.batch_size}: {self.batch_mixture:.2f} of ideal "
            f"({self.n_classes} classes); {distance}"
        )


def measure_mixing(source_index: Ints, labels: Ints | None, *, batch_size: int = 256) -> Mixing:
    """Measures an order.

    Args:
        source_index: For each position of the order, the position of the sample in the source.
        labels: For each position of the order, the class of the sample; None without classes.
        batch_size: Samples per batch.
    """
    n = len(source_index)
    # n / 3 is the mean distance in a random order.
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
    """Returns the mean total-variation distance between the classes of a batch and the dataset."""
    share = np.bincount(labels, minlength=n_classes) / len(labels)
    n_batches = len(labels) // batch_size
    batches = labels[: n_batches * batch_size].reshape(n_batches, batch_size)
    keys = (np.arange(n_batches)[:, None] * n_classes + batches).ravel()
    # Counts only classes that occur: a table of 10^6 batches x 1000 classes would not fit in
    # memory.
    rows, counts = np.unique(keys, return_counts=True)
    row_share = share[rows % n_classes]
    differences = np.abs(counts / batch_size - row_share) - row_share
    return float((differences.sum() / n_batches + 1.0) / 2)
