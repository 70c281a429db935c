"""The dataset as the loader sees it: samples with the loader's transform applied, for whoever takes loader.dataset apart.

Accelerate and Lightning may rebuild a plain torch DataLoader out of ``dataset`` and ``batch_sampler``: ``__getitems__`` therefore
decodes a whole batch natively and gives the same pixels and labels as the loader would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fastload.loader.epochs import Epochs
from fastload.loader.maker import BatchMaker
from fastload.loader.spec import LoadSpec
from fastload.store.dataset import Dataset

Sample = Any        # a dict, or (image, label): what torch's collate functions take


class LoaderDataset(torch.utils.data.Dataset[Sample]):
    """A map-style torch dataset over a packed one. What is not asked for here is the packed dataset's: ``column``, ``classes`` ..."""

    def __init__(self, packed: Dataset, maker: BatchMaker, epochs: Epochs) -> None:
        self.packed, self._maker, self._epochs = packed, maker, epochs

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> Sample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        count = len(self)
        for index in indices:
            if not -count <= index < count:
                raise IndexError(f"sample {index} of {count}")
        ids = np.asarray(indices, np.int64) % max(count, 1)
        # The batch sampler has begun the epoch that these indices belong to, so the epoch to come is one ahead of it.
        epoch = max(self._epochs.next_epoch - 1, 0)
        return samples_of(self._maker.finish(self._maker.begin(ids, epoch)), len(ids), self._maker.spec)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "packed":
            raise AttributeError(name)
        return getattr(self.packed, name)


def samples_of(batch: dict[str, Any], n: int, spec: LoadSpec) -> list[Sample]:
    """A batch taken apart: one dict, or tuple, a sample."""
    samples = [{name: value[place] for name, value in batch.items()} for place in range(n)]
    return [tuple(each.values()) for each in samples] if spec.as_tuple else list(samples)
