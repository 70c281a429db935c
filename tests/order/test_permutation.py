"""The computed permutation is a bijection, portable and sufficiently random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload._common.native import core
from fastload._order.permutation import Permutation

PINNED_10 = [7, 5, 1, 8, 6, 3, 4, 0, 9, 2]
PINNED_BILLION = [404112489, 800765799, 593272320]


@given(st.integers(0, 3000), st.integers(0, 2**70))
def test_every_number_occurs_exactly_once(n: int, seed: int) -> None:
    assert sorted(Permutation(n, seed=seed)(np.arange(n)).tolist()) == list(range(n))


def test_it_is_the_same_on_every_machine_and_version() -> None:
    assert Permutation(10, seed=0)(np.arange(10)).tolist() == PINNED_10
    assert Permutation(10**9, seed=7)(np.array([0, 1, 999_999_999])).tolist() == PINNED_BILLION


@given(
    st.integers(1, 2**63 - 1), st.integers(0, 2**70), st.lists(st.integers(0, 2**63), max_size=40)
)
def test_core_and_numpy_agree(n: int, seed: int, places: list[int]) -> None:
    order, positions = (
        Permutation(n, seed=seed),
        np.array([place % n for place in places], np.int64),
    )
    assert order(positions).tolist() == order._in_numpy(positions).tolist()
    assert order(positions[::2]).tolist() == order._in_numpy(positions[::2]).tolist()


@pytest.mark.skipif(core() is None, reason="not run: no native core")
def test_the_core_rejects_arguments_that_would_loop_forever() -> None:
    module, keys = core(), np.arange(6, dtype=np.uint64)
    assert module is not None
    room = np.zeros(1, np.int64)
    for position, n, half_bits, error in (
        (5, 5, 2, IndexError),
        (-1, 5, 2, IndexError),
        (0, 17, 2, ValueError),
        (0, 5, 0, ValueError),
        (0, 5, 33, ValueError),
    ):
        with pytest.raises(error):
            module.permute(np.array([position]), room, n=n, half_bits=half_bits, keys=keys)
    with pytest.raises(ValueError, match="result: expected 16 bytes, found 8"):
        module.permute(np.zeros(2, np.int64), room, n=5, half_bits=2, keys=keys)
    module.permute(np.array([4]), room, n=5, half_bits=2, keys=keys)
    assert 0 <= room[0] < 5


def test_parts_equal_the_whole() -> None:
    order = Permutation(1000, seed=3)
    whole = order(np.arange(1000))
    assert (
        np.concatenate(
            [order(np.arange(i, min(i + 64, 1000))) for i in range(0, 1000, 64)]
        ).tolist()
        == whole.tolist()
    )


def test_different_seeds_yield_unrelated_orders() -> None:
    n = 4096
    orders = [Permutation(n, seed=seed)(np.arange(n)) for seed in range(40)]
    equal_places = [(a == b).sum() for i, a in enumerate(orders) for b in orders[:i]]
    assert (
        0.8 < np.mean(equal_places) < 1.2
    )  # two random permutations agree in one place on average


def test_positions_and_neighbors_are_uniform() -> None:
    n, bins = 65_536, 16
    order = Permutation(n, seed=11)(np.arange(n))
    counts = np.histogram2d(np.arange(n), order, bins=bins)[0]
    expected = n / bins**2
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert chi2 < 300  # 225 degrees of freedom: mean 225, 99.9th percentile 297
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.015


@pytest.mark.parametrize("wrong", [-1, 10])
def test_positions_out_of_range_are_rejected(wrong: int) -> None:
    with pytest.raises(IndexError, match="of a permutation of 10 numbers"):
        Permutation(10, seed=0)(np.array([wrong]))
    with pytest.raises(ValueError, match="expected 0 or more"):
        Permutation(-1, seed=0)
