"""``split=``: which samples a loader delivers, in which order, and how its samples are counted."""

from __future__ import annotations

import json
import math
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastload
from fastload import transforms as T
from fastload._load.read_ahead import Advisor, record_runs
from fastload._order.epoch_order import BlockOrder
from fastload._store.fields import Field
from fastload.errors import ConfigError, CorruptShard
from tests.loading import pack_photos, same_batch
from tests.packed_datasets import encoded, pack_samples, photo
from tests.small_dataset import write_dataset

SIZES = {"train": 37, "val": 14, "test": 9}
N = sum(SIZES.values())
FIELDS = (
    Field("image", "image"),
    Field("label", "int", classes=("cat", "dog", "emu")),
    Field("split", "int", classes=tuple(SIZES)),
)
CROPPED = [T.RandomResizedCrop(8), T.HorizontalFlip()]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of three splits, mixed in the source, in blocks of about four samples."""
    splits = np.random.default_rng(2).permutation(np.repeat(range(3), [*SIZES.values()]))
    files = [photo(24, 20, seed=i) for i in range(N)]
    return pack_samples(
        tmp_path_factory.mktemp("splits") / "packed",
        FIELDS,
        [
            {"image": encoded(file), "label": i % 3, "split": int(splits[i])}
            for i, file in enumerate(files)
        ],
        order="shuffle",
        block_size=4 * len(files[0]),
    )


def make(packed: Any, split: str | None = "val", **options: Any) -> fastload.DataLoader:
    return fastload.DataLoader(
        packed,
        **{
            "split": split,
            "batch_size": 3,
            "fields": ("image", "label", "id"),
            "transform": CROPPED,
            "seed": 4,
            **options,
        },
    )


def ids(batches: Any) -> list[int]:
    return [i for batch in batches for i in batch["id"].tolist()]


def ids_of(split: str) -> range:
    first = sum(list(SIZES.values())[: list(SIZES).index(split)])
    return range(first, first + SIZES[split])


# Which samples


@pytest.mark.parametrize("shuffle", [True, "full", False])
@pytest.mark.parametrize("split", SIZES)
def test_an_epoch_has_every_sample_of_the_split_once(
    packed: Path, split: str, shuffle: bool | str
) -> None:
    loader = make(packed, split, shuffle=shuffle)
    first = ids(loader)
    second = ids(loader)
    assert sorted(first) == sorted(second) == [*ids_of(split)]
    assert (first == second) == (shuffle is False)
    assert (first == sorted(first)) is False  # pack shuffled, and each order shuffles or unshuffles


@pytest.mark.parametrize("last_batch", ["drop", "pad", "partial"])
@pytest.mark.parametrize("shuffle", [True, "full", False])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("repeats", [1, 2])
def test_ranks_share_the_split(
    packed: Path, world: int, shuffle: bool | str, last_batch: str, repeats: int
) -> None:
    for split in SIZES:
        found = Counter(
            i
            for rank in range(world)
            for i in ids(
                make(
                    packed,
                    split,
                    shuffle=shuffle,
                    last_batch=last_batch,
                    repeats=repeats,
                    rank=rank,
                    world_size=world,
                    fields=("label", "id"),
                    transform=None,
                )
            )
        )
        assert set(found) <= set(ids_of(split))
        if last_batch == "drop":
            assert max(found.values(), default=0) <= repeats
            assert found.total() == SIZES[split] * repeats // world // 3 * 3 * world
        else:
            assert set(found) == set(ids_of(split))
            assert min(found.values()) >= repeats
            assert found.total() - SIZES[split] * repeats < world


def test_all_splits_are_loaded_on_request(packed: Path) -> None:
    loader = make(packed, "all", shuffle=True)
    assert sorted(ids(loader)) == list(range(N))
    assert (len(loader.dataset), loader.split) == (N, "all")  # type: ignore[arg-type, attr-defined]


def test_a_sample_is_the_same_in_every_loader(packed: Path) -> None:
    """The id decides the crop, and it does not depend on the split."""

    def by_id(split: str) -> dict[int, Any]:
        (batch,) = make(packed, split, batch_size=N)
        samples = zip(batch["image"], batch["label"], strict=True)
        return dict(zip(batch["id"].tolist(), samples, strict=True))

    whole = by_id("all")
    for split in SIZES:
        for i, sample in by_id(split).items():
            assert same_batch(sample, whole[i])


def test_several_splits_require_a_choice(packed: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"several splits: 'train' \(37 samples\), 'val' \(14 samples\), 'test' \(9 samples\)\."
        r" Pass split='train', \.\.\., or split='all'",
    ):
        make(packed, None)
    with pytest.raises(ConfigError, match="several splits"):
        make(fastload.open(packed), None)
    assert len(ids(make(fastload.open(packed), "val"))) == 14


@pytest.mark.parametrize("wrong", ["valid", "", "0"])
def test_an_unknown_split_lists_the_existing_ones(packed: Path, wrong: str) -> None:
    expected = r"expected one of 'train', 'val', 'test', 'all'"
    for use in (make, lambda path, split: fastload.open(path, split=split)):
        with pytest.raises(ConfigError, match=expected):
            use(packed, wrong)
    assert make(packed, "test").split == "test"  # type: ignore[attr-defined]


def test_a_dataset_without_splits_needs_no_choice(tmp_path: Path) -> None:
    dest = pack_photos(tmp_path / "packed", 12)
    for split in (None, "all"):
        assert sorted(ids(make(dest, split))) == list(range(12))
    with pytest.raises(ConfigError, match="split='train': the dataset has no splits"):
        make(dest, "train")


def test_a_single_split_needs_no_choice(tmp_path: Path) -> None:
    """Neither does a dataset in which only one split has samples."""
    for names in (("train",), ("val", "train")):
        fields = (Field("label", "int"), Field("split", "int", classes=names))
        dest = pack_samples(
            tmp_path / names[0],
            fields,
            [{"label": i, "split": names.index("train")} for i in range(12)],
        )
        found = [
            make(dest, split, fields=("id",), transform=None) for split in (None, "train", "all")
        ]
        assert [sorted(ids(loader)) for loader in found] == [list(range(12))] * 3
        for loader in found:  # they have the same samples, so each resumes the others
            loader.load_state_dict(found[0].state_dict())
    with pytest.raises(ConfigError, match=r"split 'val' of .* has no samples"):
        make(dest, "val", fields=("id",), transform=None)


def test_splits_that_are_not_contiguous_are_refused(tmp_path: Path) -> None:
    fields = (Field("label", "int"), Field("split", "int", classes=("train", "val")))
    mixed: list[list[int | None]] = [
        [0, 1, 0, 1],
        [1, 1, 0, 0],
        [0, 0, 1, None],
        [None, 0, 1, 1],
        [0, None, 1, 1],
    ]
    good: list[int | None] = [0, 0, 1, 1]
    for number, splits in enumerate([*mixed, good]):
        dest = tmp_path / str(number)
        write_dataset(dest, [{"label": 0, "split": split} for split in splits], fields=fields)
        if number == len(mixed):
            break
        with pytest.raises(CorruptShard, match="samples of a split are not contiguous"):
            make(dest, "val", fields=("label",), transform=None)
        (fault,) = [each for each in fastload.verify(dest).faults if "expected all" in each.what]
        assert fault.shard == "columns/split.npy"
    assert len(make(dest, "val", fields=("label",), transform=None)) == 1
    assert fastload.verify(dest).ok


def test_a_loader_and_its_dataset_must_agree(packed: Path) -> None:
    train = fastload.open(packed, split="train")
    assert sorted(ids(make(train, None))) == sorted(ids(make(train, "train"))) == [*ids_of("train")]
    with pytest.raises(ConfigError, match=r"split='val' contradicts the dataset.*split='train'"):
        make(train, "val")


# Blocks


def test_only_blocks_of_the_split_are_requested(packed: Path) -> None:
    dataset = fastload.open(packed, split="val")
    loader = make(dataset, None, shuffle=True)
    requested: list[Any] = []
    advisor = Advisor(dataset, blocks=loader.blocks, advise=requested.append)
    order: Any = loader.order
    for batch in order.batches(order.begin()):
        advisor.request(batch)
    found = np.concatenate(requested)
    own = record_runs(dataset, np.array(ids_of("val")))
    _, offsets, sizes = found.T
    _, own_offsets, own_sizes = own.T
    assert offsets.min() == own_offsets.min()
    assert (offsets + sizes).max() == (own_offsets + own_sizes).max()
    assert sizes.sum() >= own_sizes.sum() * 0.9  # gaps between runs are not requested


def test_blocks_are_permuted_within_the_split(packed: Path) -> None:
    loader = make(packed, "val", shuffle=True, window=2)
    [(_, block)] = loader.blocks
    order = BlockOrder(14, block=block, seed=4, epoch=0, window=2)
    assert block < 14
    assert ids(loader) == (37 + order.ids(0, 14)).tolist()


# Counting samples


def test_a_sampler_counts_within_the_split(packed: Path) -> None:
    loader = make(packed, "val", sampler=[0, 13, 5, 0])
    assert ids(loader) == [ids_of("val")[i] for i in (0, 13, 5, 0)]
    with pytest.raises(ConfigError, match=r"indices 14 to 14: expected 0 to 13.*split 'val'"):
        list(make(packed, "val", sampler=[14]))
    batches = make(packed, "test", batch_size=1, batch_sampler=[[8, 0], [1]])
    assert [batch["id"].tolist() for batch in batches] == [[59, 51], [52]]


def test_torch_samplers_cover_the_split(packed: Path) -> None:
    dataset = fastload.open(packed, split="val")
    sampler = torch.utils.data.RandomSampler(dataset)
    assert sorted(ids(make(dataset, None, sampler=sampler))) == [*ids_of("val")]
    ranks = [
        torch.utils.data.DistributedSampler(dataset, num_replicas=2, rank=rank)  # type: ignore[arg-type, var-annotated]
        for rank in range(2)
    ]
    found = [i for each in ranks for i in ids(make(dataset, None, sampler=each))]
    assert sorted(found) == [*ids_of("val")]
    weights = (dataset.column("label") == 1).astype(float)
    weighted = torch.utils.data.WeightedRandomSampler(weights.tolist(), 20)
    drawn = make(dataset, None, sampler=weighted)
    assert {label for batch in drawn for label in batch["label"].tolist()} == {1}


def test_the_dataset_of_a_loader_counts_within_the_split(packed: Path) -> None:
    loader = make(packed, "val")
    view: Any = loader.dataset
    assert len(view) == 14
    assert [view[i]["id"].item() for i in (0, 13, -1, -14)] == [37, 50, 50, 37]
    assert [sample["id"].item() for sample in view.__getitems__([1, 2])] == [38, 39]
    with pytest.raises(IndexError, match="expected -14 to 13"):
        view[14]
    assert view.column("label").tolist() == loader.packed.column("label")[37:51].tolist()
    assert view.ids == ids_of("val")


@pytest.mark.parametrize("workers", [0, 2])
def test_rebuilt_loaders_deliver_the_same_batches(packed: Path, workers: int) -> None:
    """As Accelerate, Lightning and torchdata rebuild them, also in worker processes."""
    loader = make(packed, "val", shuffle=True)
    plain = torch.utils.data.DataLoader(
        loader.dataset,
        batch_sampler=loader.batch_sampler,
        collate_fn=loader.collate_fn,
        num_workers=workers,
        multiprocessing_context="spawn" if workers else None,
    )
    expected = list(make(packed, "val", shuffle=True))
    assert same_batch(list(plain), expected)
    again = fastload.DataLoader(
        loader.dataset,  # type: ignore[arg-type]
        batch_size=3,
        shuffle=True,
        seed=4,
    )
    assert same_batch(list(again), expected)
    indices = [i for batch in loader.batch_sampler for i in batch]  # type: ignore[union-attr]
    assert sorted(indices) == list(range(14))
    own = make(
        packed, "val", sampler=[3, 0, 13]
    )  # as Accelerate rebuilds it with several processes
    drawn = torch.utils.data.DataLoader(
        own.dataset, batch_sampler=own.batch_sampler, collate_fn=own.collate_fn
    )
    assert ids(drawn) == ids(own) == [40, 37, 50]


def test_the_packed_dataset_of_a_loader_counts_ids(packed: Path) -> None:
    loader = make(packed, "val")
    for batch in loader:
        assert loader.packed.column("label")[batch["id"]].tolist() == batch["label"].tolist()
    assert loader.packed.split("val").tolist() == [*ids_of("val")]
    assert len(loader.packed) == N


def test_an_opened_split_counts_within_the_split(packed: Path) -> None:
    whole = fastload.open(packed)
    for name, own in ((name, ids_of(name)) for name in SIZES):
        part = fastload.open(packed, split=name)
        assert (len(part), part.ids, part.split_name) == (len(own), own, name)
        assert [part[i]["label"] for i in range(len(part))] == [whole[i]["label"] for i in own]
        assert part.column("label").tolist() == whole.column("label")[own.start : own.stop].tolist()
        assert part.sizes().tolist() == whole.sizes()[own.start : own.stop].tolist()
        assert [part.record(i).id for i in (0, -1)] == [own[0], own[-1]]
        assert bytes(part.raw(1, "image")) == bytes(whole.raw(own[1], "image"))
        assert part.source(2) == whole.source(own[2])
        assert part.blocks[0, 0] == own.start
        assert part.blocks[-1].sum() == own.stop
        with pytest.raises(IndexError, match=f"the dataset has {len(own)} samples"):
            part[len(own)]
        assert f"split={name!r}, {len(own)} samples" in repr(part)
        copy = pickle.loads(pickle.dumps(part))
        assert (copy.ids, copy[0]["label"]) == (own, part[0]["label"])
    assert whole.with_split("val").split("train").tolist() == [*ids_of("train")]


def test_a_pickled_loader_keeps_its_split(packed: Path) -> None:
    loader = make(packed, "val", shuffle=True)
    copy = pickle.loads(pickle.dumps(loader))
    assert same_batch(list(copy), list(loader))
    assert "split='val', 14 samples" in repr(copy)


# Resume


def saved(loader: fastload.DataLoader) -> str:
    return json.dumps(loader.state_dict())


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"shuffle": "full", "repeats": 2},
        {"shuffle": False, "rank": 1, "world_size": 2},
        {"sampler": list(range(13, -1, -1))},
    ],
    ids=str,
)
def test_every_state_resumes_in_the_split(packed: Path, options: dict[str, Any]) -> None:
    loader = make(packed, **options)
    states = [saved(loader)]
    batches = []
    for batch in loader:
        batches.append(batch)
        states.append(saved(loader))
    for done, state in enumerate(states[:-1]):
        resumed = make(packed, **options)
        resumed.load_state_dict(json.loads(state))
        assert same_batch(list(resumed), batches[done:])


def stopped(packed: Path, split: str, world: int, steps: int) -> tuple[list[int], str]:
    ranks = [
        make(packed, split, shuffle=True, rank=rank, world_size=world, last_batch="partial")
        for rank in range(world)
    ]
    seen: list[int] = []
    for iterator in [iter(rank) for rank in ranks]:
        seen += ids(_taken(iterator, steps))
    (state,) = {saved(rank) for rank in ranks}
    return seen, state


def _taken(iterator: Iterator[Any], n: int) -> Iterator[Any]:
    for _ in range(n):
        yield next(iterator)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(("world", "other"), [(1, 2), (2, 1), (3, 4), (4, 3)])
def test_another_world_size_loses_and_repeats_no_sample(
    packed: Path, split: str, world: int, other: int
) -> None:
    most = math.ceil(SIZES[split] / world)  # samples of a rank
    for steps in range(math.ceil(most / 3)):
        seen, state = stopped(packed, split, world, steps)
        for rank in range(other):
            resumed = make(
                packed, split, shuffle=True, rank=rank, world_size=other, last_batch="partial"
            )
            resumed.load_state_dict(json.loads(state))
            seen += ids(resumed)
        assert set(seen) == set(ids_of(split))
        assert len(seen) - SIZES[split] < other  # "partial" repeats one sample on an empty rank


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": range(9)}], ids=str)
def test_the_state_of_another_split_is_refused(packed: Path, options: dict[str, Any]) -> None:
    state = make(packed, "val", **options).state_dict()
    other = make(packed, "train", **options)
    with pytest.raises(
        ConfigError, match=r"split in the state:  'val'\n  split in the loader: 'train'"
    ):
        other.load_state_dict(state)
    make(packed, "val", **options).load_state_dict(state)
