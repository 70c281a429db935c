"""``DataLoader([a, b])``: several datasets as one, with and without weights."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastload
from fastload import transforms as T
from fastload._load.read_ahead import Advisor
from fastload._plan.draw_ids import sample_ids
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError, StoreError
from tests.every_kind import FIELDS as EVERY_KIND
from tests.every_kind import assert_same_samples, pack_every_kind
from tests.loading import backends, pack_photos, same_batch
from tests.packed_datasets import encoded, pack_samples, photo, spoil_image

CLASSES = ("cat", "dog", "emu")
SIZES = {"day": {"train": 37, "val": 9}, "night": {"train": 14, "val": 8}}
N_TRAIN, N_VAL = 51, 17
CROPPED = [T.RandomResizedCrop(8), T.HorizontalFlip()]
WEIGHTS = [0.4, 0.6]  # in train: 20 of 37 and 31 of 14


def pack_splits(dest: Path, sizes: dict[str, int], *, seed: int, side: int) -> Path:
    """Packs photos of several splits, mixed in the source, in blocks of about four samples."""
    splits = np.random.default_rng(seed).permutation(
        np.repeat(range(len(sizes)), [*sizes.values()])
    )
    files = [photo(side, 20, seed=seed * 1000 + i) for i in range(len(splits))]
    fields = (
        Field("image", "image"),
        Field("label", "int", classes=CLASSES),
        Field("split", "int", classes=tuple(sizes)),
    )
    samples = [
        {"image": encoded(file), "label": i % 3, "split": int(splits[i])}
        for i, file in enumerate(files)
    ]
    return pack_samples(dest, fields, samples, order="shuffle", block_size=4 * len(files[0]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``day`` and ``night``, with splits in different orders, and ``both``, which merges them."""
    root = tmp_path_factory.mktemp("several")
    pack_splits(root / "day", SIZES["day"], seed=1, side=24)
    pack_splits(root / "night", dict(reversed(SIZES["night"].items())), seed=2, side=30)
    fastload.merge([root / "day", root / "night"], root / "both")
    return root


@pytest.fixture
def two(folder: Path) -> list[Path]:
    return [folder / "day", folder / "night"]


def make(data: Any, **options: Any) -> fastload.DataLoader:
    return fastload.DataLoader(
        data,
        **{
            "split": "train",
            "batch_size": 6,
            "shuffle": True,
            "fields": ("image", "label", "id"),
            "transform": CROPPED,
            "seed": 4,
            **options,
        },
    )


def ids(batches: Any) -> list[int]:
    return [i for batch in batches for i in batch["id"].tolist()]


def pairs(batches: Any) -> list[tuple[int, bytes]]:
    """Returns the id and the pixels of each sample."""
    return [
        (int(i), image.numpy().tobytes())
        for batch in batches
        for i, image in zip(batch["id"], batch["image"], strict=True)
    ]


def shares(loader: fastload.DataLoader) -> list[int]:
    """Returns how many samples of each dataset an epoch has."""
    numbers, _ = loader.packed.locate(ids(loader))
    return [int((numbers == number).sum()) for number in range(len(loader.packed.paths))]


# One dataset in memory


def test_every_field_kind_is_the_same_as_in_a_merged_dataset(tmp_path: Path) -> None:
    one = pack_every_kind(tmp_path / "one", range(7), shard_size=1 << 20, block_size=9000)
    two = pack_every_kind(tmp_path / "two", range(20, 25))
    fastload.merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    merged = fastload.open(tmp_path / "both")
    both = fastload.open([tmp_path / "one", two])
    assert_same_samples(both, range(7), one, range(7))
    assert_same_samples(both, range(7, 12), two, range(5))
    assert both.manifest.properties == merged.manifest.properties
    assert both.manifest.content == merged.manifest.content
    for column in merged.manifest.columns:
        np.testing.assert_array_equal(both.column(column.name), merged.column(column.name))
        assert not both.column(column.name).flags.writeable
    assert both.blocks.tolist() == merged.blocks.tolist()
    assert both.class_names == merged.class_names
    assert [both.source(i) for i in range(12)] == [merged.source(i) for i in range(12)]


def test_splits_are_joined_by_name_as_in_a_merged_dataset(folder: Path, two: list[Path]) -> None:
    merged = fastload.open(folder / "both")
    both = fastload.open(two)
    assert both.splits == ("train", "val")
    assert both.split_sizes() == {"train": N_TRAIN, "val": N_VAL}
    for index in range(len(merged)):
        assert both[index]["split"] == merged[index]["split"]
        np.testing.assert_array_equal(both[index]["image"], merged[index]["image"])
    for split in ("train", "val"):
        own, expected = both.with_split(split), merged.with_split(split)
        assert own.ids == expected.ids
        assert own.blocks[:, 1].sum() == len(own)  # checked: they cover the samples in order
        assert own.column("label").tolist() == expected.column("label").tolist()
    assert str(two) not in repr(both)
    assert repr(both).startswith(f"Dataset(['{two[0]}', '{two[1]}'], 68 samples of image")


def test_ids_tell_dataset_and_sample(two: list[Path]) -> None:
    both = fastload.open(two, split="train")
    numbers, own_ids = both.locate(range(len(both.with_split(None))))
    assert numbers.tolist() == [0] * 37 + [1] * 14 + [0] * 9 + [1] * 8
    for index, (number, own) in enumerate(zip(numbers, own_ids, strict=True)):
        dataset = fastload.open(two[number])
        record = both.with_split(None).record(index)
        assert bytes(record.raw("image")) == bytes(dataset.raw(own, "image"))
    with pytest.raises(IndexError, match="expected 0 to 67"):
        both.locate([68])
    zeros, same = fastload.open(two[0]).locate(torch.tensor([3, 1]))
    assert (zeros.tolist(), same.tolist()) == ([0, 0], [3, 1])


def test_several_datasets_have_no_common_path(two: list[Path]) -> None:
    both = fastload.open(two)
    assert both.paths == tuple(two)
    with pytest.raises(AttributeError, match="use paths"):
        _ = both.path
    with pytest.raises(AttributeError, match="no attribute 'pathe'"):
        _ = both.pathe  # type: ignore[attr-defined]
    assert fastload.open(two[0]).paths == (two[0],)


def test_datasets_and_loaders_pickle(two: list[Path]) -> None:
    both = pickle.loads(pickle.dumps(fastload.open(two, split="val", verify="full")))
    assert (len(both), both.split_name, both.verify) == (N_VAL, "val", "full")
    loader = make(two, weights=WEIGHTS)
    assert same_batch(list(pickle.loads(pickle.dumps(loader))), list(loader))


# Without weights


@pytest.mark.parametrize("shuffle", [True, "full", False])
@pytest.mark.parametrize("split", ["train", "val", "all"])
def test_batches_are_those_of_a_merged_dataset(
    folder: Path, two: list[Path], split: str, shuffle: Any
) -> None:
    options = {"split": split, "shuffle": shuffle}
    loader = make(two, **options)
    assert loader.classes == list(CLASSES)
    assert len(loader) == -(-{"train": N_TRAIN, "val": N_VAL, "all": 68}[split] // 6)
    for _ in range(2):
        assert sorted(found := ids(loader)) == list(loader.selected.ids)
    if shuffle:
        assert found != sorted(found)
    merged = make(folder / "both", **options)
    again = make(two, **options)
    if shuffle is True:  # merge copies some records, which may form other blocks
        assert sorted(pairs(again)) == sorted(pairs(merged))
    else:
        assert same_batch(list(again), list(merged))


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=str)
def test_pixels_and_labels_are_those_of_each_dataset_alone(
    two: list[Path], backend: str, weights: Any
) -> None:
    options = {"transform": [T.Resize(8, 8)], "backend": backend, "split": "all"}
    alone = [
        {i: (label, image) for i, label, image in _samples(make(path, **options))} for path in two
    ]
    loader = make(two, weights=weights, **options)
    seen = set()
    for i, label, image in _samples(loader):
        [number], [own] = loader.packed.locate([i])
        assert (label, image) == alone[number][own]
        seen.add((int(number), int(own)))
    if weights is None:
        assert len(seen) == 68


def _samples(loader: fastload.DataLoader) -> list[tuple[int, int, bytes]]:
    return [
        (int(i), int(label), image.numpy().tobytes())
        for batch in loader
        for i, label, image in zip(batch["id"], batch["label"], batch["image"], strict=True)
    ]


def test_a_list_may_have_one_dataset_or_the_same_one_twice(two: list[Path]) -> None:
    assert same_batch(list(make([two[0]])), list(make(two[0])))
    assert same_batch(list(make(two[:1], weights=[3])), list(make(two[:1], weights=(1.0,))))
    twice = make([two[0], fastload.open(two[0])])
    assert len(twice.selected) == 2 * 37
    found = Counter(own for own in twice.packed.locate(ids(twice))[1].tolist())
    assert set(found.values()) == {2}
    assert len(set(pairs(twice))) == 2 * 37  # each copy has its own crop


def test_opened_datasets_and_the_parts_of_a_loader_are_accepted(two: list[Path]) -> None:
    expected = list(make(two))
    opened = [fastload.open(path, split="train") for path in two]
    for same in (
        tuple(map(str, two)),
        opened,
        [two[0], fastload.open(two[1])],
        fastload.open(two),
        fastload.open(opened),
        make(two).dataset,
        [make(path).dataset for path in two],
    ):
        options = {"split": None} if same is opened else {}
        if isinstance(same, list) and not isinstance(same[0], fastload.Dataset | Path):
            options = {"split": None}
        assert same_batch(list(make(same, **options)), expected)


def test_grayscale_and_color_are_loaded_as_color(tmp_path: Path) -> None:
    fields = (Field("image", "image"),)
    for name, gray in (("gray", True), ("color", False)):
        files = [photo(9, 9, seed=i, gray=gray) for i in range(3)]
        pack_samples(tmp_path / name, fields, [{"image": encoded(file)} for file in files])
    loader = fastload.DataLoader([tmp_path / "gray", tmp_path / "color"], 6)
    [batch] = loader
    assert batch["image"].shape == (6, 3, 9, 9)
    [alone] = fastload.DataLoader(tmp_path / "gray", 3)
    assert alone["image"].shape == (3, 1, 9, 9)


# Weights


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([0.4, 0.6], [20, 31]),
        ([1, 1], [26, 25]),
        ([37, 14], [37, 14]),
        ([0, 1], [0, 51]),
        (np.array([0.02, 0.98]), [1, 50]),
    ],
    ids=str,
)
@pytest.mark.parametrize("shuffle", [True, "full", False])
def test_an_epoch_has_exact_shares(
    two: list[Path], weights: Any, expected: list[int], shuffle: Any
) -> None:
    loader = make(two, weights=weights, shuffle=shuffle)
    assert len(loader) == 9
    assert len(loader.sampler) == N_TRAIN  # type: ignore[arg-type]
    for _ in range(2):
        assert shares(loader) == expected
    assert "weights=" in repr(loader)


def test_weights_apply_to_all_splits_together(two: list[Path]) -> None:
    for shuffle in (True, "full", False):
        loader = make(two, weights=[0.25, 0.75], split="all", shuffle=shuffle)
        assert shares(loader) == [17, 51]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_share_an_epoch_without_duplicates_and_each_is_mixed(
    two: list[Path], world: int, shuffle: Any
) -> None:
    options = {"weights": WEIGHTS, "shuffle": shuffle, "last_batch": "partial"}
    whole = pairs(make(two, **options))
    assert len(set(whole)) == N_TRAIN  # repeated samples have other crops
    found = []
    for rank in range(world):
        loader = make(two, rank=rank, world_size=world, **options)
        own = pairs(loader)
        numbers, _ = loader.packed.locate([i for i, _ in own])
        assert 0.15 * len(own) < np.count_nonzero(numbers == 0) < 0.65 * len(own)
        found += own
    assert sorted(found) == sorted(whole)


def test_every_sample_is_used_over_epochs_and_equally_often(two: list[Path]) -> None:
    loader = make(two, weights=[10, 41], fields=("id",))  # 10 of 37, and 41 of 14
    seen: Counter[int] = Counter()
    orders = []
    for _ in range(4):
        orders.append(ids(loader))
        seen.update(orders[-1])
    assert set(seen) == set(range(N_TRAIN))
    assert sorted(Counter(seen[i] for i in range(37)).items()) == [(1, 34), (2, 3)]
    assert {seen[i] for i in range(37, 51)} <= {11, 12}
    assert orders[0] != orders[1]
    loader.set_epoch(2)
    assert ids(loader) == orders[2]


@pytest.mark.parametrize("shuffle", [True, "full", False])
def test_every_state_resumes_with_identical_batches(two: list[Path], shuffle: Any) -> None:
    options = {"weights": WEIGHTS, "shuffle": shuffle}
    loader = make(two, **options)
    states, batches = [json.dumps(loader.state_dict())], []
    for _ in range(2):
        for batch in loader:
            batches.append(batch)
            states.append(json.dumps(loader.state_dict()))
    for done, state in enumerate(states[:-1]):
        again = make(two, **options)
        again.load_state_dict(json.loads(state))
        assert same_batch(list(again), batches[done : (done // 9 + 1) * 9])


@pytest.mark.parametrize("worlds", [((1, 6), (2, 4)), ((3, 5), (1, 7)), ((2, 4), (4, 3))], ids=str)
def test_another_world_size_loses_and_repeats_no_sample(
    two: list[Path], worlds: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    (world, size), (other_world, other_size) = worlds
    options = {"weights": WEIGHTS, "last_batch": "partial"}
    whole = pairs(make(two, **options))
    assert len(set(whole)) == N_TRAIN
    ranks = [make(two, rank=r, world_size=world, batch_size=size, **options) for r in range(world)]
    iterators = [iter(rank) for rank in ranks]
    seen: list[Any] = []
    for _ in range(len(ranks[0])):
        state = ranks[0].state_dict()
        rest: list[Any] = []
        for rank in range(other_world):
            again = make(two, rank=rank, world_size=other_world, batch_size=other_size, **options)
            again.load_state_dict(state)
            rest += pairs(again)
        assert set(seen + rest) == set(whole)
        # A rank without a sample repeats one.
        assert len(seen + rest) == N_TRAIN or N_TRAIN - len(seen) < other_world
        seen += pairs(next(iterator) for iterator in iterators)


def test_the_state_of_another_list_or_other_weights_is_refused(
    folder: Path, two: list[Path]
) -> None:
    state = make(two, weights=WEIGHTS).state_dict()
    for data, weights, message in (
        (two, [0.5, 0.5], "weights in the loader: '26 of 37, 25 of 14'"),
        (two, None, "weights in the state:  '20 of 37, 31 of 14'"),
        (two[::-1], WEIGHTS[::-1], "dataset in the state"),
        (two[0], None, "dataset in the state"),
        (folder / "both", None, "weights in the state"),
    ):
        with pytest.raises(ConfigError, match=message):
            make(data, weights=weights).load_state_dict(state)
    make(two, weights=[2, 3]).load_state_dict(state)  # the same shares


def test_many_datasets_have_a_short_state(two: list[Path]) -> None:
    loader = make(two * 100, weights=[*range(20, 220)])
    state = loader.state_dict()
    assert len(json.dumps(state)) < 4096
    loader.load_state_dict(state)
    with pytest.raises(ConfigError, match="sha256 in the state"):
        make(two * 100, weights=[*range(220, 20, -1)]).load_state_dict(state)


def test_only_blocks_of_the_drawn_datasets_are_read_ahead(two: list[Path]) -> None:
    loader = make(two, weights=[0, 1], split="val")
    assert [(own.start, own.stop) for own, _ in loader.blocks] == [(51, 60), (60, 68)]
    requested: list[int] = []
    advisor = Advisor(loader.selected, blocks=loader.blocks, advise=lambda _: None)
    order: Any = loader.order
    for batch in order.batches(order.begin()):
        new = advisor._new_blocks(sample_ids(batch)).tolist()
        requested += new
    assert sorted(requested) == [*range(60, 68)]  # each block once


# Other ways to load


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=str)
def test_a_plain_loader_of_the_parts_yields_the_same_batches(two: list[Path], weights: Any) -> None:
    loader = make(two, weights=weights)
    plain = torch.utils.data.DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
    )
    assert same_batch(list(plain), list(make(two, weights=weights)))


def test_samplers_count_through_all_datasets(two: list[Path]) -> None:
    options: dict[str, Any] = {"shuffle": None, "split": "val"}
    loader = make(two, sampler=[0, 16, 9], **options)
    assert ids(loader) == [51, 67, 60]
    options["batch_size"] = 1
    assert ids(make(two, batch_sampler=[[3, 4], [16]], **options)) == [54, 55, 67]
    sampler: Any = torch.utils.data.DistributedSampler(range(N_VAL), 2, 1, shuffle=False)  # type: ignore[arg-type]
    assert ids(make(two, sampler=sampler, **options)) == [51 + i for i in [*range(1, 17, 2), 0]]


def test_accelerate_uses_the_loader_unchanged(two: list[Path]) -> None:
    accelerate = pytest.importorskip("accelerate", reason="not run: no accelerate")
    from accelerate.state import AcceleratorState, GradientState

    try:
        prepared = accelerate.Accelerator(cpu=True).prepare(make(two, weights=WEIGHTS))
        assert same_batch(list(prepared), list(make(two, weights=WEIGHTS)))
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def test_a_loader_that_a_framework_rebuilds_keeps_the_weights(two: list[Path]) -> None:
    """Lightning passes the attributes with the names of constructor arguments."""
    loader: Any = make(two, weights=WEIGHTS)
    again = fastload.DataLoader(
        loader.dataset,
        6,
        weights=loader.weights,
        split=loader.split,
        shuffle=True,
        seed=loader.seed,
    )
    assert same_batch(list(again), list(loader))


def test_plans_statistics_and_diagnosis_work(two: list[Path]) -> None:
    loader = make(two, weights=WEIGHTS, return_matrix=True)
    batch = next(iter(loader))
    first = int(batch["id"][0])
    copy_0 = loader.plan(first, epoch=0).matrix
    assert copy_0.shape == (3, 3)
    assert loader.stats().samples == 6
    assert fastload.diagnose(loader, seconds=0.3).verdict


def test_a_bad_sample_is_named_with_its_own_dataset(tmp_path: Path) -> None:
    good = pack_photos(tmp_path / "good", 6)
    bad = pack_photos(tmp_path / "bad", 6)
    spoil_image(bad, 2)
    options = {"split": None, "shuffle": False, "batch_size": 12, "transform": [T.Resize(8, 8)]}
    with pytest.raises(BadImage, match=rf"sample 8 in {bad}/shard-00000.lmdb"):
        list(make([good, bad], **options))
    [batch] = make([good, bad], on_error="substitute", **options)
    assert sorted(set(batch["id"].tolist())) == [i for i in range(12) if i != 8]


# Misuse


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [1]}, r"weights=\[1\]: expected 2 numbers, 0 or more, one per dataset"),
        ({"weights": [1, -2]}, "expected 2 numbers, 0 or more"),
        ({"weights": [0, 0]}, "at least one weight above 0"),
        ({"weights": [float("nan"), 1]}, "expected 2 numbers, 0 or more"),
        ({"weights": {"day": 1}}, "expected 2 numbers"),
        ({"weights": [1, 1e-6]}, "less than one of the 51 samples"),
        ({"weights": [1, 1], "repeats": 2}, "repeats=2 contradicts weights"),
        ({"weights": [1, 1], "sampler": [1], "shuffle": None}, "weights has no effect with a s"),
        (
            {"weights": [1, 1], "batch_sampler": [[1]], "shuffle": None, "batch_size": 1},
            "or batch_sampler",
        ),
        ({"split": "test"}, "split='test': expected one of 'train', 'val', 'all'"),
        ({"split": None}, r"day \+ .*night has several splits: 'train' \(51 samples\)"),
    ],
    ids=str,
)
def test_invalid_arguments_are_refused(
    two: list[Path], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(two, **options)
    assert len(ids(make(two, weights=WEIGHTS))) == N_TRAIN


def test_invalid_lists_are_refused(folder: Path, two: list[Path]) -> None:
    empty: Any
    for empty in ([], ()):
        with pytest.raises(ConfigError, match="found an empty list of datasets"):
            make(empty)
        with pytest.raises(ConfigError, match="found an empty list of datasets"):
            fastload.open(empty)
    with pytest.raises(ConfigError, match="pass one flat list"):
        make([fastload.open(two), two[0]])
    with pytest.raises(ConfigError, match=r"weights=.*expected a list of datasets, found one"):
        make(two[0], weights=[1])
    with pytest.raises(StoreError, match="nowhere: no such folder"):
        make([*two, folder / "nowhere"])
    with pytest.raises(TypeError, match=r"not a list\. Pack it once"):
        make([{"image": 1}])
    train, val = (fastload.open(folder / "day", split=split) for split in ("train", "val"))
    with pytest.raises(ConfigError, match=r"opened with different splits: .*split='train'.*'val'"):
        make([train, val], split=None)
    with pytest.raises(ConfigError, match="split='val' contradicts the datasets"):
        fastload.open([train, train], split="val")


def test_a_dataset_without_samples_of_the_split_is_refused(tmp_path: Path, two: list[Path]) -> None:
    pack_splits(tmp_path / "train", {"train": 5}, seed=3, side=24)
    several = [two[0], tmp_path / "train"]
    assert len(ids(make(several))) == 42
    with pytest.raises(ConfigError, match=r"split 'val' of .*/train has no samples: remove it"):
        make(several, split="val")
    assert len(fastload.open(several, split="val")) == 9


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            (*EVERY_KIND, Field("extra", "int")),
            r"field 'extra' differs: .*one has no such field, .*two has int",
        ),
        (EVERY_KIND[::-1], "fields have different orders: .*fastload.merge"),
        (
            tuple(
                Field("label", "int", classes=("cat", "eel")) if each.name == "label" else each
                for each in EVERY_KIND
            ),
            "field 'label' has different classes: for class 1, .*one has 'dog' and .*two has 'eel'",
        ),
        (
            tuple(
                Field("label", "int", classes=(*CLASSES, "fox")) if each.name == "label" else each
                for each in EVERY_KIND
            ),
            "for class 3, .*one has none and .*two has 'fox'. Join the datasets with fastload.mer",
        ),
    ],
    ids=["missing", "order", "classes", "more classes"],
)
def test_datasets_that_differ_are_refused_with_the_difference(
    tmp_path: Path, fields: tuple[Field, ...], message: str
) -> None:
    pack_every_kind(tmp_path / "one", range(3))
    pack_every_kind(tmp_path / "two", range(3), fields=fields)
    with pytest.raises(ConfigError, match=message):
        fastload.open([tmp_path / "one", tmp_path / "two"])
    with pytest.raises(ConfigError, match=message):
        fastload.DataLoader([tmp_path / "one", tmp_path / "two"])
    assert len(fastload.open([tmp_path / "one", tmp_path / "one"])) == 6
