"""A rebuilt loader prefetches its next batches; wrong predictions cost only time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload import transforms as T
from fastload._load.batch import PendingBatch, PlannedBatch
from fastload._load.loader import DataLoader
from fastload._load.torch_compat.samplers import Lookahead
from fastload.errors import FastloadError
from tests.loading import pack_photos, same_batch
from tests.packed_datasets import spoil_image

N = 40


def lists(count: int) -> Iterator[list[int]]:
    return ([number, number + 1000] for number in range(count))


def test_the_next_batches_are_known_and_all_are_yielded() -> None:
    lookahead = Lookahead(2)
    batches = lookahead.recorded(lists(5))
    seen = []
    for batch in batches:
        seen.append((batch[0], [after[0] for after in lookahead.after(batch)]))
    assert seen == [(0, [1, 2]), (1, [2, 3]), (2, [3, 4]), (3, [4]), (4, [])]


def test_the_step_of_a_consumer_of_every_third_batch_is_learned() -> None:
    lookahead = Lookahead(2)
    found = [
        [after[0] for after in lookahead.after(batch)]
        for number, batch in enumerate(lookahead.recorded(lists(18)))
        if number % 3 == 1
    ]
    assert found == [
        [2, 3],
        [],
        [10, 13],
        [13, 16],
        [16],
        [],
    ]  # the step is known at the second batch and used at the third


def test_nothing_follows_a_batch_of_another_sampler() -> None:
    lookahead = Lookahead(2)
    next(lookahead.recorded(lists(5)))
    assert lookahead.after([3, 4]) == []


@pytest.mark.parametrize("kind", [tuple, np.array, torch.tensor])
def test_batches_may_be_requested_as_any_sequence(kind: Any) -> None:
    lookahead = Lookahead(2)
    next(lookahead.recorded(lists(5)))
    assert lookahead.after(kind([0, 1000])) == [[1, 1001], [2, 1002]]
    assert lookahead.after(kind([3, 4])) == []
    assert lookahead.after(kind([3, 4, 5])) == []


def test_two_iterations_at_once_lose_no_batch() -> None:
    lookahead = Lookahead(3)
    one, other = lookahead.recorded(lists(6)), lookahead.recorded(lists(6))
    both = [batch for pair in zip(one, other, strict=True) for batch in pair]
    assert [batch[0] for batch in both] == [number for number in range(6) for _ in "ab"]


def rebuilt(loader: DataLoader) -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
    )


def test_a_rebuilt_loader_prefetches_batches(packed: Path) -> None:
    loader = DataLoader(packed, 4, shuffle=True, transform=[T.RandomResizedCrop(16)])
    begun: list[tuple[int, ...]] = []
    submit = loader.pipeline.submit

    def noted(planned: PlannedBatch) -> PendingBatch:
        begun.append(tuple(planned.ids.tolist()))
        return submit(planned)

    loader.pipeline.submit = noted  # type: ignore[method-assign]
    plain = iter(rebuilt(loader))
    next(plain)
    assert len(begun) == 3  # the requested batch and the next ones
    rest = list(plain)
    assert len(rest) == N // 4 - 1
    assert len(begun) == len(set(begun)) == N // 4  # each batch once


def test_batches_that_are_not_requested_are_dropped(packed: Path) -> None:
    """SkipBatchSampler draws lists of ids and never requests their samples."""
    loader, other = (
        DataLoader(packed, 4, shuffle=True, transform=[T.RandomResizedCrop(16)]) for _ in range(2)
    )
    expected, got = list(other), []
    for number, ids in enumerate(loader.batch_sampler or ()):
        if number % 3 == 1:
            got.append((number, loader.collate_fn(loader.dataset.__getitems__(ids))))  # type: ignore[attr-defined]
    assert all(same_batch(batch, expected[number]) for number, batch in got)
    assert [number for number, _ in got] == [1, 4, 7]


def test_a_bad_sample_is_raised_with_its_own_batch(tmp_path: Path) -> None:
    whole, packed = pack_photos(tmp_path / "whole", 12), tmp_path / "packed"
    order = [ids.tolist() for ids in _ids(DataLoader(whole, 4, shuffle=True, fields=("id",)))]
    shutil.copytree(
        whole, packed
    )  # lmdb opens a file only once per process, and a thread of the loader may still use it
    spoil_image(packed, order[1][2])
    plain = iter(rebuilt(DataLoader(packed, 4, shuffle=True, transform=[T.Resize(16, 16)])))
    next(plain)
    with pytest.raises(FastloadError, match=f"sample {order[1][2]} "):
        next(plain)


def _ids(loader: DataLoader) -> list[Any]:
    return [batch["id"] for batch in loader]


def test_a_process_group_that_starts_after_the_loader_is_used(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning and many scripts create the loader first."""
    loader = DataLoader(packed, 4, shuffle=True, fields=("id",))
    assert len(loader) == N // 4
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    expected = _ids(DataLoader(packed, 4, shuffle=True, fields=("id",), rank=1, world_size=2))
    assert len(loader) == len(loader.sampler) // 4 == len(expected) == N // 8  # type: ignore[arg-type]
    assert (loader.sampler.rank, loader.sampler.num_replicas) == (1, 2)  # type: ignore[attr-defined]
    assert same_batch(_ids(loader), expected)


def test_a_process_group_that_starts_after_load_state_dict_is_used(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = DataLoader(packed, 4, shuffle=True, fields=("id",))
    head = [batch["id"] for _, batch in zip(range(3), first, strict=False)]
    loaders = [DataLoader(packed, 4, shuffle=True, fields=("id",)) for _ in range(2)]
    for loader in loaders:
        loader.load_state_dict(first.state_dict())
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    seen = torch.cat(head).tolist()
    for rank, loader in enumerate(loaders):
        monkeypatch.setenv("RANK", str(rank))
        seen += torch.cat(_ids(loader)).tolist()
    assert set(seen) == set(range(N))
    assert len(seen) - N < 8  # padded, like DistributedSampler


def test_explicit_ranks_take_precedence(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(packed, 4, rank=0, world_size=1)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(loader) == N // 4
