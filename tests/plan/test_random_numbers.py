"""Random numbers are Philox as published and depend on seed, epoch, sample and stream only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from fastload._plan import rng
from fastload._plan.rng import batch_draws, philox

# Known answers from the authors' library Random123 (kat_vectors): counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
# These must never change; otherwise a resumed run would get different crops.
PINNED = [
    [0.27060061949305236, 0.2533284036908299, 0.7014365107752383],
    [0.7724689678288996, 0.943309348076582, 0.9473986856173724],
]


def draws(seed: int, epoch: int, ids: ArrayLike, stream: int, k: int) -> NDArray[np.float64]:
    """Returns the first k numbers of one stream for n sample ids, with shape (n, k)."""
    return batch_draws(seed, epoch, ids, [(stream, -(-k // 4))])[0].values[:k].T.copy()


def plain_philox(counter: tuple[int, ...], key: tuple[int, ...], bits: int) -> tuple[int, ...]:
    """Computes the algorithm of the paper with Python integers, for 32 or 64 bits."""
    multipliers, weyl = {
        32: ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)),
        64: ((0xD2E7470EE14C6C93, 0xCA5A826395121157), (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)),
    }[bits]
    mask = 2**bits - 1
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * multipliers[0], c2 * multipliers[1]
        c0, c1, c2, c3 = (p1 >> bits) ^ c1 ^ k0, p1 & mask, (p0 >> bits) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + weyl[0]) & mask, (k1 + weyl[1]) & mask
    return c0, c1, c2, c3


def our_philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    return tuple(philox(np.array(counter, np.uint64)[:, None], key)[:, 0].tolist())


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_published_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert our_philox(counter, key) == expected


def test_the_plain_algorithm_with_64_bits_equals_numpy() -> None:
    generator = np.random.Philox(key=[5, 6])
    found = generator.random_raw(4).tolist()
    assert tuple(found) == plain_philox(
        (1, 0, 0, 0), (5, 6), 64
    )  # NumPy increments the counter before it draws


@given(st.tuples(*[st.integers(0, 2**32 - 1)] * 4), st.tuples(*[st.integers(0, 2**32 - 1)] * 2))
@settings(max_examples=50, deadline=None)
def test_any_counter_and_key_agree_with_the_plain_algorithm(
    counter: tuple[int, ...], key: tuple[int, int]
) -> None:
    assert our_philox(counter, key) == plain_philox(counter, key, 32)


@given(
    st.tuples(*[st.integers(0, 2**32 - 1)] * 2),
    st.lists(st.integers(0, 2**64 - 1), max_size=9),
    st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 2), max_size=4),
)
@settings(max_examples=50, deadline=None)
def test_core_and_numpy_agree(
    key: tuple[int, int], ids: list[int], counters: list[tuple[int, int]]
) -> None:
    numbers = np.array(ids, np.uint64)
    found, expected = (
        rng._uniform(key, numbers, counters),
        rng._uniform_in_numpy(key, numbers, counters),
    )
    assert found.shape == expected.shape == (4 * len(counters), len(ids))
    assert found.tolist() == expected.tolist()
    assert rng._uniform(key, numbers[::2], counters).tolist() == expected[:, ::2].tolist()


def test_numbers_do_not_change_between_versions() -> None:
    assert draws(7, 3, [0, 123_456_789_012], stream=2, k=3).tolist() == PINNED


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30),
    st.integers(0, 2**40),
    st.integers(0, 2**31),
)
@settings(max_examples=30, deadline=None)
def test_a_sample_gets_its_numbers_in_any_batch_and_order(
    ids: list[int], seed: int, epoch: int
) -> None:
    numbers = np.array(ids, np.uint64)
    whole = draws(seed, epoch, numbers, 1, 5)
    assert whole.shape == (len(ids), 5)
    assert whole[::-1].tolist() == draws(seed, epoch, numbers[::-1], 1, 5).tolist()
    assert [draws(seed, epoch, [each], 1, 5)[0].tolist() for each in numbers] == whole.tolist()
    assert draws(seed, epoch, numbers, 1, 2).tolist() == whole[:, :2].tolist()
    joined = batch_draws(seed, epoch, numbers, [(0, 1), (1, 2), (2, 0)])
    assert [len(each.values) for each in joined] == [4, 8, 0]
    assert joined[1].values[:5].T.tolist() == whole.tolist()
    assert (
        joined[0].more(np.arange(len(ids)), 1, 1).T.tolist()
        == draws(seed, epoch, numbers, 0, 8)[:, 4:].tolist()
    )


def test_seeds_epochs_streams_and_samples_are_uncorrelated() -> None:
    n = 4096
    base = draws(0, 0, np.arange(n), 0, 4)
    others = [
        draws(1, 0, np.arange(n), 0, 4),
        draws(0, 1, np.arange(n), 0, 4),
        draws(0, 0, np.arange(n), 1, 4),
        draws(0, 0, np.arange(n) + 2**32, 0, 4),
        draws(2**32, 0, np.arange(n), 0, 4),
        draws(0, 2**32, np.arange(n), 0, 4),
        draws(0, 0, np.arange(n) + 1, 0, 4),
    ]
    for other in others:
        correlation = np.corrcoef(base.ravel(), other.ravel())[0, 1]
        assert abs(correlation) < 0.03  # 4 sigma of 16384 independent pairs
        assert not (base == other).all(axis=1).any()


def test_numbers_are_uniform_and_below_1() -> None:
    values = draws(11, 0, np.arange(65_536), 0, 4)
    assert values.min() >= 0
    assert values.max() < 1
    for column in values.T:
        counts = np.histogram(column, bins=256, range=(0, 1))[0]
        assert (
            (counts - 256) ** 2 / 256
        ).sum() < 350  # 255 degrees of freedom: 99.99th percentile 344
    assert np.abs(np.corrcoef(values.T) - np.eye(4)).max() < 0.015


def test_negative_seeds_are_allowed() -> None:
    assert draws(-1, 0, [0], 0, 1) == draws(2**64 - 1, 0, [0], 0, 1)
    assert draws(-1, 0, [0], 0, 1) != draws(1, 0, [0], 0, 1)
