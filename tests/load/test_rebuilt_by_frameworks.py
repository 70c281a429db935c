"""Frameworks build a plain torch DataLoader from the parts of a loader."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload import transforms as T
from fastload._load.loader import DataLoader
from fastload._load.torch_compat.dataset_view import PassCounter
from fastload._load.torch_compat.samplers import SampleIndex
from fastload._store.fields import Field
from tests.loading import backends, png, same_batch, spots
from tests.packed_datasets import encoded, pack_samples

CROPPED = [T.RandomResizedCrop(16), T.HorizontalFlip(), T.ColorJitter(brightness=0.4)]
N = 22


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with fields whose size differs between samples."""
    fields = (
        Field("image", "image"),
        Field("boxes", "boxes"),
        Field("classes", "int", list=True),
        Field("lanes", "points", list=True),
        Field("mask", "mask"),
        Field("name", "str"),
        Field("speed", "array"),
    )
    samples = []
    for i in range(9):
        boxes = np.array([[5 + k, 4, 30 + k, 40] for k in range(i % 3)], np.float32).reshape(-1, 4)
        samples.append(
            {
                "image": encoded(png(spots(60 + i, 50, [(20, 20), (40, 30)]))),
                "boxes": boxes,
                "classes": list(range(i % 3)),
                "lanes": [np.ones((2 + k, 2), np.float32) for k in range(i % 2)],
                "mask": np.full((50, 60 + i), i, np.uint8),
                "name": f"sample {i}",
                "speed": np.array([i, 2.5]),
            }
        )
    return pack_samples(
        tmp_path_factory.mktemp("boxed") / "packed", fields, samples, block_size=20_000
    )


def rebuilt(loader: DataLoader, **options: Any) -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn, **options
    )


def two_epochs(loader: Any) -> list[Any]:
    return [list(loader), list(loader)]


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize(
    "last_batch",
    [
        {},
        {"drop_last": True},
        {"last_batch": "drop"},
        {"last_batch": "drop", "rank": 1, "world_size": 2},
        {"rank": 1, "world_size": 3},
    ],
)
def test_a_plain_loader_without_workers_yields_the_same_batches(
    packed: Path, backend: str, last_batch: dict[str, Any]
) -> None:
    def make() -> DataLoader:
        return DataLoader(
            packed, 4, shuffle=True, transform=CROPPED, seed=5, backend=backend, **last_batch
        )

    expected = two_epochs(make())
    assert len(expected[0]) > 1
    assert same_batch(two_epochs(rebuilt(make())), expected)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_plain_loader_with_workers_yields_the_same_batches(
    packed: Path, persistent: bool
) -> None:
    """Forked workers; tests/fault/test_loader_processes.py tests other start methods."""
    loader = DataLoader(packed, 4, shuffle=True, transform=CROPPED)
    expected = two_epochs(DataLoader(packed, 4, shuffle=True, transform=CROPPED))
    next(iter(loader))  # its own threads run when the workers are forked
    loader.set_epoch(0)
    plain = rebuilt(
        loader, num_workers=2, multiprocessing_context="fork", persistent_workers=persistent
    )
    assert same_batch(two_epochs(plain), expected)


@pytest.mark.parametrize("ragged", ["list", "pad"])
def test_other_fields_of_a_rebuilt_batch_are_the_same(boxed: Path, ragged: str) -> None:
    def make() -> DataLoader:
        return DataLoader(
            boxed,
            4,
            shuffle=True,
            transform=[T.RandomCrop(32), T.HorizontalFlip()],
            ragged=ragged,
            return_matrix=True,
            fields=("image", "boxes", "classes", "lanes", "mask", "name", "speed", "id", "source"),
        )

    expected = two_epochs(make())
    assert same_batch(two_epochs(rebuilt(make())), expected)


def test_the_sampler_works_with_another_batch_size(packed: Path) -> None:
    loader = DataLoader(packed, 4, shuffle=True, transform=CROPPED)
    expected = list(DataLoader(packed, 5, shuffle=True, transform=CROPPED))
    plain = torch.utils.data.DataLoader(loader.dataset, batch_size=5, sampler=loader.sampler)
    got = list(plain)
    assert len(got) == len(expected)
    assert all(same_batch(list(one), list(other)) for one, other in zip(got, expected, strict=True))


def test_a_loader_of_single_samples_can_be_rebuilt(packed: Path) -> None:
    loader = DataLoader(packed, None, shuffle=True, transform=CROPPED)
    expected = [
        list(sample) for sample in DataLoader(packed, None, shuffle=True, transform=CROPPED)
    ]
    assert same_batch(
        list(torch.utils.data.DataLoader(loader.dataset, batch_size=None, sampler=loader.sampler)),
        expected,
    )


def test_the_attributes_that_accelerate_copies_make_a_loader(packed: Path) -> None:
    loader = DataLoader(
        packed, 4, shuffle=True, transform=CROPPED, num_workers=2, timeout=30, prefetch_factor=2
    )
    names = (
        "num_workers",
        "collate_fn",
        "pin_memory",
        "timeout",
        "worker_init_fn",
        "multiprocessing_context",
        "generator",
        "prefetch_factor",
        "persistent_workers",
    )
    plain = torch.utils.data.DataLoader(
        loader.dataset,
        batch_sampler=loader.batch_sampler,
        **{name: getattr(loader, name) for name in names},
    )
    assert same_batch(list(plain), list(DataLoader(packed, 4, shuffle=True, transform=CROPPED)))


def test_single_samples_and_lists_of_them(packed: Path) -> None:
    loader = DataLoader(
        packed, N, shuffle=False, transform=CROPPED, fields=("image", "label", "id")
    )
    (batch,) = list(loader)
    view = loader.dataset
    for place, i in enumerate(batch["id"].tolist()):
        assert same_batch(view[i], {name: value[place] for name, value in batch.items()})
    first, last = view.__getitems__([0, -1])  # type: ignore[attr-defined]
    assert same_batch([first, last], [view[0], view[N - 1]])
    assert view.__getitems__([]) == []  # type: ignore[attr-defined]
    for wrong in (N, -N - 1):
        with pytest.raises(IndexError, match=f"index {wrong}: expected -{N} to {N - 1}"):
            view[wrong]
    assert len(view) == N  # type: ignore[arg-type]
    assert view.column("label").shape == (N,)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        _ = view._nothing  # type: ignore[attr-defined]


def test_a_sample_index_is_an_int_with_an_epoch() -> None:
    import pickle

    index = SampleIndex.of(7, 3, 7)
    assert index == 7
    assert [10, 11, 12, 13, 14, 15, 16, 17][index] == 17
    copy = pickle.loads(pickle.dumps(index))
    assert (copy, copy.epoch, type(copy)) == (7, 3, SampleIndex)


def test_a_torch_subset_of_the_view_works(packed: Path) -> None:
    loader = DataLoader(packed, 4, transform=[T.Resize(8, 8)])
    subset = torch.utils.data.Subset(loader.dataset, [3, 9, 4])
    images, labels = next(iter(torch.utils.data.DataLoader(subset, 3)))
    expected = next(iter(DataLoader(packed, 3, sampler=[3, 9, 4], transform=[T.Resize(8, 8)])))
    assert same_batch([images, labels], list(expected))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "tell",
    [lambda loader: loader.set_epoch, lambda loader: loader.dataset.set_epoch],
    ids=["loader", "dataset"],
)
def test_set_epoch_applies_to_samples_of_another_sampler(
    packed: Path, workers: int, tell: Any
) -> None:
    loader = DataLoader(packed, 4, transform=CROPPED, fields=("image", "id"))
    both: torch.utils.data.ConcatDataset[Any] = torch.utils.data.ConcatDataset(
        [loader.dataset, loader.dataset]
    )
    plain = torch.utils.data.DataLoader(both, batch_size=11, num_workers=workers)
    found = []
    for epoch in (0, 5, 5):
        tell(loader)(epoch)
        found.append(torch.cat([batch["image"] for batch in plain]))
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])
    loader.set_epoch(5)
    by_id = {
        int(i): image
        for batch in loader
        for i, image in zip(batch["id"], batch["image"], strict=True)
    }
    assert all(torch.equal(found[1][place], by_id[place % N]) for place in range(2 * N))


def test_accelerate_passes_the_epoch_to_the_dataset(packed: Path) -> None:
    """The Trainer of transformers does this with ``train_dataset=loader.dataset``."""
    shard = pytest.importorskip("accelerate.data_loader").DataLoaderShard
    loader = DataLoader(packed, 4, transform=CROPPED)
    theirs = shard(loader.dataset, batch_size=N, collate_fn=loader.collate_fn)
    epochs = [images for _ in range(3) for images, _ in theirs]
    assert len({image.sum().item() for image in epochs}) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_another_sampler_gets_other_crops_in_each_epoch(packed: Path, workers: int) -> None:
    """The Trainer of transformers has such a sampler, and so has Accelerate."""
    loader = DataLoader(packed, 4, transform=CROPPED, fields=("image", "id"))
    plain = torch.utils.data.DataLoader(
        loader.dataset,
        4,
        shuffle=True,
        collate_fn=loader.collate_fn,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        epochs = [
            {
                int(number): image.clone()
                for batch in plain
                for number, image in zip(batch["id"], batch["image"], strict=True)
            }
            for _ in range(3)
        ]
    assert ["loader.batch_sampler" in str(each.message) for each in caught] == (
        [True] if not workers else []
    )  # once, and not of workers
    assert all(sorted(epoch) == list(range(N)) for epoch in epochs)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert (
            sum(torch.equal(epochs[one][number], epochs[other][number]) for number in range(N))
            < N // 2
        )


def test_a_pass_ends_when_a_sample_repeats() -> None:
    passes, worker = PassCounter(9), PassCounter(9, seed=2**63 - 1)
    assert [passes.of(ids) for ids in ([1, 2], [3, 1], [2, 4], [5, 5], [-4, 0])] == [0, 1, 1, 1, 2]
    assert 0 <= worker.of([1]) < worker.of([1]) < 2**63


def test_single_samples_have_the_newest_epoch(packed: Path) -> None:
    view = DataLoader(packed, 4, transform=CROPPED, fields=("image", "id")).dataset
    assert all(same_batch(view[3], view[3]) for _ in range(3))
