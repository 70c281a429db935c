"""Batches begun before they are asked for, for a plain torch DataLoader that was built out of the parts of ours.

Such a loader takes a list of ids from our batch sampler and then asks the dataset for it, and waits. The batch sampler therefore
notes which lists come next, and the dataset begins them while the trainer computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

_MOST = 64  # batches looked ahead where only each n-th is for this process


class Coming:
    """What our batch sampler will give next, in its newest iteration."""

    def __init__(self, ahead: int) -> None:
        self._ahead, self._newest = ahead, _Pass(0)

    def noted(self, batches: Iterator[list[int]]) -> Iterator[list[int]]:
        """The same batches, a few of them known in advance."""
        self._newest = current = _Pass(self._ahead)
        return current.noted(enumerate(batches))

    def after(self, batch: Sequence[int]) -> list[list[int]]:
        """The batches that this process will want behind one that was given; none if it is not one of ours."""
        return self._newest.after(batch)


class _Pass:
    """Numbered batches. Some loaders take only each n-th (Accelerate's shards do): the step is learnt."""

    def __init__(self, ahead: int) -> None:
        self._ahead, self._step = ahead, 1
        self._asked = -1  # number of the batch that was asked for last
        self._given: deque[tuple[int, list[int]]] = deque(maxlen=_MOST)
        self._next: deque[tuple[int, list[int]]] = deque()

    def noted(self, numbered: Iterator[tuple[int, list[int]]]) -> Iterator[list[int]]:
        while True:
            self._next.extend(
                islice(numbered, max(0, 1 + min(_MOST, self._ahead * self._step) - len(self._next)))
            )
            if not self._next:
                return
            self._given.append(self._next.popleft())
            yield self._given[-1][1]

    def after(self, batch: Sequence[int]) -> list[list[int]]:
        asked = list(
            batch
        )  # another's batch sampler may give an array, which compares number by number
        number = next((number for number, given in reversed(self._given) if given == asked), -1)
        if number < 0:
            return []
        if 0 <= self._asked < number:
            self._step = number - self._asked
        self._asked = number
        known = dict((*self._given, *self._next))
        wanted = range(number + self._step, number + self._step * self._ahead + 1, self._step)
        return [known[each] for each in wanted if each in known]
