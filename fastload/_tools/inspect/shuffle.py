"""`fastload inspect --shuffle-quality`: how well samples are mixed, on disk and in an epoch."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from fastload._common.tables import Row, Section
from fastload._order.epoch_order import WINDOW, BlockOrder
from fastload._order.mixing import Mixing, measure_mixing
from fastload._store.dataset import Dataset
from fastload._store.fields import SPLIT
from fastload._store.kinds import INT, MISSING_INT

# Scores relative to a random permutation.
GOOD = 0.8
FAIR = 0.5
LIMIT = 1 << 20  # positions of an order that are measured
_STRETCHES = 64


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """Both orders compared with a random permutation, which scores 1.0 in each figure."""

    packed: Mixing  # the order on disk
    epoch: Mixing  # the order of epoch 0
    label: str  # the column whose classes were counted; '' if there is none
    samples_per_block: int
    window: int  # blocks that are mixed with each other
    n_measured: int  # positions that were measured
    n_samples: int

    @property
    def verdict(self) -> str:
        epoch = _score(self.epoch)
        if epoch >= GOOD and _score(self.packed) >= GOOD:
            return (
                "Good: samples are packed in random order, and an epoch mixes like a full shuffle."
            )
        if epoch >= GOOD:
            return (
                "Good: an epoch mixes like a full shuffle, although the order on disk is not "
                "random."
            )
        if epoch >= FAIR:
            return "Fair: batches favor one part of the dataset. Pack again without --order source."
        return (
            "Bad: the samples of a batch come from the same part of the source. Pack again without "
            "--order source."
        )

    def sections(self) -> list[Section]:
        rows = [Row("", f"{'as packed':>12}{'epoch 0':>12}{'ideal':>12}")]
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
            else "none, so the class mixture cannot be measured"
        )
        if self.n_measured < self.n_samples:
            rows.append(
                Row(
                    "measured on",
                    f"{self.n_measured:,} of {self.n_samples:,} samples, in evenly spread ranges",
                )
            )
        rows += [
            Row("labels", labels),
            Row(
                "epoch",
                f"blocks of {self.samples_per_block:,} samples, shuffle buffer of {self.window} "
                "blocks",
            ),
            Row("verdict", self.verdict),
        ]
        return [
            Section("shuffle quality", rows, note="1.00 = random permutation, 0.00 = not mixed")
        ]

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "verdict": self.verdict}


def shuffle_quality(
    dataset: Dataset, *, batch_size: int = 256, seed: int = 0, limit: int = LIMIT
) -> ShuffleQuality:
    """Measures the order on disk and the first epoch of a loader with this seed.

    Of more than ``limit`` samples, only evenly spread ranges of both orders are measured, which
    needs about 100 MB of memory for any dataset size.
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
    """The range 0..n, or evenly spread ranges of whole batches if n exceeds ``limit``."""
    if n <= limit:
        return [(0, n)]
    length = max(1, limit // _STRETCHES // batch_size) * batch_size
    count = max(1, min(_STRETCHES, n // length))
    return [
        (start, min(start + length, n))
        for start in np.linspace(0, max(0, n - length), count).astype(np.int64).tolist()
    ]


def _measure(dataset: Dataset, ids: NDArray[np.int64], *, label: str, batch_size: int) -> Mixing:
    # The expected value of a random permutation depends on the number of positions, so source
    # positions are scaled to the number of measured samples.
    column = dataset.column("_source_index")
    first = column.min(initial=2**62)
    span = column.max(initial=0) - first + 1  # a split may be anywhere in the source
    places = (column[ids] - first) * len(ids) // max(1, span)
    return measure_mixing(
        places, dataset.column_rows(label)[ids] if label else None, batch_size=batch_size
    )


def label_field(dataset: Dataset) -> str:
    """The column with the class of a sample; '' if there is none.

    A field with class names, or an int field called label, class or target.
    """
    fields = [
        each for each in dataset.fields if each.kind is INT and not each.list and each.name != SPLIT
    ]
    named = [each.name for each in fields if each.classes] or [
        each.name for each in fields if each.name in ("label", "class", "target")
    ]
    return next((name for name in named if _has_values(dataset, name)), "")


def _has_values(dataset: Dataset, name: str) -> bool:
    column = dataset.column_rows(name)
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
