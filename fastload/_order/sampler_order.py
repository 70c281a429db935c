"""The order of a user's sampler or batch sampler.

The sampler is iterated exactly as torch iterates it. A resumed run skips delivered batches.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._order.epoch_state import EpochState, Phase
from fastload._order.permutation import Indices
from fastload._order.saved_state import STATE_VERSION, check_same, whole_number
from fastload._plan.draw_ids import draw_ids
from fastload._store.fields import ALL_SPLITS
from fastload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SamplerPass:
    """One iteration over the user's sampler."""

    epoch: int
    start: int = 0  # batches delivered before a resume
    skipped: int = 0  # samples delivered before these batches, in batches of another size
    sampler_epoch: int | None = None  # the sampler's own epoch at that time, if it has one

    @property
    def continues(self) -> bool:
        return bool(self.start or self.skipped)


class SamplerOrder(EpochState[SamplerPass]):
    """Batches of sample ids from a torch sampler, whose indices count through the split.

    A run can be resumed only if the sampler returns the same order again, so it should be seeded
    with the epoch. A sampler of single samples may resume with another batch size; a batch sampler
    may not.

    The epoch determines the random numbers of the transforms. It increments after each iteration
    and follows ``set_epoch`` of the loader or of the sampler.

    Args:
        sampler: The user's sampler or batch sampler.
        batches: The object that torch would iterate: a batch sampler, or ``sampler`` itself for
            single samples.
        batch_size: How ``batches`` groups the ids of ``sampler``; None if ``sampler`` is a batch
            sampler.
        drop_last: Whether ``batches`` drops an incomplete last batch.
        n_samples: Samples in the split.
        seed: Seed of the transforms.
        content: Digest of the dataset.
        split: Name of the split.
        first: Id of the first sample of the split.
        rank_and_world: Returns rank and world size if ranks may draw the same sample, else (0, 1).
    """

    draws_in_trainer = True
    horizon = 0

    def __init__(
        self,
        sampler: Any,
        batches: Iterable[Any],
        *,
        batch_size: int | None,
        drop_last: bool = False,
        n_samples: int,
        seed: int,
        content: str,
        split: str = ALL_SPLITS,
        first: int = 0,
        rank_and_world: Callable[[], tuple[int, int]] = lambda: (0, 1),
    ) -> None:
        super().__init__()
        self.as_batches = batches
        self._sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._yields_singles = batches is sampler and batch_size is not None
        self._n_samples = n_samples
        self._seed = seed
        self._content = content
        self._split = split
        self._first = first
        self._rank_and_world = rank_and_world
        # A batch sampler may leave ranks and epochs to its sampler.
        inner = getattr(sampler, "sampler", None)
        self._epoch_owner = sampler if inner is None or hasattr(sampler, "set_epoch") else inner
        self._known_sampler_epoch = self._sampler_epoch()  # after our last call of set_epoch
        self._drawn_in = self._known_sampler_epoch  # when the last batch was drawn

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._set_sampler_epoch(epoch)

    @property
    def withdrawn(self) -> SamplerPass | None:
        """Includes a pass whose epoch was set with ``sampler.set_epoch`` before its first batch."""
        if self._withdrawn is None and self.phase is Phase.STARTED:
            # Compared with _drawn_in, because some samplers change their epoch while they are
            # drawn.
            return self.newest if self._sampler_epoch() != self._drawn_in else None
        return self._withdrawn

    def discard_resume_point(self) -> None:
        # The caller iterates the complete sampler itself, which takes the place of the next pass.
        self.begin()

    def batches(self, current: SamplerPass) -> Iterator[Indices]:
        seen = np.zeros(self._n_samples, np.uint16)  # occurrences of each sample in this pass
        rank, world = self._rank_and_world()
        for number, batch in enumerate(self._drawn(current.skipped, seen)):
            indices = self._checked(batch)
            copies = _count(seen, indices)
            if number >= current.start:
                yield draw_ids(self._first + indices, copies * world + rank)

    def _checked(self, batch: Any) -> Indices:
        ids = self._ids(batch)
        if min(ids) < 0 or max(ids) >= self._n_samples:
            raise ConfigError(
                f"the sampler returned indices {min(ids)} to {max(ids)}: expected 0 to "
                f"{self._n_samples - 1}"
                + ("" if self._split == ALL_SPLITS else f", counted within split {self._split!r}")
            )
        return np.array(ids, np.int64)

    def n_batches(self, current: SamplerPass) -> float:
        try:
            if not current.skipped:
                return len(self)
            n_left = max(0, len(self._sampler) - current.skipped)
        except TypeError:  # a sampler without a length
            return float("inf")
        size = self._batch_size or 1
        return n_left // size if self._drop_last else -(-n_left // size)

    def __len__(self) -> int:
        return len(self.as_batches)  # type: ignore[arg-type]

    def load(self, state: Mapping[str, object]) -> None:
        check_same("order", state.get("order"), self._as_json())
        epoch = whole_number("state_dict: epoch", state.get("epoch"))
        start = whole_number("state_dict: batches", state.get("batches"))
        skipped = whole_number("state_dict: skipped", state.get("skipped"))
        size = state.get("batch_size")
        if size != self._batch_size:
            if size is None or self._batch_size is None:
                check_same("order", {"batch_size": size}, {"batch_size": self._batch_size})
            skipped += start * whole_number("state_dict: batch_size", size, 1)
            start = 0
        sampler_epoch = state.get("sampler_epoch")
        if sampler_epoch is not None:
            sampler_epoch = whole_number("state_dict: sampler_epoch", sampler_epoch)
        resumed = SamplerPass(epoch, start, skipped, sampler_epoch)
        over = resumed.continues and start >= self.n_batches(resumed)
        next_epoch = epoch + 1 if over else epoch
        self.set_epoch(next_epoch)
        if sampler_epoch is not None and resumed.continues and not over:
            self._set_sampler_epoch(
                sampler_epoch
            )  # to draw the order of the interrupted pass again
        self.restore(None if over else resumed, next_epoch)

    def _next_pass(self) -> SamplerPass:
        sampler_epoch = self._sampler_epoch()
        if sampler_epoch is not None and sampler_epoch != self._known_sampler_epoch:
            self.set_epoch(sampler_epoch)  # the user called sampler.set_epoch
        self._drawn_in = sampler_epoch
        return replace(self._peek(), sampler_epoch=sampler_epoch)

    def _peek(self) -> SamplerPass:
        return self._resume_at or SamplerPass(self.next_epoch)

    def _restarts(self) -> bool:
        # A sampler without set_epoch would draw the same order again, or use further random
        # numbers.
        return callable(getattr(self._epoch_owner, "set_epoch", None))

    def _set_sampler_epoch(self, epoch: int) -> None:
        if self._restarts():
            self._epoch_owner.set_epoch(epoch)
        self._known_sampler_epoch = self._sampler_epoch()

    def _sampler_epoch(self) -> int | None:
        epoch = getattr(self._epoch_owner, "epoch", None)
        return epoch if type(epoch) is int else None

    def _drawn(self, skipped: int, seen: NDArray[np.uint16]) -> Iterator[Any]:
        for batch in self._regrouped(skipped, seen) if skipped else self.as_batches:
            self._drawn_in = self._sampler_epoch()
            yield batch
        self._drawn_in = self._sampler_epoch()

    def _regrouped(self, skipped: int, seen: NDArray[np.uint16]) -> Iterator[Any]:
        """Groups the ids after the first ``skipped`` in the same way as torch's BatchSampler."""
        size = self._batch_size or 1
        left = iter(self._sampler)
        for index in itertools.islice(left, skipped):
            _count(seen, self._checked(index))
        while batch := list(itertools.islice(left, size)):
            if len(batch) < size and self._drop_last:
                return
            yield batch[0] if self._yields_singles else batch

    def _ids(self, batch: Any) -> list[int]:
        # A zero-dimensional tensor is a single id.
        listed = isinstance(batch, Iterable) and getattr(batch, "ndim", 1) > 0
        if listed and self._yields_singles:
            raise ConfigError(
                f"the sampler returned {batch!r:.60}: expected a single id with batch_size=None. "
                "Pass a sampler of batches as batch_sampler="
            )
        try:
            ids = [operator.index(index) for index in (batch if listed else [batch])]
        except TypeError as error:
            raise ConfigError(
                f"the sampler returned {batch!r:.60}: expected whole numbers ({error})"
            ) from None
        if not ids:
            raise ConfigError("the sampler returned a batch without samples: expected at least one")
        return ids

    def _saved(self, current: SamplerPass, done: int) -> dict[str, object]:
        return {
            "version": STATE_VERSION,
            "order": self._as_json(),
            "epoch": current.epoch,
            "batches": done,
            "batch_size": self._batch_size,
            "skipped": current.skipped,
            "sampler_epoch": current.sampler_epoch,
        }

    def _as_json(self) -> dict[str, object]:
        world = getattr(self._epoch_owner, "num_replicas", None)
        # If the sampler splits among ranks, the samples of this rank depend on the world size.
        ranks = {"num_replicas": world} if type(world) is int else {}
        return {
            "dataset": self._content,
            "split": self._split,
            "n_samples": self._n_samples,
            "sampler": type(self._sampler).__name__,
            "seed": self._seed,
            **ranks,
        }


def _count(seen: NDArray[np.uint16], ids: Indices) -> Indices:
    """Returns how often each id occurred before, in this batch or an earlier one, and counts it."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    copies = np.empty(len(ids), np.int64)
    copies[order] = np.arange(len(ids)) - np.searchsorted(ordered, ordered)
    copies += seen[ids]
    seen[ids[order]] = copies[order] + 1  # the last occurrence of an id has the largest number
    return copies
