"""Each copy of a sample within an epoch has its own random crop, on any rank and after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler, WeightedRandomSampler

from fastload import transforms as T
from fastload._load.loader import DataLoader
from fastload._plan.draw_ids import check_fits, copy_numbers, draw_ids, sample_ids
from fastload.errors import ConfigError

N = 12
DRAWN = [3, 1, 3, 3, 7, 1, 0, 3, 7, 11, 3, 1, 0, 5]  # ids of a sampler with repetitions
Pairs = list[tuple[int, bytes]]


def make(packed: Path, **options: Any) -> DataLoader:
    transform = [T.RandomResizedCrop(24), T.ColorJitter(0.3, 0.3, 0.3, 0.1)]
    return DataLoader(packed, transform=transform, fields=["image", "id"], **options)


def pairs(batches: Any) -> Pairs:
    """Returns sample ids and pixels."""
    return [
        (int(i), image.numpy().tobytes())
        for batch in batches
        for i, image in zip(batch["id"], batch["image"], strict=True)
    ]


def test_every_draw_of_a_weighted_sampler_is_another_image(packed: Path) -> None:
    weights = [1.0, 1.0, 1.0, 1.0, *[0.0] * (N - 4)]
    sampler = WeightedRandomSampler(weights, 96, generator=torch.Generator().manual_seed(5))
    found = pairs(make(packed, batch_size=8, sampler=sampler))
    assert len({i for i, _ in found}) == 4
    assert len(set(found)) == 96


def test_the_first_occurrence_has_the_same_draws_as_in_our_own_order(packed: Path) -> None:
    ours = dict(pairs(make(packed, batch_size=5)))
    seen: set[int] = set()
    for i, image in pairs(make(packed, batch_size=4, sampler=DRAWN)):
        assert (image == ours[i]) == (i not in seen)
        seen.add(i)


@pytest.mark.parametrize("batch_size", [4, 3])
def test_a_resume_at_every_step_gives_the_same_copies(packed: Path, batch_size: int) -> None:
    whole = pairs(make(packed, batch_size=4, sampler=DRAWN))
    assert len(set(whole)) == len(DRAWN)
    for done in range(1, 4):
        first = make(packed, batch_size=4, sampler=DRAWN)
        iterator = iter(first)
        for _ in range(done):
            next(iterator)
        second = make(packed, batch_size=batch_size, sampler=DRAWN)
        second.load_state_dict(first.state_dict())
        assert pairs(second) == whole[4 * done :]


def test_ranks_that_draw_the_same_sample_get_other_copies(packed: Path) -> None:
    ranks = [
        pairs(make(packed, batch_size=4, sampler=DRAWN, rank=rank, world_size=3))
        for rank in range(3)
    ]
    assert ranks[0][:2] == pairs(make(packed, batch_size=4, sampler=DRAWN))[:2]
    assert len({pair for rank in ranks for pair in rank}) == 3 * len(DRAWN)


@pytest.mark.parametrize("batched", [False, True])
def test_a_distributed_sampler_keeps_the_draws_of_one_rank(packed: Path, batched: bool) -> None:
    ours = dict(pairs(make(packed, batch_size=5)))
    for rank in range(2):
        sampler: Any = DistributedSampler(range(N), 2, rank, shuffle=True)  # type: ignore[arg-type]
        order = {"sampler": sampler, "batch_size": 4}
        if batched:
            order = {"batch_sampler": torch.utils.data.BatchSampler(sampler, 4, False)}
        found = pairs(make(packed, rank=rank, world_size=2, **order))
        assert len(found) == N // 2
        assert found == [(i, ours[i]) for i, _ in found]


@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_repeats_deals_out_copies_on_any_number_of_ranks(packed: Path, shuffle: Any) -> None:
    options = {"shuffle": shuffle, "repeats": 3, "last_batch": "partial"}
    whole = pairs(make(packed, batch_size=5, **options))
    assert len(whole) == len(set(whole)) == 3 * N
    assert set(pairs(make(packed, batch_size=5, shuffle=shuffle))) < set(whole)
    split: Pairs = []
    for rank in range(2):
        loader = make(packed, batch_size=4, rank=rank, world_size=2, **options)
        assert len(loader) == 5
        split += pairs(loader)
    assert sorted(split) == sorted(whole)


def test_repeats_resumes_with_another_batch_size(packed: Path) -> None:
    whole = pairs(make(packed, batch_size=4, shuffle=True, repeats=2))
    for done in range(1, 6):
        first = make(packed, batch_size=4, shuffle=True, repeats=2)
        iterator = iter(first)
        for _ in range(done):
            next(iterator)
        second = make(packed, batch_size=7, shuffle=True, repeats=2)
        second.load_state_dict(first.state_dict())
        assert pairs(second) == whole[4 * done :]
    with pytest.raises(ConfigError, match="repeats in the loader: 3"):
        make(packed, batch_size=4, shuffle=True, repeats=3).load_state_dict(first.state_dict())


def test_a_plain_loader_of_the_parts_yields_the_same_copies(packed: Path) -> None:
    loader = make(packed, batch_size=4, shuffle=True, repeats=2)
    plain = torch.utils.data.DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
    )
    assert pairs(plain) == pairs(make(packed, batch_size=4, shuffle=True, repeats=2))


@pytest.mark.parametrize("repeats", [0, 1025, True, 2.0])
def test_invalid_repeats_are_refused(packed: Path, repeats: Any) -> None:
    with pytest.raises(ConfigError, match="repeats="):
        make(packed, repeats=repeats)
    with pytest.raises(ConfigError, match="have no effect with a sampler"):
        make(packed, repeats=2, sampler=DRAWN)


def test_copies_and_ids_do_not_share_bits() -> None:
    ids = np.array([0, 7, 2**36 - 1], np.int64)
    combined = draw_ids(ids, [5, 0, 2**20 - 1])
    assert sample_ids(combined).tolist() == ids.tolist()
    assert copy_numbers(combined).tolist() == [5, 0, 2**20 - 1]
    assert (combined >> 56 == 0).all(), "bits of the image number"
    assert copy_numbers(draw_ids(ids, 2**20 + 1)).tolist() == [1, 1, 1]
    check_fits(2**36)
    with pytest.raises(ConfigError, match="expected at most 68719476736"):
        check_fits(2**36 + 1)
