"""`--shuffle-quality`: how well do samples mix, as they were packed and in an epoch?"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from fastload._common.tables import Row, Section
from fastload._order.epoch_order import WINDOW, BlockOrder
from fastload._order.mixing import Mixing, measure_mixing
from fastload._store.dataset import SPLIT, Dataset
from fastload._store.kinds import INT, MISSING_INT

# Shares of a true random order's mixture.
GOOD = 0.8
FAIR = 0.5
LIMIT = 1 << 20  # places of an order looked at
_STRETCHES = 64


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """Both orders against a true random one, which has 1.0 in each figure."""

    packed: Mixing  # the samples in the order of their numbers
    epoch: Mixing  # the order of epoch 0
    label: str  # the column whose classes were counted; '' = there is none
    samples_per_block: int
    window: int  # blocks mixed at a time
    n_measured: int  # places of the orders looked at
    n_samples: int

    @property
    def verdict(self) -> str:
        """One sentence."""
        packed = _score(self.packed)
        epoch = _score(self.epoch)
        if epoch >= GOOD and packed >= GOOD:
            return "Good: packed in random order, and an epoch mixes like a true shuffle."
        if epoch >= GOOD:
            return "Good: an epoch mixes like a true shuffle, although the samples are packed in an order of their own."
        if epoch >= FAIR:
            return "Fair: batches lean to one part of the dataset; pack again without --order source to mix them fully."
        return "Bad: samples of one batch come from the same part of the source; pack again without --order source."

    def sections(self) -> list[Section]:
        """For ``screen.show``: both orders beside the ideal."""
        head = f"{'as packed':>12}{'epoch 0':>12}{'ideal':>12}"
        rows = [Row("", head)]
        if self.label and self.packed.n_classes > 1:
            name = f"class mixture, batch of {self.packed.batch_size}"
            rows.append(Row(name, _line(self.packed.batch_mixture, self.epoch.batch_mixture)))
        rows.append(
            Row(
                "neighbor distance",
                _line(self.packed.neighbor_distance, self.epoch.neighbor_distance),
            )
        )
        labels = (
            f"{self.label}, {self.packed.n_classes:,} classes"
            if self.label
            else "none: the class mixture cannot be measured"
        )
        if self.n_measured < self.n_samples:
            rows.append(
                Row(
                    "measured on",
                    f"{self.n_measured:,} of {self.n_samples:,} samples, in evenly spread stretches",
                )
            )
        rows += [
            Row("labels", labels),
            Row(
                "epoch",
                f"blocks of {self.samples_per_block:,} samples, {self.window} mixed at a time",
            ),
            Row("verdict", self.verdict),
        ]
        return [
            Section(
                "shuffle quality", rows, note="1.00 = a true random order, 0.00 = not mixed at all"
            )
        ]

    def as_json(self) -> dict[str, object]:
        """For machines."""
        return {**asdict(self), "verdict": self.verdict}


def shuffle_quality(
    dataset: Dataset, *, batch_size: int = 256, seed: int = 0, limit: int = LIMIT
) -> ShuffleQuality:
    """Measures the packed order and the first epoch that a loader with this seed would see.

    Of more than ``limit`` samples only evenly spread stretches of both orders are looked at: 100 MB, whatever the size.
    """
    n = len(dataset)
    label = label_field(dataset)
    block = max(1, round(n / max(1, len(dataset.blocks))))
    stretches = spread_stretches(n, batch_size=batch_size, limit=limit)
    epoch_order = BlockOrder(n, block=block, seed=seed, epoch=0)
    orders = (
        [np.arange(*stretch) for stretch in stretches],
        [epoch_order.ids(*stretch) for stretch in stretches],
    )
    packed, epoch = (
        _measure(dataset, np.concatenate(ids), label=label, batch_size=batch_size) for ids in orders
    )
    return ShuffleQuality(
        packed,
        epoch,
        label,
        samples_per_block=block,
        window=WINDOW,
        n_measured=sum(b - a for a, b in stretches),
        n_samples=n,
    )


def spread_stretches(n: int, *, batch_size: int, limit: int) -> list[tuple[int, int]]:
    """All of 0..n-1 or, of more than ``limit``, evenly spread stretches of whole batches."""
    if n <= limit:
        return [(0, n)]
    length = max(1, limit // _STRETCHES // batch_size) * batch_size
    count = max(1, min(_STRETCHES, n // length))
    return [
        (start, min(start + length, n))
        for start in np.linspace(0, max(0, n - length), count).astype(np.int64).tolist()
    ]


def _measure(dataset: Dataset, ids: NDArray[np.int64], *, label: str, batch_size: int) -> Mixing:
    # Places of the source, scaled to as many as are looked at: what a random order has is computed from their number.
    places = dataset.column("_source_index")[ids] * len(ids) // max(1, len(dataset))
    return measure_mixing(
        places, dataset.column(label)[ids] if label else None, batch_size=batch_size
    )


def label_field(dataset: Dataset) -> str:
    """The column that says what class a sample has: one with class names, else an int field called label; '' without."""
    fields = [
        each for each in dataset.fields if each.kind is INT and not each.list and each.name != SPLIT
    ]
    named = [each.name for each in fields if each.classes] or [
        each.name for each in fields if each.name in ("label", "class", "target")
    ]
    return next((name for name in named if _has_values(dataset, name)), "")


def _has_values(dataset: Dataset, name: str) -> bool:
    column = dataset.column(name)
    return any(
        (column[start : start + LIMIT] != MISSING_INT).any()
        for start in range(0, len(column), LIMIT)
    )


def _line(packed: float, epoch: float) -> str:
    return f"{packed:12.2f}{epoch:12.2f}{1:12.2f}"


def _score(mixing: Mixing) -> float:
    return (
        min(mixing.batch_mixture, mixing.neighbor_distance)
        if mixing.n_classes > 1
        else mixing.neighbor_distance
    )
