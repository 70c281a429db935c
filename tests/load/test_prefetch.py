"""The order of work with several batches in flight, and Ctrl-C while the consumer waits.

A decoded batch is delivered before the next one is planned, as long as the decode threads have
another one.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

from fastload._load.batch import Batch, Failed, Ids, PendingBatch, PlannedBatch, Progress, unwrap
from fastload._load.pipeline import Driver, Pipeline, plan_batches
from fastload._load.planning import Planner
from fastload._load.prefetch import Prefetcher, ReadyQueue


class LoggedPipeline:
    """Logs its calls. Batches are single numbers, and ``bad`` ones raise an error."""

    def __init__(self, *, decodes_at_once: bool = True, bad: dict[str, int] | None = None) -> None:
        self.log: list[str] = []
        self.planner = self
        self._at_once = decodes_at_once
        self._bad = bad or {}

    def _step(self, name: str, number: int) -> None:
        self.log.append(f"{name} {number}")
        if self._bad.get(name) == number:
            raise OSError(f"{name} {number}")

    def group_size(self, batch_size: int) -> int:
        return batch_size

    def plan(self, ids: Ids, epoch: int, *, in_order: bool = False) -> PlannedBatch:
        self._step("plan", int(ids[0]))
        return PlannedBatch(ids, epoch, cast(Any, None), {}, {}, 0.0)

    def submit(self, planned: PlannedBatch) -> PendingBatch:
        self._step("submit", int(planned.ids[0]))
        return PendingBatch(planned, ())

    def is_decoded(self, pending: PendingBatch) -> bool:
        return self._at_once

    def finish(self, pending: PendingBatch, collate: object) -> int:
        number = int(pending.planned.ids[0])
        self._step("finish", number)
        return number


def batches() -> Iterator[Ids]:
    return iter(np.arange(5)[:, None])


def make_driver(pipeline: LoggedPipeline) -> Driver:
    plans = plan_batches(cast(Planner, pipeline), batches(), 0, Progress())
    return Driver(cast(Pipeline, pipeline), plans, send=False)


def delivered(prefetcher: Prefetcher) -> list[Batch | Failed]:
    found = []
    while (batch := prefetcher.get(10)) is not None:
        prefetcher.commit()
        found.append(batch)
    return found


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize(
    ("at_once", "expected"),
    [
        (True, ["submit 0", "submit 1", "finish 0", "submit 2", "finish 1"]),
        (False, ["submit 0", "submit 1", "submit 2", "finish 0"]),
    ],
)
def test_a_decoded_batch_is_delivered_first(
    drawn: bool, at_once: bool, expected: list[str]
) -> None:
    pipeline = LoggedPipeline(decodes_at_once=at_once)
    if drawn:
        driver = Driver(cast(Pipeline, pipeline), send=False)
        prefetcher = Prefetcher(driver, depth=3, drawn=batches())
    else:
        prefetcher = Prefetcher(make_driver(pipeline), depth=3)
    assert [unwrap(batch).data for batch in delivered(prefetcher)] == [0, 1, 2, 3, 4]
    steps = [step for step in pipeline.log if not step.startswith("plan")]
    assert steps[: len(expected)] == expected
    plan = pipeline.log.index("plan 2")  # a batch is not planned early
    assert pipeline.log[plan + 1] == "submit 2"


@pytest.mark.parametrize("stage", ["plan", "submit", "finish"])
def test_an_error_replaces_its_batch_and_later_batches_arrive(stage: str) -> None:
    pipeline = LoggedPipeline(bad={stage: 2})
    found = delivered(Prefetcher(make_driver(pipeline), depth=3))
    assert [batch.data if isinstance(batch, Batch) else str(batch.error) for batch in found] == [
        0,
        1,
        f"{stage} 2",
        3,
        4,
    ]


def test_an_order_that_fails_has_no_next_batch() -> None:
    def failing() -> Iterator[PlannedBatch]:
        yield PlannedBatch(np.zeros(1, np.int64), 0, cast(Any, None), {}, {}, 0.0)
        raise OSError("the order")

    driver = Driver(cast(Pipeline, LoggedPipeline()), failing(), send=False)
    first, failed = delivered(Prefetcher(driver, depth=3))
    assert unwrap(first).data == 0
    with pytest.raises(OSError, match="the order"):
        unwrap(failed)


class Interrupted:
    """A queue that raises Ctrl-C every other time, after an item was removed."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._calls = 0

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


@pytest.mark.parametrize("depth", [1, 3])
def test_ctrl_c_when_a_batch_arrives_does_not_lose_it(
    monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """With a depth of one, the consumer would wait forever for a lost batch."""

    class InterruptedQueue(ReadyQueue):
        def __init__(self, owner: object) -> None:
            super().__init__(owner)
            self.wake_up = cast(queue.SimpleQueue[None], Interrupted(self.wake_up))

    monkeypatch.setattr("fastload._load.prefetch.ReadyQueue", InterruptedQueue)
    prefetcher = Prefetcher(make_driver(LoggedPipeline()), depth=depth)
    found = []
    interrupts = 0
    while True:
        try:
            if (batch := prefetcher.get(2)) is None:
                break
        except KeyboardInterrupt:
            interrupts += 1
            continue
        prefetcher.commit()
        found.append(unwrap(batch).data)
    assert found == [0, 1, 2, 3, 4]
    assert interrupts


def test_a_batch_is_the_same_until_it_is_committed() -> None:
    prefetcher = Prefetcher(make_driver(LoggedPipeline()), depth=2)
    first = prefetcher.get(10)
    assert prefetcher.get(10) is first

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prefetcher.commit(interrupted)  # before the batch was counted
    assert prefetcher.get(10) is first
    assert [unwrap(batch).data for batch in delivered(prefetcher)] == [0, 1, 2, 3, 4]
