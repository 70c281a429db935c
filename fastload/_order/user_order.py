"""A sampler or batch sampler of the user's own: honoured as torch does, resumed by skipping what was delivered."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._order.state import STATE_VERSION, check_same, whole_number
from fastload.errors import ConfigError

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pass:
    """One iteration over the user's sampler."""

    epoch: int
    start: int = 0  # batches that were delivered before a resume
    skipped: int = 0  # samples that were delivered before those, in batches of other sizes
    told: int | None = (
        None  # the sampler's own epoch when it was asked, where it has one: nobody may have told it of this one
    )


class UserOrder:
    """Batches of ids from a torch sampler. It must give the same order again to be resumed: seed it by the epoch. Another batch size may
    go on where samples are given, not batches.

    ``epoch`` decides what the transforms draw. It counts by itself, and follows ``set_epoch`` of the loader or of the sampler.
    """

    draws_here = True  # in the trainer's thread, whose random numbers a sampler may use
    horizon = 0  # what comes behind the batches drawn is not known

    def __init__(
        self,
        sampler: Any,
        batches: Iterable[Any],
        *,
        n_samples: int,
        seed: int,
        content: str,
        singly: bool = False,
    ) -> None:
        self._sampler, self._n_samples, self._seed, self._content = (
            sampler,
            n_samples,
            seed,
            content,
        )
        self._singly = singly  # numbers, not lists of them
        self.as_batches = batches
        self._dealt = (
            batches
            if isinstance(batches, torch.utils.data.BatchSampler) and batches is not sampler
            else None
        )
        self._batch_size = (
            1 if singly else None if self._dealt is None else self._dealt.batch_size
        )  # None: a batch sampler knows
        self.next_epoch, self.latest_epoch, self.named = 0, 0, False
        inner = getattr(sampler, "sampler", None)  # of a batch sampler
        self._dealer = (
            inner if inner is not None and not hasattr(sampler, "set_epoch") else sampler
        )  # who knows ranks and epochs
        self._samplers_epoch = self._drawn_in = self._epoch_of_sampler()
        self._resumed: Pass | None = None
        self._newest: tuple[Pass, int] | None = None
        self._withdrawn: Pass | None = None

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch; the sampler is told, where it wants to know."""
        self.next_epoch = self.latest_epoch = whole_number("set_epoch", epoch)
        self.named = True
        newest, done = self._newest or (None, 0)
        if (
            newest is not None
            and done == newest.start
            and callable(getattr(self._dealer, "set_epoch", None))
        ):
            self._withdrawn = (
                newest  # it was drawn before; what knows of no epochs is not asked twice
            )
            self._resumed = newest if newest.start or newest.skipped else None
        if self._resumed is not None and self._resumed.epoch != epoch:
            self._resumed = None
        self._newest = None
        self._tell(epoch)

    def _tell(self, epoch: int) -> None:
        if callable(getattr(self._dealer, "set_epoch", None)):
            self._dealer.set_epoch(epoch)
        self._samplers_epoch = self._epoch_of_sampler()

    @property
    def withdrawn(self) -> Pass | None:
        """The newest iteration, if the user has called set_epoch, of the loader or of his sampler, behind iter() and before the first
        batch."""
        if self._withdrawn is not None:
            return self._withdrawn
        current, done = self._newest or (None, 0)
        renamed = (
            self._epoch_of_sampler() != self._drawn_in
        )  # by somebody else: some samplers count when they are asked
        return current if current is not None and done == current.start and renamed else None

    def forget_place(self) -> None:
        """Somebody iterates the sampler himself, all of it, in the place of the next iteration."""
        self.begin()

    def begin(self) -> Pass:
        """The next iteration; the one after it is the next epoch."""
        told = self._epoch_of_sampler()
        if told is not None and told != self._samplers_epoch:
            self.set_epoch(told)  # the user has called set_epoch of his sampler
        self._drawn_in = told
        current = replace(self._resumed or Pass(self.next_epoch), told=told)
        self._resumed = self._withdrawn = None
        self.next_epoch, self.latest_epoch = current.epoch + 1, current.epoch
        self.delivered(current, current.start)
        return current

    def delivered(self, current: Pass, done: int) -> None:
        """The trainer has so many batches of a pass."""
        self._newest = (current, done)

    def ended(self, _: Pass) -> None:
        """The trainer has seen the end of a pass: the next one is what a state speaks of."""
        self._newest = None

    def batches(self, current: Pass) -> Iterator[Ids]:
        """The ids of each batch, what was delivered before a resume left out."""
        for batch in itertools.islice(self._asked(current.skipped), current.start, None):
            numbers = self._numbers(batch)
            if min(numbers) < 0 or max(numbers) >= self._n_samples:
                raise ConfigError(
                    f"the sampler gave samples {min(numbers)} to {max(numbers)}: expected 0 to {self._n_samples - 1}"
                )
            yield np.array(numbers, np.int64)

    def _asked(self, skipped: int) -> Iterator[Any]:
        for batch in self._behind(skipped):
            self._drawn_in = self._epoch_of_sampler()
            yield batch
        self._drawn_in = self._epoch_of_sampler()

    def _behind(self, skipped: int) -> Iterator[Any]:
        if not skipped:
            return iter(self.as_batches)
        left = itertools.islice(iter(self._sampler), skipped, None)
        return (
            left
            if self._dealt is None
            else iter(
                torch.utils.data.BatchSampler(left, self._dealt.batch_size, self._dealt.drop_last)
            )
        )

    def _numbers(self, batch: Any) -> list[int]:
        listed = (
            isinstance(batch, Iterable) and getattr(batch, "ndim", 1) > 0
        )  # a tensor that is one number is no list
        if listed and self._singly:
            raise ConfigError(
                f"the sampler gave {batch!r:.60}, but batch_size=None hands out single samples: name it batch_sampler="
            )
        found = list(batch) if listed else [batch]
        try:
            numbers = [operator.index(index) for index in found]
        except TypeError as error:
            raise ConfigError(
                f"the sampler gave {batch!r:.60}: expected whole numbers ({error})"
            ) from None
        if not numbers:
            raise ConfigError("the sampler gave a batch without samples")
        return numbers

    def __len__(self) -> int:
        return len(self.as_batches)  # type: ignore[arg-type]

    def state(self) -> dict[str, object]:
        """How many batches were delivered in this pass; the next one, where it is over."""
        current, done = self._newest or (self._resumed or Pass(self.next_epoch), 0)
        if self._newest is None:
            done = current.start
        elif done >= self.n_batches(current):
            current, done = Pass(self.next_epoch), 0
        return self._state(current, done)

    def resumed(self) -> dict[str, object] | None:
        """Where in a pass the next iteration goes on; None where it begins one."""
        return None if self._resumed is None else self._state(self._resumed, self._resumed.start)

    def _state(self, current: Pass, done: int) -> dict[str, object]:
        return {
            "version": STATE_VERSION,
            "order": self._as_json(),
            "epoch": current.epoch,
            "batches": done,
            "batch_size": self._batch_size,
            "skipped": current.skipped,
            "told": current.told,
        }

    def load(self, state: Mapping[str, object]) -> None:
        """Goes on behind the batches of a state."""
        check_same("order", state.get("order"), self._as_json())
        epoch, start, skipped = (
            whole_number(f"loading a state: {name}", state.get(name))
            for name in ("epoch", "batches", "skipped")
        )
        size, told = state.get("batch_size"), state.get("told")
        if size != self._batch_size:
            if size is None or self._batch_size is None:
                check_same("order", {"batch_size": size}, {"batch_size": self._batch_size})
            start, skipped = (
                0,
                skipped + start * whole_number("loading a state: batch_size", size, 1),
            )
        resumed = Pass(
            epoch,
            start,
            skipped,
            None if told is None else whole_number("loading a state: told", told),
        )
        over = bool(start or skipped) and start >= self.n_batches(resumed)
        self.set_epoch(epoch + 1 if over else epoch)
        if resumed.told is not None and (start or skipped) and not over:
            self._tell(
                resumed.told
            )  # what is left of a pass is left of the order that it was drawn in
        self._resumed, self._withdrawn = None if over else resumed, None

    def _as_json(self) -> dict[str, object]:
        """With the number of ranks, where the sampler deals out by itself: another one gives this rank other samples."""
        world = getattr(self._dealer, "num_replicas", None)
        return {
            "dataset": self._content,
            "n_samples": self._n_samples,
            "sampler": type(self._sampler).__name__,
            "seed": self._seed,
            **({"num_replicas": world} if type(world) is int else {}),
        }

    def n_batches(self, current: Pass) -> float:
        """Of a pass, those before a resume included; infinite where the sampler has no length, as torch allows."""
        try:
            if not current.skipped:
                return len(self)
            left = max(0, len(self._sampler) - current.skipped)
        except TypeError:
            return float("inf")
        size, drop_last = (
            (1, False) if self._dealt is None else (self._dealt.batch_size, self._dealt.drop_last)
        )
        return left // size if drop_last else -(-left // size)

    def _epoch_of_sampler(self) -> int | None:
        epoch = getattr(self._dealer, "epoch", None)
        return epoch if type(epoch) is int else None
