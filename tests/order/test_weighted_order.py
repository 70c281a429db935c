"""Several datasets are mixed evenly with exact shares, and each is seen completely over epochs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fastload._order.permutation import Indices
from fastload._order.rank_order import OrderOptions
from fastload._order.weighted_order import CHUNK, Share, WeightedOrder, drawn_counts
from fastload._plan.draw_ids import sample_ids
from fastload.errors import ConfigError

SIZES = (300, 170, 30)
ENDS = np.cumsum(SIZES)
SHUFFLES = [True, "full", False]


def shares(weights: Sequence[float], sizes: Sequence[int] = SIZES) -> tuple[Share, ...]:
    counts = drawn_counts(weights, sizes)
    stops = np.cumsum(sizes).tolist()
    return tuple(
        Share((range(stop - size, stop),), count, block=7)
        for stop, size, count in zip(stops, sizes, counts, strict=True)
    )


def order(weights: Sequence[float], *, epoch: int = 0, shuffle: Any = True) -> WeightedOrder:
    tables = [np.arange(stop - size, stop) for stop, size in zip(ENDS, SIZES, strict=True)]
    return WeightedOrder(
        shares(weights), shuffle=shuffle, seed=3, epoch=epoch, window=2, source_order=lambda: tables
    )


def numbers(draw_ids: Indices) -> Indices:
    """Returns which dataset each sample comes from."""
    return np.searchsorted(ENDS, sample_ids(draw_ids), side="right")


@pytest.mark.parametrize(
    ("weights", "sizes", "expected"),
    [
        ([0.7, 0.3], [5, 5], [7, 3]),
        ([7, 3], [9, 1], [7, 3]),
        ([1, 1], [2, 3], [3, 2]),  # equal remainders: the first dataset
        ([1, 1, 1], [10, 10, 0], [7, 7, 6]),
        ([0, 2.5], [3, 4], [0, 7]),
        ([1e300, 1e300], [4, 2], [3, 3]),
        ([1 / 3, 2 / 3], [10**9, 2], [333333334, 666666668]),
        (np.array([0.25, 0.75], np.float32), [3, 5], [2, 6]),
        ((1,), [4], [4]),
    ],
    ids=str,
)
def test_counts_are_exact_up_to_rounding(weights: Any, sizes: Any, expected: list[int]) -> None:
    assert drawn_counts(weights, sizes) == expected


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.7], "expected 2 numbers"),
        ([1, 2, 3], "expected 2 numbers"),
        ([1, -1], "0 or more"),
        ([1, math.nan], "0 or more"),
        ([1, math.inf], "0 or more"),
        ([0, 0.0], "at least one weight above 0"),
        ([1, "much"], "expected 2 numbers"),
        ([1, None], "expected 2 numbers"),
        ("12", "expected 2 numbers"),
        (0.5, "expected 2 numbers"),
        ([1, 1e-9], "less than one of the 100 samples"),
    ],
    ids=str,
)
def test_invalid_weights_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        drawn_counts(weights, [60, 40])


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("weights", [(0.5, 0.3, 0.2), (1, 0, 9), (0.02, 0.02, 0.96)], ids=str)
def test_an_epoch_has_the_shares_everywhere(weights: tuple[float, ...], shuffle: Any) -> None:
    n = sum(SIZES)
    found = numbers(order(weights, shuffle=shuffle).ids(0, n))
    expected = drawn_counts(weights, SIZES)
    assert np.bincount(found, minlength=3).tolist() == expected
    step = CHUNK if shuffle else 1
    for number, count in enumerate(expected):
        before = np.concatenate(([0], np.cumsum(found == number)))
        for length in (64, 128, 320) if shuffle else (10, 64, 100, 256):
            starts = np.arange(0, n - length + 1, step)
            share = before[starts + length] - before[starts]
            assert np.abs(share - length * count / n).max() < number + 1


def test_datasets_do_not_alternate_in_a_fixed_pattern() -> None:
    weights = (0.5, 0.5, 0)
    shuffled, plain = (
        numbers(order(weights, shuffle=how).ids(0, sum(SIZES))) for how in (True, False)
    )
    assert (plain[1:] != plain[:-1]).all()
    assert 0.3 < (shuffled[1:] != shuffled[:-1]).mean() < 0.7


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_any_interval_is_part_of_the_same_epoch(shuffle: Any) -> None:
    n = sum(SIZES)
    one = order((3, 2, 5), epoch=4, shuffle=shuffle)
    whole = one.ids(0, n)
    assert len(np.unique(whole)) == n  # copies of a sample have different numbers
    for start, stop in [(0, 1), (63, 65), (100, 100), (130, 400), (n - 1, n), (7, n)]:
        assert one.ids(start, stop).tolist() == whole[start:stop].tolist()
        other = order((3, 2, 5), epoch=4, shuffle=shuffle)
        assert other.ids(start, stop).tolist() == whole[start:stop].tolist()


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_every_sample_is_used_equally_often_over_epochs(shuffle: Any) -> None:
    weights = (1, 2, 7)  # 50 of 300, 100 of 170, 350 of 30
    seen: Counter[int] = Counter()
    for epoch in range(6):
        seen.update(sample_ids(order(weights, epoch=epoch, shuffle=shuffle).ids(0, 500)).tolist())
    assert {seen[i] for i in range(300)} == {1}
    assert {seen[i] for i in range(300, 470)} == {3, 4}
    assert {seen[i] for i in range(470, 500)} == {70}


def test_epochs_and_datasets_have_different_orders() -> None:
    first, second = (order((1, 1, 1), epoch=epoch).ids(0, 500).tolist() for epoch in range(2))
    assert first != second
    twice = [Share((range(50),), 50, 7), Share((range(50, 100),), 50, 7)]
    mixed = WeightedOrder(twice, shuffle=True, seed=0, epoch=0, window=2, source_order=list)
    ids = mixed.ids(0, 100)
    assert ids[ids < 50].tolist() != (ids[ids >= 50] - 50).tolist()


def test_a_dataset_may_have_several_ranges_of_ids() -> None:
    share = Share((range(5, 8), range(20, 22)), 5, block=2)
    assert share.ids(np.arange(5)).tolist() == [5, 6, 7, 20, 21]


@pytest.mark.parametrize("shuffle", [True, "full"])
def test_huge_datasets_need_no_table_and_no_large_products(shuffle: Any) -> None:
    sizes = (10**10, 3 * 10**10, 7)
    options = OrderOptions(
        n_samples=sum(sizes),
        shuffle=shuffle,
        seed=1,
        block=80,
        window=8,
        shares=shares((0.5, 0.4, 0.1), sizes),
    )
    assert options.n_positions == sum(sizes)
    find = options.epoch_order(10**6, lambda: np.empty(0, np.int64))
    ids = find(sum(sizes) - 1000, sum(sizes))
    which = np.searchsorted(np.cumsum(sizes), sample_ids(ids), side="right")
    assert np.abs(np.bincount(which) - (500, 400, 100)).max() <= 33
    assert ids.min() >= 0
