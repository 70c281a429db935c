"""The order of an epoch and the measure of how well it mixes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload._order.epoch_order import BlockOrder, full_order
from fastload._order.mixing import measure_mixing
from fastload._order.rank_order import OrderOptions
from fastload.errors import ConfigError


def ids_of(n: int, block: int = 10, seed: int = 0, epoch: int = 0, window: int = 8) -> list[int]:
    return [
        int(i) for i in BlockOrder(n, block=block, seed=seed, epoch=epoch, window=window).ids(0, n)
    ]


@given(
    st.integers(0, 300),
    st.integers(1, 60),
    st.integers(0, 2**40),
    st.integers(0, 50),
    st.integers(1, 9),
)
def test_every_sample_occurs_once_in_an_epoch(
    n: int, block: int, seed: int, epoch: int, window: int
) -> None:
    assert sorted(ids_of(n, block, seed, epoch, window)) == list(range(n))


@given(st.integers(1, 300), st.integers(1, 60), st.integers(0, 99), st.data())
def test_any_slice_equals_the_slice_of_the_whole_order(
    n: int, block: int, seed: int, data: st.DataObject
) -> None:
    order = BlockOrder(n, block=block, seed=seed, epoch=1, window=3)
    whole = BlockOrder(n, block=block, seed=seed, epoch=1, window=3).ids(0, n).tolist()
    for _ in range(3):
        start = data.draw(st.integers(0, n))
        stop = data.draw(st.integers(start, n))
        assert order.ids(start, stop).tolist() == whole[start:stop]


def test_epochs_and_seeds_differ_and_repeat_exactly() -> None:
    orders = [
        ids_of(205, seed=seed, epoch=epoch) for seed, epoch in [(0, 0), (0, 1), (1, 0), (0, 0)]
    ]
    assert orders[0] == orders[3]
    assert len({tuple(order) for order in orders}) == 3


def test_a_window_reads_whole_blocks() -> None:
    order = ids_of(60, block=5, window=4)
    for i in range(0, 60, 20):
        assert len({place // 5 for place in order[i : i + 20]}) == 4


def test_the_short_last_block_may_be_anywhere() -> None:
    places = {
        min(ids_of(101, block=10, epoch=epoch, window=1).index(100) // 10, 10)
        for epoch in range(200)
    }
    assert len(places) == 11


def test_a_billion_samples_need_little_time_and_memory() -> None:
    order = BlockOrder(10**9 + 7, block=76, seed=5, epoch=2)
    ids = np.concatenate([order.ids(place, place + 1000) for place in (0, 5 * 10**8, 10**9 - 993)])
    assert len(set(ids.tolist())) == 3000
    with pytest.raises(IndexError, match="outside an epoch of"):
        order.ids(10**9, 10**9 + 8)


def test_other_orders() -> None:
    full = full_order(50, seed=1, epoch=0)
    assert sorted(full(0, 50).tolist()) == list(range(50))
    assert full(10, 20).tolist() == full(0, 50).tolist()[10:20]
    options = OrderOptions(n_samples=3, shuffle=False, seed=0, block=1, window=1)
    assert options.epoch_order(0, lambda: np.array([4, 2, 9]))(1, 3).tolist() == [2, 9]
    with pytest.raises(ConfigError, match="block=0"):
        BlockOrder(3, block=0, seed=0, epoch=0)


def test_mixing_is_one_for_random_and_zero_for_sorted() -> None:
    n = 20_000
    rng = np.random.default_rng(0)
    labels = np.arange(n) * 50 // n
    order = rng.permutation(n)
    random = measure_mixing(order, labels[order])
    assert random.batch_mixture > 0.98
    assert 0.97 < random.neighbor_distance <= 1.0
    sorted_ = measure_mixing(np.arange(n), labels)
    assert sorted_.batch_mixture < 0.02
    assert sorted_.neighbor_distance < 0.01
    buffered = order.copy()
    buffered = np.concatenate(
        [rng.permutation(np.arange(i, i + 1000)) for i in range(0, n, 1000)]
    )  # a shuffle buffer
    halfway = measure_mixing(buffered, labels[buffered])
    assert 0.02 < halfway.batch_mixture < 0.6


def test_mixing_without_labels_or_with_few_samples() -> None:
    assert measure_mixing(np.array([0]), np.array([3])).neighbor_distance == 1.0
    assert measure_mixing(np.arange(3), None).n_classes == 0
    assert "neighbor distance" in str(measure_mixing(np.arange(100), np.zeros(100, np.int64)))
