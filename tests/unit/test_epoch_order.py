"""The order of an epoch, and the figure that says how well it mixes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastload.order.blocks import epoch_order
from fastload.order.mixing import measure_mixing


def blocks_of(counts: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.stack([np.cumsum([0, *counts[:-1]]), counts], axis=1).astype(np.int64)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=40), st.integers(0, 2**40), st.integers(0, 50), st.integers(1, 9))
def test_every_sample_comes_once_in_an_epoch(counts: list[int], seed: int, epoch: int, window: int) -> None:
    ids = np.concatenate(list(epoch_order(blocks_of(counts), seed=seed, epoch=epoch, window=window)))
    assert sorted(ids.tolist()) == list(range(sum(counts)))


def test_epochs_differ_and_seeds_differ_and_the_same_is_the_same() -> None:
    blocks = blocks_of([10] * 20)
    orders = [np.concatenate(list(epoch_order(blocks, seed=seed, epoch=epoch))).tolist() for seed, epoch in
              [(0, 0), (0, 1), (1, 0), (0, 0)]]
    assert orders[0] == orders[3]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_a_window_reads_whole_blocks() -> None:
    for ids in epoch_order(blocks_of([5] * 12), seed=3, epoch=0, window=4):
        assert len(ids) == 20
        assert len({int(i) // 5 for i in ids}) == 4


def test_mixing_is_one_for_random_and_zero_for_sorted() -> None:
    n = 20_000
    rng = np.random.default_rng(0)
    labels = np.arange(n) * 50 // n
    order = rng.permutation(n)
    random = measure_mixing(order, labels[order])
    assert random.batch_mixture > 0.98
    assert 0.97 < random.neighbour_distance <= 1.0
    sorted_ = measure_mixing(np.arange(n), labels)
    assert sorted_.batch_mixture < 0.02
    assert sorted_.neighbour_distance < 0.01
    buffered = order.copy()
    buffered = np.concatenate([rng.permutation(np.arange(i, i + 1000)) for i in range(0, n, 1000)])     # a shuffle buffer
    halfway = measure_mixing(buffered, labels[buffered])
    assert 0.02 < halfway.batch_mixture < 0.6


def test_mixing_without_labels_or_with_few_samples() -> None:
    assert measure_mixing(np.array([0]), np.array([3])).neighbour_distance == 1.0
    assert measure_mixing(np.arange(3), None).n_classes == 0
    assert "neighbour distance" in str(measure_mixing(np.arange(100), np.zeros(100, np.int64)))
