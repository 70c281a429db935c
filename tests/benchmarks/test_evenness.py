"""benchmarks/evenness.py separates variation of the loader from changes of the machine."""

from __future__ import annotations

import random
import statistics

import pytest

from benchmarks import evenness
from benchmarks.evenness import step_to_step, stolen_s, tail, tail_spread, undisturbed
from benchmarks.loads import Moment, _gaps


def test_step_to_step_equals_the_coefficient_of_variation_for_independent_times() -> None:
    draw = random.Random(0)
    times = [draw.gauss(100, 7) for _ in range(4000)]
    assert step_to_step(times) == pytest.approx(
        statistics.pstdev(times) / statistics.mean(times), rel=0.05
    )
    assert step_to_step([2.0, 2.0, 2.0]) == 0


def test_slow_drift_does_not_count_but_every_fourth_step_does() -> None:
    slower = [1.0 + number / 100 for number in range(100)]
    assert step_to_step(slower) < 0.01
    assert statistics.pstdev(slower) / statistics.mean(slower) > 0.15
    bursts = [1.4 if number % 4 == 0 else 1.0 for number in range(100)]
    assert step_to_step(bursts) >= 0.99 * statistics.pstdev(bursts) / statistics.mean(bursts)


def test_the_tail_is_relative_to_the_median_of_each_epoch() -> None:
    assert tail([[1.0] * 100, [3.0] * 100]) == 1  # the second was slow, not uneven
    late = [[1.0] * 97 + [2.0] * 3, [3.0] * 97 + [6.0] * 3]
    assert tail(late) == 2
    assert tail([[1.0] * 1000, [1.0] * 99 + [9.0]]) == 1  # one in 1100 is no hundredth
    figure, low, high = tail_spread(late)
    assert low == figure == high == 2
    figure, low, high = tail_spread([*late, *[[1.0] * 100] * 3])
    assert low <= figure <= high
    assert low < high


def test_times_disturbed_by_the_host_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evenness, "available_cpus", lambda: 2)
    assert undisturbed([1.0, 1.0, 4.0], [0.0, 0.1, 0.5]) == [
        1.0,
        1.0,
    ]  # a tenth of a second of two processors' is a twentieth
    assert undisturbed([1.0, 1.0, 4.0], [0.2, 0.2, 0.0]) == [
        1.0,
        1.0,
        4.0,
    ]  # few would be left: then all count
    moments = [
        Moment(clock, stolen)
        for clock, stolen in (
            (0.0, 5.0),
            (9.0, 5.0),
            (10.0, 5.0),
            (11.0, 5.0),
            (15.0, 6.0),
            (16.0, 6.0),
        )
    ]
    found = _gaps(moments, ahead=1)  # the first gap is out of the stock
    assert (found.seconds, found.disturbed) == ([1.0, 1.0, 1.0], 1)
    assert stolen_s() >= 0
