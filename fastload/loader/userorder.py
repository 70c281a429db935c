"""A sampler or batch sampler of the user's own: honoured as torch does, resumed by skipping what was delivered."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload.errors import ConfigError

Ids = NDArray[np.int64]


class UserOrder:
    """Batches of ids from a torch sampler. It must give the same order again to be resumed: seed it by the epoch."""

    def __init__(self, batches: Iterable[Any], n_samples: int) -> None:
        self._batches, self._n_samples = batches, n_samples
        self.start = 0              # batches to skip at the start of the next iteration

    @staticmethod
    def of(sampler: Any, batch_sampler: Any, batch_size: int | None, drop_last: bool, n_samples: int) -> UserOrder | None:
        """None where the user has given neither."""
        if sampler is None and batch_sampler is None:
            return None
        if sampler is not None and batch_sampler is not None:
            raise ConfigError("sampler and batch_sampler: give one of the two")
        if batch_sampler is not None:
            return UserOrder(batch_sampler, n_samples)
        from torch.utils.data import BatchSampler

        return UserOrder(BatchSampler(sampler, batch_size or 1, drop_last), n_samples)

    def n_batches(self) -> int:
        """As the sampler says."""
        return len(self._batches)           # type: ignore[arg-type]

    def batches(self) -> Iterator[Ids]:
        """The next pass, what was delivered before a resume left out."""
        skip, self.start = self.start, 0
        for batch in itertools.islice(iter(self._batches), skip, None):
            ids = np.asarray(list(batch), np.int64)
            if ids.size and (ids.min() < 0 or ids.max() >= self._n_samples):
                raise ConfigError(f"the sampler gave samples {ids.min()} to {ids.max()}: expected 0 to {self._n_samples - 1}")
            yield ids

    def state(self, epoch: int, delivered: int) -> dict[str, object]:
        """How many batches were delivered in this pass."""
        return {"version": 1, "sampler": "user", "epoch": epoch, "batches": delivered}

    def load(self, state: dict[str, object]) -> int:
        """Goes on behind the batches of a state; returns its epoch."""
        if state.get("version") != 1 or state.get("sampler") != "user":
            raise ConfigError("loading a state that was saved without a sampler of your own, into a loader that has one")
        self.start = int(str(state["batches"]))
        return int(str(state["epoch"])) - 1
