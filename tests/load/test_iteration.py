"""Iteration: lengths, epochs, nesting, early break, several iterators, errors, shutdown."""

from __future__ import annotations

import copy
import functools
import gc
import operator
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload import transforms as T
from fastload._load.loader import DataLoader
from fastload._store.dataset import Dataset, open_dataset
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError, CorruptShard
from tests.loading import our_threads, same_batch, wait_until
from tests.packed_datasets import pack_samples

CROPPED = [T.RandomResizedCrop(16), T.HorizontalFlip()]
N = 30


def ids_of(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def make(packed: Path, **options: Any) -> DataLoader:
    return DataLoader(
        packed,
        **{
            "batch_size": 4,
            "shuffle": True,
            "transform": CROPPED,
            "fields": ("image", "label", "id"),
            **options,
        },
    )


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 4, 7, 30, 31])
def test_number_and_sizes_of_batches(packed: Path, size: int, drop_last: bool) -> None:
    loader = make(packed, batch_size=size, drop_last=drop_last)
    batches = list(loader)
    assert len(batches) == len(loader) == (N // size if drop_last else -(-N // size))
    sizes = [len(batch["label"]) for batch in batches]
    assert (
        sizes == [size] * len(batches)
        if drop_last
        else sizes == [size] * (N // size) + [N % size] * (N % size > 0)
    )


@pytest.mark.parametrize("shuffle", [True, False, "full"])
def test_every_sample_once_per_epoch_and_epochs_differ(packed: Path, shuffle: bool | str) -> None:
    loader = make(packed, shuffle=shuffle)
    epochs = [list(loader) for _ in range(3)]
    orders = [functools.reduce(operator.iadd, ids_of(epoch), []) for epoch in epochs]  # type: ignore[var-annotated]
    assert [sorted(order) for order in orders] == [list(range(N))] * 3
    assert len({tuple(order) for order in orders}) == (3 if shuffle else 1)
    assert not same_batch(
        epochs[0][0]["image"], epochs[1][0]["image"]
    )  # other crops, even with the same order


def test_without_shuffle_samples_are_in_source_order(packed: Path) -> None:
    index = open_dataset(packed).column("_source_index")
    assert index.tolist() != list(range(N))  # pack has shuffled them
    order = functools.reduce(operator.iadd, ids_of(make(packed, shuffle=False)), [])  # type: ignore[var-annotated]
    assert index[order].tolist() == list(range(N))


def test_labels_match_their_images(packed: Path) -> None:
    dataset = open_dataset(packed)
    for batch in make(packed):
        assert batch["label"].tolist() == [dataset[i]["label"] for i in batch["id"].tolist()]


def test_set_epoch_repeats_an_epoch_exactly(packed: Path) -> None:
    loader = make(packed)
    first, second = list(loader), list(loader)
    for tell in (loader.set_epoch, loader.sampler.set_epoch, loader.batch_sampler.set_epoch):  # type: ignore[attr-defined, union-attr]
        tell(1)
        assert same_batch(list(loader), second)
    loader.set_epoch(0)
    assert same_batch(list(loader), first)
    assert loader.sampler.epoch == 1  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="set_epoch: expected a whole number"):
        loader.set_epoch(-1)


def test_an_iterator_has_the_length_of_an_epoch_like_torch(packed: Path) -> None:
    loader = make(packed)
    iterator = iter(loader)
    next(iterator)
    assert len(iterator) == len(loader) == 8
    endless = make(packed, shuffle=False, sampler=(number for number in range(5)))
    with pytest.raises(TypeError):
        len(iter(endless))
    assert len(list(endless)) == 0  # a generator yields its samples once, and `iter` has drawn them


@pytest.mark.parametrize("epoch", [0, 2])
def test_set_epoch_between_iter_and_the_first_batch_takes_effect(packed: Path, epoch: int) -> None:
    """Lightning calls iter() before set_epoch(), and torch's samplers support that."""
    expected = make(packed)
    epochs = [list(expected) for _ in range(4)]
    loader = make(packed)
    iterator = iter(loader)
    loader.set_epoch(epoch)
    assert same_batch(list(iterator), epochs[epoch])
    assert loader.state_dict()["epoch"] == epoch + 1
    assert same_batch(list(loader), epochs[epoch + 1])
    loader.set_epoch(0)
    iterator = iter(loader)
    first = next(iterator)
    loader.set_epoch(epoch)  # now it affects the next iteration
    assert same_batch([first, *iterator], epochs[0])
    assert same_batch(list(loader), epochs[epoch])
    abandoned = iter(loader)
    loader.set_epoch(epoch)
    assert same_batch(list(loader), epochs[epoch])  # the next iteration
    abandoned.close()
    loader.set_epoch(epoch)
    assert list(abandoned) == []


def test_nested_iteration_and_two_iterators_at_once(packed: Path) -> None:
    expected = make(packed)
    epochs = [list(expected) for _ in range(3)]
    loader = make(packed)
    pairs = list(zip(loader, loader, strict=True))
    assert same_batch([one for one, _ in pairs], epochs[0])
    assert same_batch([other for _, other in pairs], epochs[1])
    loader.set_epoch(0)
    outer = iter(loader)
    seen = [next(outer), next(outer)]
    assert same_batch(list(loader), epochs[1])  # a complete epoch inside another one
    assert same_batch(seen + list(outer), epochs[0])


def test_after_a_break_the_next_iteration_is_the_next_epoch(packed: Path) -> None:
    expected = make(packed)
    epochs = [list(expected) for _ in range(2)]
    loader = make(packed)
    for number, batch in enumerate(loader):
        assert same_batch(batch, epochs[0][number])
        if number == 2:
            break
    assert same_batch(list(loader), epochs[1])


def test_an_exhausted_iterator_stays_exhausted(packed: Path) -> None:
    iterator = iter(make(packed))
    assert iter(iterator) is iterator
    assert len(list(iterator)) == 8
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


def test_threads_end_with_the_iteration_with_a_break_and_with_the_loader(packed: Path) -> None:
    before = threading.enumerate()  # threads of other tests in this process
    loader = make(packed)
    for _ in range(3):
        list(loader)
        for _ in loader:
            break
    assert wait_until(lambda: our_threads(before) == [])
    iterator = iter(loader)
    next(iterator)
    assert our_threads(before) == ["fastload-feeder", "fastload-readahead"]
    del iterator
    assert wait_until(lambda: our_threads(before) == [])


def test_a_dropped_loader_is_freed(packed: Path) -> None:
    loader = make(packed)
    next(iter(loader))
    gone = threading.Event()
    import weakref

    weakref.finalize(loader, gone.set)
    gc.disable()
    try:
        del loader
        assert gone.is_set()  # by reference counting, without the garbage collector
    finally:
        gc.enable()


def test_close_stops_iterations_and_later_use_is_an_error(packed: Path) -> None:
    loader = make(packed)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(RuntimeError, match="the loader is closed"):
        iter(loader)
    loader.close()
    assert len(list(make(packed))) == 8


def test_collate_fn_gets_a_list_of_samples_like_torch(packed: Path) -> None:
    seen: list[Any] = []
    loader = make(packed, collate_fn=lambda samples: seen.append(samples) or len(samples))  # type: ignore[func-returns-value]
    assert loader.collate_fn is not None
    assert list(loader) == [4] * 7 + [2]
    expected = list(make(packed))
    for samples, batch in zip(seen, expected, strict=True):
        assert [sample.keys() for sample in samples] == [batch.keys()] * len(samples)
        assert same_batch(torch.stack([sample["image"] for sample in samples]), batch["image"])
    pairs = next(iter(DataLoader(packed, 4, transform=CROPPED, collate_fn=list)))
    assert [type(pair) for pair in pairs] == [tuple] * 4
    assert [tuple(part.shape) for part in pairs[0]] == [(3, 16, 16), ()]


def test_collate_fn_runs_on_one_thread_and_leaves_the_trainer_its_threads(packed: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = list(make(packed, collate_fn=lambda _: torch.get_num_threads()))
        assert (set(found), torch.get_num_threads()) == ({1}, 3)
    finally:
        torch.set_num_threads(before)


def test_default_collate_of_torch_works_as_collate_fn(packed: Path) -> None:
    images, labels = next(
        iter(DataLoader(packed, 4, transform=CROPPED, collate_fn=torch.utils.data.default_collate))
    )
    expected = next(iter(DataLoader(packed, 4, transform=CROPPED)))
    assert same_batch((images, labels), expected)
    collate = torch.utils.data.default_collate
    assert isinstance(
        next(iter(DataLoader(packed, 4, transform=CROPPED, collate_fn=collate))), tuple
    )


def test_batch_size_none_yields_single_samples(packed: Path) -> None:
    loader = make(packed, batch_size=None)
    assert (loader.batch_size, loader.batch_sampler, len(loader)) == (None, None, N)
    whole = make(packed, batch_size=N)
    (batch,) = list(whole)
    for place, sample in enumerate(loader):
        assert sample["image"].shape == (3, 16, 16)
        assert same_batch(sample, {name: value[place] for name, value in batch.items()})
    assert (
        list(make(packed, batch_size=None, collate_fn=lambda sample: int(sample["id"])))
        == batch["id"].tolist()
    )


def test_an_error_in_collate_fn_is_raised_and_the_next_batch_follows(packed: Path) -> None:
    def collate(samples: list[Any]) -> list[int]:
        ids = [int(sample["id"]) for sample in samples]
        if 7 in ids:
            raise ZeroDivisionError("seven")
        return ids

    expected = ids_of(make(packed))
    bad = next(number for number, ids in enumerate(expected) if 7 in ids)
    iterator = iter(make(packed, collate_fn=collate))
    got: list[Any] = []
    for number in range(len(expected)):
        if number == bad:
            with pytest.raises(ZeroDivisionError, match="seven"):
                next(iterator)
        else:
            got.append(next(iterator))
    assert got == [ids for ids in expected if 7 not in ids]
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("ahead", [False, True])
def test_stop_iteration_in_collate_fn_does_not_end_the_epoch(packed: Path, ahead: bool) -> None:
    """A `for` loop would take StopIteration for the end of the epoch."""
    names = iter("ab")
    functions: dict[bool, Callable[..., str]] = {
        False: lambda _: next(names),
        True: lambda _, generator=None: next(names),
    }
    iterator = iter(make(packed, collate_fn=functions[ahead]))
    assert [next(iterator), next(iterator)] == ["a", "b"]
    with pytest.raises(RuntimeError, match="building a batch raised StopIteration"):
        next(iterator)


def test_timeout_names_the_samples_that_hang(packed: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def collate(samples: list[Any], generator: torch.Generator | None = None) -> list[int]:
        begun.set()
        go_on.wait(300)
        return [int(sample["id"]) for sample in samples]

    expected = ids_of(make(packed))
    iterator = iter(make(packed, collate_fn=collate, timeout=0.2))
    assert begun.wait(300)
    with pytest.raises(
        RuntimeError, match=r"no batch within timeout=0\.2 s. Waiting for samples"
    ) as caught:
        next(iterator)
    assert all(f"{i} (shard-00000.lmdb, samples/" in str(caught.value) for i in expected[0])
    go_on.set()
    assert list(iterator) == expected  # no batch was lost


def test_a_hanging_disk_causes_a_timeout(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def collate(samples: list[Any], generator: torch.Generator | None = None) -> int:
        begun.set()
        go_on.wait(300)
        return len(samples)

    def hanging(*_: Any) -> Any:
        go_on.wait(300)
        raise CorruptShard("read at last, and damaged", shard="shard-00000.lmdb")

    loader = make(packed, collate_fn=collate, timeout=0.2)
    monkeypatch.setattr(Dataset, "source", hanging)
    monkeypatch.setattr("fastload._load.iterator._NAMING_S", 0.1)
    iterator = iter(loader)
    assert begun.wait(300)
    try:
        with pytest.raises(
            RuntimeError,
            match=r"Waiting for samples \d+ \(shard-00000.lmdb\), \d+ \(shard-00000.lmdb\)",
        ):
            next(iterator)
    finally:
        go_on.set()
    assert sum(iterator) == N


def test_the_plan_of_a_sample_matches_its_matrix(packed: Path) -> None:
    loader = make(packed, return_matrix=True)
    upcoming = {i: loader.plan(i).matrix for i in range(N)}
    for batch in loader:
        for place, i in enumerate(batch["id"].tolist()):
            assert np.allclose(batch["image.matrix"][place].numpy(), upcoming[i])
    again = loader.plan(3, epoch=0)
    assert np.array_equal(again.matrix, upcoming[3])
    assert not np.array_equal(loader.plan(3).matrix, upcoming[3])  # the next epoch has another plan
    assert "sample 3: " in str(again)
    for wrong in (-1, N):
        with pytest.raises(IndexError, match=f"sample_id={wrong}: expected 0 to {N - 1}"):
            loader.plan(wrong)
    with pytest.raises(
        ConfigError, match="field='mask': expected an image field that is loaded: image"
    ):
        loader.plan(0, field="mask")


def test_a_pickled_loader_is_the_same_loader(packed: Path) -> None:
    loader = make(packed, seed=3)
    list(loader)
    copy = pickle.loads(pickle.dumps(loader))
    assert same_batch(list(copy), list(loader))


class Doubled(DataLoader):
    """A user's subclass that changes every batch."""

    def __init__(self, path: Path, *, times: int) -> None:
        self.early = times
        super().__init__(path, batch_size=4, transform=CROPPED, fields=("image", "id"))
        self.times = times

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield {**batch, "image": batch["image"].int() * self.times * self.early}


@pytest.mark.parametrize(
    "again",
    [lambda loader: pickle.loads(pickle.dumps(loader)), copy.deepcopy],
    ids=["pickle", "deepcopy"],
)
def test_a_copy_of_a_subclass_has_the_same_class(packed: Path, again: Any) -> None:
    loader = Doubled(packed, times=3)
    copied = again(loader)
    assert (type(copied), copied.times, copied.early) == (Doubled, 3, 3)
    assert same_batch(list(copied), list(loader))


@pytest.mark.parametrize(
    "again",
    [lambda loader: pickle.loads(pickle.dumps(loader)), copy.deepcopy],
    ids=["pickle", "deepcopy"],
)
@pytest.mark.parametrize(
    "options",
    [{"shuffle": True}, {"shuffle": False, "sampler": [*range(N)]}],
    ids=["own", "sampler"],
)
def test_a_copy_of_a_resumed_loader_resumes_at_the_same_batch(
    packed: Path, again: Any, options: dict[str, Any]
) -> None:
    begun = make(packed, **options)
    next(iter(begun))
    loader = make(packed, **options)
    loader.load_state_dict(begun.state_dict())
    copied = again(loader)
    assert copied.state_dict() == loader.state_dict()
    rest = list(loader)
    assert len(rest) == len(loader) - 1
    assert same_batch(list(copied), rest)
    assert same_batch(list(again(loader)), list(loader))  # then the next epoch


def test_an_empty_crop_names_the_sample(packed: Path) -> None:
    """The plan finds an image that a crop leaves empty, and the loader names it."""
    loader = make(
        packed, transform=[T.Crop(left=100), T.Resize(8, 8)]
    )  # images are 96, 104 and 112 wide
    with pytest.raises(
        BadImage,
        match=r"samples/\d+: sample \d+ in .*shard-00000.lmdb, field 'image': Crop.* leaves nothing",
    ) as caught:
        list(loader)
    assert caught.value.image_id is not None
    substituted = make(packed, transform=[T.Crop(left=100), T.Resize(8, 8)], on_error="substitute")
    assert sum(len(batch["id"]) for batch in substituted) == N
    assert substituted.stats().bad == 10


def test_labels_of_an_image_with_an_empty_crop_are_an_error(tmp_path: Path) -> None:
    samples = [
        {"image": np.zeros((20, (120, 96)[i % 2], 3), np.uint8), "points": [[100, 5]]}
        for i in range(4)
    ]
    packed = pack_samples(
        tmp_path / "packed", (Field("image", "image"), Field("points", "points")), samples
    )
    options: dict[str, Any] = {
        "batch_size": 4,
        "fields": ("points", "id"),
        "transform": [T.Crop(left=100), T.Resize(20, 20)],
    }
    with pytest.raises(BadImage, match=r"sample 1 in .*, field 'image': Crop.* leaves nothing"):
        list(DataLoader(packed, **options))
    batch = next(iter(DataLoader(packed, **options, on_error="substitute")))
    assert batch["id"].tolist() == [0, 0, 2, 2]
    assert batch["points"].tolist() == [[[0, 5]]] * 4
