"""Partition over ranks: every position once, equal batch counts, resume with any world size."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload._order.partition import Interval, RankPartition, merged
from fastload.errors import ConfigError

Shape = st.tuples(st.integers(0, 90), st.integers(1, 9), st.integers(1, 13))


def places(intervals: list[Interval]) -> list[int]:
    return [place for start, stop in intervals for place in range(start, stop)]


def all_batches(partition: RankPartition, first: int = 0) -> dict[int, list[list[int]]]:
    return {
        rank: [places(partition.batch(rank, n)) for n in range(first, partition.n_batches)]
        for rank in range(partition.world)
    }


@given(Shape)
def test_partial_takes_every_sample_once_and_no_batch_is_empty(shape: tuple[int, int, int]) -> None:
    n, world, size = shape
    batches = all_batches(RankPartition(((0, n),), world, size, "partial"))
    assert all(1 <= len(batch) <= size for rank in batches.values() for batch in rank) or n < world
    seen = Counter(place for rank in batches.values() for batch in rank for place in batch)
    if size > 1 and n >= world * 2:
        assert seen == Counter(range(n))
    else:
        assert set(seen) == set(range(n))


@given(Shape)
def test_drop_yields_full_batches_without_repeats(shape: tuple[int, int, int]) -> None:
    n, world, size = shape
    partition = RankPartition(((0, n),), world, size, "drop")
    batches = all_batches(partition)
    seen = Counter(place for rank in batches.values() for batch in rank for place in batch)
    assert all(len(batch) == size for rank in batches.values() for batch in rank)
    assert all(count == 1 for count in seen.values())
    assert n - len(seen) < world * (size + 1)


@given(Shape)
def test_pad_takes_every_sample_and_equal_counts_per_rank(shape: tuple[int, int, int]) -> None:
    n, world, size = shape
    batches = all_batches(RankPartition(((0, n),), world, size, "pad"))
    assert len({tuple(map(len, rank)) for rank in batches.values()}) == 1
    seen = Counter(place for rank in batches.values() for batch in rank for place in batch)
    assert set(seen) == set(range(n))
    assert sum(seen.values()) - n < world


@given(
    st.integers(40, 120),
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(2, 7), st.integers(0, 9)), min_size=1, max_size=5
    ),
)
def test_changing_world_sizes_lose_and_repeat_no_sample(
    n: int, runs: list[tuple[int, int, int]]
) -> None:
    left: tuple[Interval, ...] = ((0, n),)
    seen: Counter[int] = Counter()
    for world, size, stop_after in runs:
        partition = RankPartition(left, world, size)
        stop = (
            min(stop_after, partition.n_batches) if partition.n_left >= 2 * world else 0
        )  # with fewer samples, ranks must repeat some
        seen.update(
            place
            for rank in range(world)
            for number in range(stop)
            for place in places(partition.batch(rank, number))
        )
        left = partition.after(stop)
        assert len(left) <= 30
    rest = RankPartition(left, 1, 4)
    seen.update(place for batch in all_batches(rest)[0] for place in batch)
    assert set(seen) == set(range(n))
    assert max(seen.values()) == 1


@given(Shape, st.integers(0, 30))
def test_the_rest_is_what_was_not_delivered(shape: tuple[int, int, int], stop: int) -> None:
    n, world, size = shape
    partition = RankPartition(((0, n // 2), (n, n + n - n // 2)), world, size + 1, "drop")
    stop = min(stop, partition.n_batches)
    given_out = {
        place
        for rank in range(world)
        for number in range(stop)
        for place in places(partition.batch(rank, number))
    }
    left = set(places(list(partition.after(stop))))
    assert not given_out & left
    if stop < partition.n_batches:
        assert given_out | left == set(places(list(partition.left)))


def test_a_rank_reads_one_interval() -> None:
    partition = RankPartition(((0, 1000),), 4, 10)
    for rank in range(4):
        ids = [
            place
            for number in range(partition.n_batches)
            for place in places(partition.batch(rank, number))
        ]
        assert ids == list(range(rank * 250, rank * 250 + 250))


def test_invalid_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match="world_size=0"):
        RankPartition(((0, 10),), 0, 1)
    with pytest.raises(ConfigError, match="batch 5 of rank 0: expected a batch below 5"):
        RankPartition(((0, 10),), 1, 2).batch(0, 5)
    assert merged([(0, 3), (3, 5), (7, 7), (9, 10)]) == ((0, 5), (9, 10))


def test_many_ranks_and_intervals_are_fast_enough_for_hostile_states() -> None:
    """The work grows with the sum of both numbers. With their product, this would take hours."""
    left: tuple[Interval, ...] = ((0, 1_000_000),)
    for _ in range(3):
        partition = RankPartition(left, 1 << 16, 2, "partial")
        left = partition.after(1)
        assert sum(stop - start for start, stop in left) == partition.n_left - 2 * (1 << 16)
    assert len(left) == 1 << 16
