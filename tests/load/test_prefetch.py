"""The feeder's order of work: what is decoded goes out before the next batch is begun, as long as the decode threads have another one."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastload._load.prefetch import Feeder
from fastload._load.ready_queue import Shelf


class Logged:
    """Says what it was asked to do."""

    def __init__(self, *, decodes_at_once: bool) -> None:
        self.log: list[str] = []
        self._at_once = decodes_at_once

    def begin(self, ids: NDArray[np.int64]) -> int:
        self.log.append(f"begin {ids[0]}")
        return int(ids[0])

    def done(self, begun: int) -> bool:
        return self._at_once

    def finish(self, begun: int) -> int:
        self.log.append(f"finish {begun}")
        return begun


@pytest.mark.parametrize(
    ("at_once", "expected"),
    [
        (True, ["begin 0", "begin 1", "finish 0", "begin 2", "finish 1"]),
        (False, ["begin 0", "begin 1", "begin 2", "finish 0"]),
    ],
)
def test_a_batch_that_is_done_goes_out_first(at_once: bool, expected: list[str]) -> None:
    maker = Logged(decodes_at_once=at_once)
    feeder: Feeder[int, int] = Feeder(maker, iter(np.arange(5)[:, None]), ahead=3)
    found = []
    while (batch := feeder.next(10)) is not None:
        feeder.took()
        found.append(batch)
    assert found == [0, 1, 2, 3, 4]
    assert maker.log[: len(expected)] == expected


class Interrupted:
    """A queue that gives, and Ctrl-C comes before anybody has what it gave: once for each."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._calls = inner, 0

    def put(self, item: Any) -> None:
        self._inner.put(item)

    def qsize(self) -> int:
        return int(self._inner.qsize())

    def get(self, *, timeout: float) -> Any:
        item = self._inner.get(timeout=timeout)
        self._calls += 1
        if self._calls % 2:
            raise KeyboardInterrupt
        return item


@pytest.mark.parametrize("ahead", [1, 3])
def test_ctrl_c_when_a_batch_comes_does_not_lose_it(
    monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """With one batch ahead, a lost one would be waited for for ever."""
    queues = queue.SimpleQueue
    monkeypatch.setattr(
        "fastload._load.ready_queue.queue.SimpleQueue", lambda: Interrupted(queues())
    )
    shelf = Shelf(Logged)
    monkeypatch.undo()
    shelf.calls = queues()
    monkeypatch.setattr("fastload._load.prefetch.Shelf", lambda owner: shelf)
    maker = Logged(decodes_at_once=True)
    feeder: Feeder[int, int] = Feeder(maker, iter(np.arange(5)[:, None]), ahead=ahead)
    found, interrupts = [], 0
    while True:
        try:
            if (batch := feeder.next(2)) is None:
                break
        except KeyboardInterrupt:
            interrupts += 1
            continue
        feeder.took()
        found.append(batch)
    assert found == [0, 1, 2, 3, 4]
    assert interrupts
