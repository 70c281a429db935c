"""Samplers of the user (torch's, weighted, distributed, lists): drawn like in torch, resumed."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fastload import transforms as T
from fastload._load.loader import DataLoader
from fastload._store.dataset import open_dataset
from fastload.errors import ConfigError
from tests.loading import same_batch

CROPPED = [T.RandomResizedCrop(8)]
N = 24


def make(packed: Path, **options: Any) -> DataLoader:
    return DataLoader(packed, **{"transform": CROPPED, "fields": ("image", "id"), **options})


def ids_of(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def test_a_sampler_decides_the_order_and_is_an_attribute(packed: Path) -> None:
    sampler = [5, 3, 3, 20, 1]
    loader = make(packed, batch_size=2, sampler=sampler)
    assert loader.sampler is sampler
    assert len(loader) == 3
    assert ids_of(loader) == [[5, 3], [3, 20], [1]]
    assert ids_of(make(packed, batch_size=2, sampler=sampler, drop_last=True)) == [[5, 3], [3, 20]]
    assert ids_of(make(packed, batch_size=3, sampler=SequentialSampler(range(7)))) == [
        [0, 1, 2],
        [3, 4, 5],
        [6],
    ]
    assert [
        int(sample["id"]) for sample in make(packed, batch_size=None, sampler=sampler)
    ] == sampler


def test_a_batch_sampler_decides_the_batches(packed: Path) -> None:
    batches = BatchSampler(SequentialSampler(range(N)), 5, True)
    loader = make(packed, batch_sampler=batches)
    assert loader.batch_sampler is batches
    assert (loader.batch_size, loader.drop_last, len(loader)) == (None, False, 4)
    assert ids_of(loader) == list(batches)
    assert ids_of(make(packed, batch_sampler=[[1], [2, 2, 2], [9, 8]])) == [[1], [2, 2, 2], [9, 8]]


def test_weighted_sampling_by_the_label_column(packed: Path) -> None:
    """A class with three times the weight is drawn three times as often. Only columns are read."""
    labels = open_dataset(packed).column("label")
    weights = torch.from_numpy((labels == 2) * 9.0 + (labels == 1) * 3.0)
    sampler = WeightedRandomSampler(weights, 600, generator=torch.Generator().manual_seed(1))  # type: ignore[arg-type]
    seen = Counter(
        labels[
            [
                i
                for batch in make(packed, batch_size=50, sampler=sampler, fields=("id",))
                for i in batch["id"].tolist()
            ]
        ].tolist()
    )
    assert set(seen) == {1, 2}
    assert 2.2 < seen[2] / seen[1] < 4.2


def test_a_sampler_yields_the_same_batches_as_in_plain_torch(packed: Path) -> None:
    for make_sampler in (  # type: ignore[var-annotated]
        lambda seed: RandomSampler(range(N), generator=torch.Generator().manual_seed(seed)),
        lambda seed: SubsetRandomSampler(
            range(0, N, 2), generator=torch.Generator().manual_seed(seed)
        ),
        lambda seed: DistributedSampler(range(N), 3, 1, seed=seed),  # type: ignore[arg-type]
    ):
        expected = [
            ids.tolist()
            for ids in torch.utils.data.DataLoader(range(N), 4, sampler=make_sampler(2))  # type: ignore[arg-type]
        ]
        assert ids_of(make(packed, batch_size=4, sampler=make_sampler(2))) == expected


def test_a_sampler_draws_in_the_trainer_s_thread(packed: Path) -> None:
    """Sampler and trainer may share the global generator of torch and get the same numbers."""

    class Drawing:
        def __iter__(self) -> Iterator[int]:
            for _ in range(20):
                yield int(torch.randint(N, ()))

    def run(threads: int) -> list[Any]:
        torch.manual_seed(4)
        seen: list[Any] = []
        for batch in make(packed, batch_size=2, sampler=Drawing(), num_workers=threads):
            seen += [batch["id"].tolist(), float(torch.rand(()))]
        return seen

    assert run(1) == run(2) == run(1)


def test_an_error_in_a_sampler_follows_its_batches(packed: Path) -> None:
    class Breaking:
        def __iter__(self) -> Iterator[int]:
            yield from range(6)
            raise LookupError("no more")

    iterator = iter(make(packed, batch_size=2, sampler=Breaking()))
    assert ids_of(next(iterator) for _ in range(3)) == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(LookupError, match="no more"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_ids_out_of_range_are_named(packed: Path) -> None:
    loader = make(packed, batch_size=2, sampler=[1, 2, N, 0])
    iterator = iter(loader)
    assert next(iterator)["id"].tolist() == [1, 2]
    with pytest.raises(
        ConfigError, match=f"the sampler returned indices 0 to {N}: expected 0 to {N - 1}"
    ):
        next(iterator)
    assert len(list(make(packed, sampler=[1]))) == 1


def test_single_samples_from_a_sampler_of_tensors(packed: Path) -> None:
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    assert [
        int(sample["id"]) for sample in make(packed, batch_size=None, sampler=order)
    ] == order.tolist()
    assert ids_of(make(packed, batch_size=N, sampler=order)) == [order.tolist()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"batch_size": None, "sampler": BatchSampler(SequentialSampler(range(N)), 5, False)},
            r"\[0, 1, 2, 3, 4\]: expected a single id with batch_size=None",
        ),
        ({"batch_size": 2, "sampler": [1.7, 2.2]}, r"\[1.7, 2.2\]: expected whole numbers"),
        ({"batch_size": 2, "sampler": [2**70, 1]}, "expected 0 to 23"),
        ({"batch_sampler": [[], [1]]}, "a batch without samples"),
    ],
    ids=["lists", "floats", "huge", "empty"],
)
def test_invalid_ids_are_rejected_and_named(
    packed: Path, options: dict[str, Any], message: str
) -> None:
    """Only the first id of a list would be used, and floats would be truncated."""
    with pytest.raises(ConfigError, match=message):
        next(iter(make(packed, **options)))
    assert ids_of(make(packed, batch_size=2, sampler=[1, 2])) == [[1, 2]]


def test_a_sampler_without_length(packed: Path) -> None:
    class Endless:
        def __iter__(self) -> Iterator[int]:
            return iter(range(7))

    loader = make(packed, batch_size=3, sampler=Endless())
    with pytest.raises(TypeError):
        len(loader)
    assert ids_of(loader) == [[0, 1, 2], [3, 4, 5], [6]]
    assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("batched", [False, True], ids=["sampler", "batch_sampler"])
def test_set_epoch_reaches_the_sampler_and_the_crops(packed: Path, batched: bool) -> None:
    def epochs(set_epoch: Any) -> list[Any]:
        sampler = DistributedSampler(range(N), 2, 0, seed=3)  # type: ignore[var-annotated, arg-type]
        options = (
            {"batch_sampler": BatchSampler(sampler, 6, False)}
            if batched
            else {"batch_size": 6, "sampler": sampler}
        )
        loader = make(packed, **options)
        found = []
        for epoch in (4, 4, 5):
            set_epoch(loader, sampler)(epoch)
            found.append(list(loader))
        return found

    by_loader = epochs(lambda loader, _: loader.set_epoch)
    by_sampler = epochs(lambda _, sampler: sampler.set_epoch)
    assert same_batch(by_loader[0], by_loader[1])
    assert not same_batch(by_loader[0], by_loader[2])
    assert same_batch(by_loader[0], by_sampler[0])
    assert same_batch(by_loader[2], by_sampler[2])
    assert [batch["id"].tolist() for batch in by_sampler[0]] == [
        batch["id"].tolist() for batch in by_sampler[1]
    ]


def test_sampler_set_epoch_between_iter_and_the_first_batch_works(packed: Path) -> None:
    """Lightning does this."""
    sampler: Any = DistributedSampler(open_dataset(packed), num_replicas=1, rank=0)  # type: ignore[arg-type]
    loader = DataLoader(packed, 4, sampler=sampler, fields=("image", "id"), transform=CROPPED)
    epochs = []
    for epoch in (0, 1, 2):
        sampler.set_epoch(epoch)
        epochs.append(list(loader))
    sampler.set_epoch(0)
    iterator = iter(loader)
    sampler.set_epoch(2)
    assert same_batch(list(iterator), epochs[2])
    sampler.set_epoch(0)
    iterator = iter(loader)
    first = next(iterator)
    sampler.set_epoch(1)  # for the next iteration
    assert same_batch([first, *iterator], epochs[0])
    assert same_batch(list(loader), epochs[1])


@pytest.mark.parametrize("batched", [False, True], ids=["sampler", "batch_sampler"])
def test_loader_set_epoch_between_iter_and_the_first_batch_sets_the_sampler(
    packed: Path, batched: bool
) -> None:
    sampler: Any = DistributedSampler(range(N), 2, 0, seed=3)  # type: ignore[arg-type]
    loader = make(
        packed,
        **(
            {"batch_sampler": BatchSampler(sampler, 4, False)}
            if batched
            else {"batch_size": 4, "sampler": sampler}
        ),
    )
    epochs = [list(loader)]
    for epoch in (1, 2):
        loader.set_epoch(epoch)
        epochs.append(list(loader))
    loader.set_epoch(0)
    iterator = iter(loader)
    loader.set_epoch(1)
    loader.set_epoch(2)
    state = loader.state_dict()
    first = next(iterator)
    assert same_batch([first, *iterator], epochs[2])
    loader.load_state_dict(state)
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(loader.state_dict())
    iterator = iter(loader)
    loader.set_epoch(2)  # the current epoch, so it resumes there
    assert same_batch(list(iterator), epochs[2][1:])
    assert loader.state_dict()["epoch"] == 3


def test_a_sampler_without_set_epoch_is_not_drawn_again_by_set_epoch(packed: Path) -> None:
    loader = make(packed, batch_size=4, sampler=iter(range(12)))
    iterator = iter(loader)
    loader.set_epoch(3)
    assert ids_of(iterator) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


class Counting(torch.utils.data.Sampler[int]):
    """Counts its epochs itself in ``__iter__``."""

    epoch = 0

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        yield from torch.randperm(N, generator=torch.Generator().manual_seed(self.epoch)).tolist()


def test_a_sampler_that_counts_epochs_is_drawn_once_per_epoch(packed: Path) -> None:
    loader = DataLoader(packed, 4, sampler=Counting(), fields=("id",))
    expected = Counting()
    for _ in range(3):
        assert [i for batch in loader for i in batch["id"].tolist()] == list(expected)


def test_crops_differ_between_epochs_without_set_epoch(packed: Path) -> None:
    loader = make(packed, batch_size=4, sampler=list(range(4)))
    first, second = list(loader), list(loader)
    assert same_batch(first[0]["id"], second[0]["id"])
    assert not same_batch(first[0]["image"], second[0]["image"])


def test_resume_at_every_step_with_a_repeatable_sampler(packed: Path) -> None:
    def new() -> DataLoader:
        return make(packed, batch_size=4, sampler=DistributedSampler(range(N), 2, 1, seed=3))  # type: ignore[arg-type]

    whole = new()
    expected = [list(whole), list(whole)]
    loader = new()
    states = [json.dumps(loader.state_dict())]
    for epoch in range(2):
        loader.set_epoch(epoch)
        for _ in loader:
            states.append(json.dumps(loader.state_dict()))
    for done, state in enumerate(states[:6]):
        epoch, step = divmod(done, 3)
        other = new()
        other.load_state_dict(json.loads(state))
        other.set_epoch(epoch)  # as a trainer does at the start of the interrupted epoch
        fresh = new()
        fresh.set_epoch(epoch)
        assert same_batch(list(other), list(fresh)[step:])
    assert len(expected[0]) == 3
    assert len({tuple(json.loads(state)) for state in states}) == 1


@pytest.mark.parametrize("batched", [False, True], ids=["sampler", "batch_sampler"])
def test_resume_with_a_sampler_without_set_epoch_calls(packed: Path, batched: bool) -> None:
    """It returns the same order in every epoch; the second epoch resumes in that order."""

    def new() -> DataLoader:
        sampler: Any = DistributedSampler(range(N), 2, 1, seed=3)  # type: ignore[arg-type]
        return make(
            packed,
            **(
                {"batch_sampler": BatchSampler(sampler, 4, False)}
                if batched
                else {"batch_size": 4, "sampler": sampler}
            ),
        )

    whole = new()
    list(whole)
    second = list(whole)
    loader = new()
    list(loader)
    iterator = iter(loader)
    for done in (1, 2):
        next(iterator)
        state = json.dumps(loader.state_dict())
        for other in (new(), new()):
            other.load_state_dict(json.loads(state))
            state = json.dumps(other.state_dict())  # saved again before it resumes
            assert same_batch(list(pickle.loads(pickle.dumps(other))), second[done:])
            assert same_batch(list(other), second[done:])


@pytest.mark.parametrize("drop_last", [False, True])
def test_another_batch_size_resumes_after_the_delivered_samples(
    packed: Path, drop_last: bool
) -> None:
    def new(batch_size: int | None) -> DataLoader:
        sampler: Any = DistributedSampler(range(N), 2, 1, seed=3)  # type: ignore[arg-type]
        return make(
            packed,
            batch_size=batch_size,
            sampler=sampler,
            drop_last=drop_last and batch_size is not None,
        )

    order = [number for batch in ids_of(new(1)) for number in batch]
    assert len(order) == 12
    state, seen = "", list[int]()
    for batch_size, batches in ((3, 2), (None, 1), (1, 1), (2, 1)):
        loader = new(batch_size)
        if state:
            loader.load_state_dict(json.loads(state))
            loader.set_epoch(0)
        iterator = iter(loader)
        for _ in range(batches):
            seen += next(iterator)["id"].reshape(-1).tolist()
        state = json.dumps(loader.state_dict())
    assert seen == order[:10]
    assert (json.loads(state)["epoch"], json.loads(state)["batches"]) == (0, 1)
    rest = new(5)
    rest.load_state_dict(json.loads(state))
    assert len(json.dumps(rest.state_dict())) < 4096
    later = new(5)
    later.set_epoch(1)
    assert ids_of(rest) == (
        ids_of(later) if drop_last else [order[10:]]
    )  # two are left, so the epoch is over with drop_last
    assert rest.state_dict()["epoch"] == (2 if drop_last else 1)


def test_a_sampler_of_another_world_size_is_rejected(packed: Path) -> None:
    def new(ranks: int, batched: bool) -> DataLoader:
        sampler: Any = DistributedSampler(range(N), ranks, 0)  # type: ignore[arg-type]
        return make(
            packed,
            **(
                {"batch_sampler": BatchSampler(sampler, 4, False)}
                if batched
                else {"sampler": sampler}
            ),
        )

    for batched in (False, True):
        loader, other = new(2, batched), new(3, batched)
        next(iter(loader))
        with pytest.raises(
            ConfigError, match="num_replicas in the state:  2\n  num_replicas in the loader: 3"
        ):
            other.load_state_dict(loader.state_dict())
        again = new(2, batched)
        again.load_state_dict(loader.state_dict())
        assert len(list(again)) == len(loader) - 1


def test_a_state_of_another_kind_of_order_is_rejected(packed: Path) -> None:
    ours, users = make(packed, batch_size=4), make(packed, batch_size=4, sampler=[1, 2, 3])
    with pytest.raises(
        ConfigError, match="sampler in the state:  'list'\n  sampler in the loader: None"
    ):
        ours.load_state_dict(users.state_dict())
    with pytest.raises(ConfigError, match="state_dict belongs to another order"):
        users.load_state_dict(ours.state_dict())
    users.load_state_dict(users.state_dict())
    assert ids_of(users) == [[1, 2, 3]]
