"""`--shuffle-quality`: how well do samples mix, as they were packed and in an epoch?"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from fastload.inspect.screen import Row, Section
from fastload.order.line import WINDOW, BlockLine
from fastload.order.mixing import Mixing, measure_mixing
from fastload.store.columns import MISSING_INT
from fastload.store.dataset import SPLIT, Dataset

GOOD, FAIR = 0.8, 0.5           # share of a true random order's mixture


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """Both orders against a true random one, which has 1.0 in each figure."""

    packed: Mixing              # the samples in the order of their numbers
    epoch: Mixing               # the order of epoch 0
    label: str                  # the column whose classes were counted; '' = there is none
    samples_per_block: int
    window: int                 # blocks mixed at a time

    @property
    def verdict(self) -> str:
        """One sentence."""
        packed, epoch = _score(self.packed), _score(self.epoch)
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
        rows.append(Row("neighbour distance", _line(self.packed.neighbour_distance, self.epoch.neighbour_distance)))
        labels = f"{self.label}, {self.packed.n_classes:,} classes" if self.label else "none: the class mixture cannot be measured"
        rows += [Row("labels", labels), Row("epoch", f"blocks of {self.samples_per_block:,} samples, {self.window} mixed at a time"),
                 Row("verdict", self.verdict)]
        return [Section("shuffle quality", rows, note="1.00 = a true random order, 0.00 = not mixed at all")]

    def as_json(self) -> dict[str, object]:
        """For machines."""
        return {**asdict(self), "verdict": self.verdict}


def shuffle_quality(dataset: Dataset, *, batch_size: int = 256, seed: int = 0) -> ShuffleQuality:
    """Measures the packed order and the first epoch that a loader with this seed would see."""
    n = len(dataset)
    source_index = dataset.column("_source_index")
    label = label_field(dataset)
    labels = dataset.column(label) if label else None
    block = max(1, round(n / max(1, len(dataset.blocks))))
    order = BlockLine(n, block=block, seed=seed, epoch=0).ids(0, n)
    return ShuffleQuality(
        packed=measure_mixing(source_index, labels, batch_size=batch_size),
        epoch=measure_mixing(source_index[order], None if labels is None else labels[order], batch_size=batch_size),
        label=label, samples_per_block=block, window=WINDOW)


def label_field(dataset: Dataset) -> str:
    """The column that says what class a sample has: one with class names, else an int field called label; '' without."""
    fields = [each for each in dataset.fields if each.kind == "int" and not each.list and each.name != SPLIT]
    named = [each.name for each in fields if each.classes] or [each.name for each in fields if each.name in ("label", "class", "target")]
    return next((name for name in named if _has_values(dataset, name)), "")


def _has_values(dataset: Dataset, name: str) -> bool:
    return bool((np.asarray(dataset.column(name)) != MISSING_INT).any())


def _line(packed: float, epoch: float) -> str:
    return f"{packed:12.2f}{epoch:12.2f}{1:12.2f}"


def _score(mixing: Mixing) -> float:
    return min(mixing.batch_mixture, mixing.neighbour_distance) if mixing.n_classes > 1 else mixing.neighbour_distance
