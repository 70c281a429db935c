"""Makes the user's batch. A ``collate_fn`` gets random numbers that are the same in every run.

Python's ``random``, ``np.random`` and torch's default generators belong to the whole process. If
the feeder thread drew from them or replaced their state, the trainer's thread would draw other
numbers in every run, because both may draw at the same moment. A ``collate_fn`` therefore runs in
the trainer's thread, inside ``next()``, with generators that are seeded for its batch and restored
afterwards. A ``collate_fn`` with a parameter ``generator`` draws from its own generator, so the
feeder thread runs it ahead of the trainer.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._common import cuda
from fastload._finish.batch import compute_alone, set_own_threads
from fastload._load.batch import PlannedBatch, Values, split_samples
from fastload._load.spec import LoadSpec


class Collator:
    """Makes a dict, a tuple, the result of a collate_fn, or a single sample."""

    def __init__(
        self,
        spec: LoadSpec,
        collate_fn: Callable[..., Any] | None,
        *,
        batched: bool,
        seed: int,
    ) -> None:
        self._as_tuple = spec.as_tuple
        self._collate_fn = collate_fn
        self._batched = batched
        self._seed = seed
        self._takes_generator = collate_fn is not None and _takes_generator(collate_fn)

    def __call__(self, values: Values, planned: PlannedBatch) -> Any:
        """Returns the batch, or Uncollated if the trainer's thread must run the collate_fn."""
        if self._batched and self._collate_fn is None:
            return tuple(values.values()) if self._as_tuple else values
        samples = split_samples(values, len(planned.ids), as_tuple=self._as_tuple)
        given = samples if self._batched else samples[0]
        if self._collate_fn is None:
            return given
        # The first sample identifies the batch on any rank and after a resume: each copy of a
        # sample has its own draw id.
        key = (self._seed, planned.epoch, int(planned.ids[0]))
        words = np.random.SeedSequence(key).generate_state(10).astype(np.uint32, copy=False)
        if not self._takes_generator:
            return Uncollated(self._collate_fn, given, words)
        compute_alone()  # OpenMP threads would compete with the decode threads
        return self._collate_fn(given, generator=torch.Generator().manual_seed(_number(words[:2])))


@dataclass(frozen=True, slots=True)
class Uncollated:
    """The samples of a batch whose collate_fn has not run yet."""

    collate_fn: Callable[[Any], Any]
    samples: Any
    words: NDArray[np.uint32]  # random; seed the generators

    def collate(self) -> Any:
        """Runs the collate_fn on one thread, with the generators of the process seeded for it.

        Afterwards they continue as if it had not run. Other threads must not draw meanwhile.
        """
        generators = process_generators()
        restore = restoring(generators, partial(set_own_threads, torch.get_num_threads()))
        try:
            set_own_threads(1)  # OpenMP threads would compete with the decode threads
            # Other words for each: with equal seeds, ``random`` and ``np.random`` are equal.
            random.seed(_number(self.words[2:6]))
            np.random.seed(self.words[6:])
            for each in generators:
                each.manual_seed(_number(self.words[:2]))
            return self.collate_fn(self.samples)
        finally:
            restore()


def process_generators() -> tuple[torch.Generator, ...]:
    """Returns torch's default generators of the CPU and of GPUs that are in use."""
    return (torch.default_generator, *cuda.generators())


def restoring(generators: Iterable[torch.Generator], *also: partial[Any]) -> Callable[[], object]:
    """Returns a function that restores Python's, NumPy's and these generators, and calls ``also``.

    It is a single call of C code, which Ctrl-C cannot interrupt. ``random.setstate`` and
    ``torch.set_rng_state`` are Python code.
    """
    python = random._inst
    _, python_state, next_gauss = random.getstate()
    calls: tuple[partial[Any], ...] = (
        partial(super(random.Random, python).setstate, python_state),
        partial(setattr, python, "gauss_next", next_gauss),
        partial(np.random.set_state, np.random.get_state()),
        *(partial(each.set_state, each.get_state()) for each in generators),
        *also,
    )
    return partial(list, map(partial.__call__, calls))


def _takes_generator(collate_fn: Callable[..., Any]) -> bool:
    try:
        parameter = inspect.signature(collate_fn).parameters.get("generator")
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    return parameter is not None and parameter.default is None


def _number(words: NDArray[np.uint32]) -> int:
    return int.from_bytes(words.tobytes(), "little")
