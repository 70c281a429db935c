"""The feeder's order of work: what is decoded goes out before the next batch is begun, as long as the decode threads have another one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fastload.loader.feeder import Feeder


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


@pytest.mark.parametrize(("at_once", "expected"), [
    (True, ["begin 0", "begin 1", "finish 0", "begin 2", "finish 1"]),
    (False, ["begin 0", "begin 1", "begin 2", "finish 0"])])
def test_a_batch_that_is_done_goes_out_first(at_once: bool, expected: list[str]) -> None:
    maker = Logged(decodes_at_once=at_once)
    feeder: Feeder[int, int] = Feeder(maker, iter(np.arange(5)[:, None]), ahead=3)
    found = []
    while (batch := feeder.next(10)) is not None:
        feeder.took()
        found.append(batch)
    assert found == [0, 1, 2, 3, 4]
    assert maker.log[:len(expected)] == expected
