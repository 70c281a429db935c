"""Epochs of any shape: every id once over all ranks, equal counts, exact resume at any step."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload._load.torch_compat.samplers import Lookahead, RankBatches, RankSampler
from fastload._order.epoch_state import EpochState, Phase
from fastload._order.partition import Partition
from fastload._order.rank_order import OrderOptions, RankOrder
from fastload._order.sampler_order import SamplerOrder
from fastload.errors import ConfigError

Shape = dict[str, Any]
shuffles = st.sampled_from([True, False, "full"])
shapes = st.fixed_dictionaries(
    {
        "n": st.integers(1, 200),
        "block": st.integers(1, 30),
        "window": st.integers(1, 6),
        "shuffle": shuffles,
        "world": st.integers(1, 8),
        "size": st.integers(1, 17),
        "seed": st.integers(0, 2**62),
        "epoch": st.integers(0, 99),
    }
)


def ranks_of(
    shape: Shape, last_batch: str, world: int | None = None, size: int | None = None
) -> list[RankOrder]:
    n, world, size = shape["n"], world or shape["world"], size or shape["size"]
    options = OrderOptions(
        n_samples=n,
        shuffle=shape["shuffle"],
        seed=shape["seed"],
        block=shape["block"],
        window=shape["window"],
    )
    table = np.random.default_rng(shape["seed"] % 1000).permutation(n)
    ranks = [
        RankOrder(
            options,
            batch_size=size,
            partition=Partition(rank, world, last_batch),
            source_order=lambda: table,
        )
        for rank in range(world)
    ]
    for rank in ranks:
        rank.set_epoch(shape["epoch"])
    return ranks


def batches_of(rank: RankOrder) -> list[list[int]]:
    return [ids.tolist() for ids in rank.batches(rank.begin())]


@given(shapes)
@settings(max_examples=300)
def test_partial_yields_every_id_once_and_equal_batch_counts(shape: Shape) -> None:
    ranks = ranks_of(shape, "partial")
    batches = [batches_of(rank) for rank in ranks]
    assert {len(rank) for rank in batches} == {len(ranks[0])}
    assert [rank.n_samples() for rank in ranks] == [sum(map(len, rank)) for rank in batches]
    seen = Counter(i for rank in batches for batch in rank for i in batch)
    assert set(seen) == set(range(shape["n"]))
    if (
        shape["size"] > 1 and shape["n"] >= 2 * shape["world"]
    ):  # otherwise a rank repeats one instead of having one batch less
        assert max(seen.values()) == 1
    assert all(1 <= len(batch) <= shape["size"] for rank in batches for batch in rank)


@given(shapes)
@settings(max_examples=200)
def test_pad_yields_equal_shapes_and_repeats_at_most_one_id_per_rank(shape: Shape) -> None:
    ranks = ranks_of(shape, "pad")
    batches = [batches_of(rank) for rank in ranks]
    assert len({tuple(map(len, rank)) for rank in batches}) == 1
    assert [rank.n_samples() for rank in ranks] == [sum(map(len, rank)) for rank in batches]
    seen = Counter(i for rank in batches for batch in rank for i in batch)
    assert set(seen) == set(range(shape["n"]))
    assert sum(seen.values()) - shape["n"] < shape["world"]


@given(shapes)
@settings(max_examples=200)
def test_drop_yields_full_batches_and_disjoint_ranks(shape: Shape) -> None:
    ranks = ranks_of(shape, "drop")
    batches = [batches_of(rank) for rank in ranks]
    assert {len(rank) for rank in batches} == {len(ranks[0])}
    assert [rank.n_samples() for rank in ranks] == [sum(map(len, rank)) for rank in batches]
    seen = Counter(i for rank in batches for batch in rank for i in batch)
    assert all(len(batch) == shape["size"] for rank in batches for batch in rank)
    assert not seen or max(seen.values()) == 1
    assert shape["n"] - len(seen) < shape["world"] * (shape["size"] + 1)


@given(shapes)
@settings(max_examples=100)
def test_epochs_repeat_exactly_and_differ_from_each_other(shape: Shape) -> None:
    first, again = ranks_of(shape, "partial", world=1)[0], ranks_of(shape, "partial", world=1)[0]
    one = batches_of(first)
    assert batches_of(again) == one
    if shape["shuffle"] and shape["n"] >= 40 and shape["block"] * shape["window"] >= 20:
        assert batches_of(first) != one
    again.set_epoch(shape["epoch"])
    assert batches_of(again) == one


@given(shapes, st.sampled_from(["partial", "drop", "pad"]), st.integers(0, 100))
@settings(max_examples=200)
def test_a_restart_at_any_step_yields_the_identical_rest(
    shape: Shape, last_batch: str, stop: int
) -> None:
    for rank, other in zip(ranks_of(shape, last_batch), ranks_of(shape, last_batch), strict=True):
        segment = rank.begin()
        whole = [ids.tolist() for ids in rank.batches(segment)]
        rank.delivered(segment, stop := min(stop, len(whole)))
        other.load(json.loads(json.dumps(rank.state())))
        if stop == len(whole):
            assert other.begin().epoch == shape["epoch"] + 1
        else:
            assert batches_of(other) == whole[stop:]


@given(
    shapes,
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(2, 9), st.integers(0, 5)), min_size=1, max_size=6
    ),
)
@settings(max_examples=200)
def test_any_sequence_of_world_sizes_yields_every_id_once(
    shape: Shape, chain: list[tuple[int, int, int]]
) -> None:
    """Loads some batches with each world size. Only the JSON state is passed on."""
    shape = {**shape, "n": 60 + shape["n"]}
    seen: Counter[int] = Counter()
    state: str | None = None
    for world, size, steps in chain:
        ranks = ranks_of(shape, "partial", world=world, size=size)
        states = set()
        for rank in ranks:
            if state is not None:
                rank.load(json.loads(state))
            segment = rank.begin()
            if (
                segment.epoch != shape["epoch"] or segment.partition.n_left < 2 * world
            ):  # with fewer samples, ranks have to repeat some
                return
            batches = [ids.tolist() for ids in rank.batches(segment)]
            stop = min(steps, len(batches))
            seen.update(i for batch in batches[:stop] for i in batch)
            rank.delivered(segment, segment.start + stop)
            states.add(json.dumps(rank.state()))
        assert len(states) == 1
        state = states.pop()
        assert len(state) < 1500
    last = ranks_of(shape, "partial", world=1, size=7)[0]
    last.load(json.loads(state or ""))
    segment = last.begin()
    if segment.epoch == shape["epoch"]:
        seen.update(i for ids in last.batches(segment) for i in ids.tolist())
    assert seen == Counter(range(shape["n"]))


def test_a_rank_reads_contiguous_windows_of_blocks() -> None:
    """A rank reads one contiguous part of the order, one window of blocks at a time."""
    shape = {
        "n": 960,
        "block": 10,
        "window": 4,
        "shuffle": True,
        "world": 3,
        "size": 8,
        "seed": 1,
        "epoch": 0,
    }
    for rank in ranks_of(shape, "partial"):
        ids = [i for batch in batches_of(rank) for i in batch]
        windows = [{i // 10 for i in ids[start : start + 40]} for start in range(0, len(ids), 40)]
        assert max(len(window) for window in windows) <= 4 + 4  # its ends are inside a window
        assert len(set.union(*windows)) <= 32 + 8


def test_sampler_and_batches_agree_and_share_the_epoch() -> None:
    shape = {
        "n": 50,
        "block": 5,
        "window": 2,
        "shuffle": True,
        "world": 2,
        "size": 8,
        "seed": 1,
        "epoch": 3,
    }
    epochs = ranks_of(shape, "pad")[1]
    sampler = RankSampler(epochs)
    batches = RankBatches(sampler, epochs.batch_size, False, Lookahead(2))
    one_by_one = list(sampler)
    assert len(sampler) == len(one_by_one) == 25
    assert sampler.epoch == 4
    batches.set_epoch(3)
    assert [i for batch in batches for i in batch] == one_by_one
    assert {index.epoch for index in one_by_one} == {3}  # type: ignore[attr-defined]
    assert len(batches) == 4


def test_batches_rebuilt_for_predictions_contain_every_sample() -> None:
    shape = {
        "n": 50,
        "block": 5,
        "window": 2,
        "shuffle": True,
        "world": 2,
        "size": 8,
        "seed": 1,
        "epoch": 3,
    }
    made = [
        RankBatches(RankSampler(epochs), epochs.batch_size, False)
        for epochs in ranks_of(shape, "drop")
    ]
    batches = [list(each) for each in made]
    assert [len(each) for each in batches] == [len(each) for each in made] == [4, 4]
    assert sorted(i for each in batches for batch in each for i in batch) == list(range(50))
    assert {index.epoch for each in batches for batch in each for index in batch} == {3}  # type: ignore[attr-defined]


def test_batches_rebuilt_with_another_sampler_follow_that_sampler() -> None:
    """Lightning does this for overfit_batches."""
    batches = RankBatches(torch.utils.data.SequentialSampler(range(10)), 4, False)
    assert list(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(batches) == 3
    batches.set_epoch(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": (2, 2, "drop")}, "rank 2 of 2"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"partition": (0, 1, "half")}, "last_batch='half'"),
    ],
)
def test_invalid_arguments_are_named(options: dict[str, Any], message: str) -> None:
    order = OrderOptions(n_samples=9, shuffle=True, seed=0, block=2, window=2)
    arguments: dict[str, Any] = {
        "batch_size": 2,
        "partition": (0, 1, "drop"),
        "source_order": lambda: np.arange(9),
        **options,
    }
    with pytest.raises(ConfigError, match=message):
        RankOrder(order, **{**arguments, "partition": Partition(*arguments["partition"])})


def test_a_billion_samples_start_immediately() -> None:
    """Needs neither a table of samples nor one of batches, only a window."""
    options = OrderOptions(n_samples=10**9 + 3, shuffle=True, seed=3, block=76, window=8)
    ranks = [
        RankOrder(
            options,
            batch_size=256,
            partition=Partition(rank, 64, "drop"),
            source_order=lambda: np.empty(0, np.int64),
        )
        for rank in (0, 63)
    ]
    first = [next(rank.batches(rank.begin())) for rank in ranks]
    assert [len(ids) for ids in first] == [256, 256]
    assert not set(first[0].tolist()) & set(first[1].tolist())
    assert len(ranks[0]) == 10**9 // 64 // 256


class SeededSampler:
    """Returns the same order in the same epoch, like DistributedSampler."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return iter(np.random.default_rng(self.epoch).permutation(9).tolist())

    def __len__(self) -> int:
        return 9


def own_order() -> RankOrder:
    options = OrderOptions(n_samples=9, shuffle="full", seed=0, block=2, window=2)
    partition = Partition(0, 1, "partial")
    return RankOrder(options, batch_size=4, partition=partition, source_order=lambda: np.arange(9))


def sampler_order() -> SamplerOrder:
    sampler = SeededSampler()
    batches = torch.utils.data.BatchSampler(sampler, 4, False)
    return SamplerOrder(sampler, batches, batch_size=4, n_samples=9, seed=0, content="")


both_orders = pytest.mark.parametrize("make", [own_order, sampler_order])


@both_orders
def test_an_epoch_goes_through_its_phases(make: Any) -> None:
    order: EpochState[Any] = make()
    phases = [order.phase]
    current = order.begin()
    phases.append(order.phase)
    order.delivered(current, 1)
    phases.append(order.phase)
    order.ended(current)
    phases.append(order.phase)
    assert phases == [Phase.READY, Phase.STARTED, Phase.RUNNING, Phase.READY]
    assert order.next_epoch == 1


@both_orders
def test_set_epoch_withdraws_only_a_pass_without_a_batch(make: Any) -> None:
    order: EpochState[Any] = make()
    current = order.begin()
    order.set_epoch(5)
    assert order.withdrawn is current
    assert order.phase is Phase.READY
    again = order.begin()
    assert (again.epoch, again.start, order.withdrawn) == (5, 0, None)
    order.delivered(again, 1)
    order.set_epoch(7)
    assert order.withdrawn is None
    assert order.begin().epoch == 7


@both_orders
def test_set_epoch_keeps_a_resume_point_of_the_same_epoch_only(make: Any) -> None:
    order: EpochState[Any] = make()
    order.set_epoch(3)
    current = order.begin()
    order.delivered(current, 1)
    state = json.loads(json.dumps(order.state()))
    rest = [ids.tolist() for ids in order.batches(current)][1:]

    resumed: EpochState[Any] = make()
    resumed.load(state)
    assert resumed.phase == Phase.RESUMING
    resumed.set_epoch(3)
    assert resumed.phase == Phase.RESUMING
    started = resumed.begin()
    resumed.set_epoch(3)  # after iter() and before the first batch, like Lightning
    assert (resumed.withdrawn, resumed.phase) == (started, Phase.RESUMING)
    assert [ids.tolist() for ids in resumed.batches(resumed.begin())] == rest

    moved: EpochState[Any] = make()
    moved.load(state)
    moved.set_epoch(4)
    assert moved.phase is Phase.READY
    assert moved.resume_state() is None


@both_orders
def test_an_older_iterator_that_still_reports_does_not_move_the_resume_point(make: Any) -> None:
    order: EpochState[Any] = make()
    current = order.begin()
    order.delivered(current, 1)
    state = order.state()
    order.load(state)
    order.delivered(current, 2)
    assert order.phase is Phase.RUNNING
    order.delivered(current, 3)  # the last batch, so the state is that of the next iteration
    assert order.state() == state
    assert order.begin().start == 1
