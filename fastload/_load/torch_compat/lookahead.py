"""Batches begun before they are requested, for a plain torch DataLoader that was built from the parts of ours.

Such a loader takes a list of ids from our batch sampler, requests these samples from the dataset, and waits. So the batch sampler
records which lists follow, and the dataset view starts decoding them while the trainer computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

_MAX_DEPTH = 64  # batches drawn in advance where only every n-th is for this process


class Lookahead:
    """The batches that follow in the newest iteration of our batch sampler."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._newest = _Pass(0)

    def recorded(self, batches: Iterator[list[int]]) -> Iterator[list[int]]:
        """The same batches, a few of them drawn in advance."""
        self._newest = _Pass(self._depth)
        return self._newest.recorded(enumerate(batches))

    def after(self, batch: Sequence[int]) -> list[list[int]]:
        """The batches that this process will request after one; none if our batch sampler did not yield it."""
        return self._newest.after(batch)


class _Pass:
    """Numbered batches. Some loaders take only every n-th (Accelerate's shards do): the step is learned."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._step = 1
        self._last_requested = -1
        self._yielded: deque[tuple[int, list[int]]] = deque(maxlen=_MAX_DEPTH)
        self._upcoming: deque[tuple[int, list[int]]] = deque()

    def recorded(self, numbered: Iterator[tuple[int, list[int]]]) -> Iterator[list[int]]:
        while True:
            wanted = 1 + min(_MAX_DEPTH, self._depth * self._step)
            self._upcoming.extend(islice(numbered, max(0, wanted - len(self._upcoming))))
            if not self._upcoming:
                return
            self._yielded.append(self._upcoming.popleft())
            yield self._yielded[-1][1]

    def after(self, batch: Sequence[int]) -> list[list[int]]:
        ids = list(batch)  # a foreign batch sampler may yield arrays, which compare elementwise
        number = next((number for number, given in reversed(self._yielded) if given == ids), -1)
        if number < 0:
            return []
        if 0 <= self._last_requested < number:
            self._step = number - self._last_requested
        self._last_requested = number
        known = dict((*self._yielded, *self._upcoming))
        wanted = range(number + self._step, number + self._step * self._depth + 1, self._step)
        return [known[each] for each in wanted if each in known]
