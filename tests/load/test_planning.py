"""Batches prepared several at a time are what each would have been alone; what needs a closer look is prepared alone."""

from __future__ import annotations

import dataclasses
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fastload import transforms as T
from fastload._load import builder as maker_module
from fastload._load import together
from fastload._load.builder import BatchMaker
from fastload._load.loader import DataLoader
from fastload._load.records import BatchRecords, read_records
from fastload._load.together import Together, prepare_together
from fastload._store.dataset import Dataset
from fastload.errors import StoreError
from tests.loading import backends, pack_photos, same_batch
from tests.packed_datasets import put_value, value_of

RRC = [T.RandomResizedCrop(32), T.HorizontalFlip()]
N = 40


def batches(size: int, count: int = N) -> Iterator[NDArray[np.int64]]:
    order = np.random.default_rng(3).permutation(count)
    return (order[first : first + size] for first in range(0, count, size))


def made(path: Path, backend: str = "auto") -> BatchMaker:
    return DataLoader(path, 4, transform=RRC, backend=backend).maker


def unchecked(path: Path) -> BatchMaker:
    """The decode threads compare the checksums, also where there is no native core."""
    maker = made(path)
    maker.check_crc = False
    return maker


@pytest.mark.parametrize("backend", backends())
def test_each_batch_is_what_it_is_alone(packed: Path, backend: str) -> None:
    maker = made(packed, backend)
    some = list(batches(12))  # 12, 12, 12, 4
    prepared = prepare_together(maker, some, 7)
    assert [each.ids.tolist() for each in prepared] == [ids.tolist() for ids in some]
    for begun, ids in zip(prepared, some, strict=True):
        alone = maker.prepare(ids, 7)
        assert list(begun.parts.records) == list(alone.parts.records)
        assert (begun.parts.rows == alone.parts.rows).all()
        assert (begun.parts.part_rows(0) == alone.parts.part_rows(0)).all()
        assert [begun.parts.source(place) for place in range(len(ids))] == [
            alone.parts.source(place) for place in range(len(ids))
        ]
        one, other = begun.rows["image"], alone.rows["image"]
        for each in dataclasses.fields(one):
            assert np.array_equal(getattr(one, each.name), getattr(other, each.name)), each.name
        asked = [
            maker.pictures.asked(maker.spec.images[0], each.parts, each.rows["image"])
            for each in (begun, alone)
        ]
        assert (asked[0].requests == asked[1].requests).all()
        assert list(asked[0].sources) == list(asked[1].sources)
        same_batch(maker.finish(maker.begin(ids, 7, begun)), maker.finish(maker.begin(ids, 7)))


def test_a_few_first_and_then_many(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []

    def counted(maker: BatchMaker, some: list[NDArray[np.int64]], epoch: int) -> list[object]:
        groups.append(len(some))
        return prepare_together(maker, some, epoch)  # type: ignore[return-value]

    monkeypatch.setattr(together, "prepare_together", counted)
    monkeypatch.setattr(together, "SAMPLES", 10)
    monkeypatch.setattr(together, "FEW", 3)
    passing = Together(unchecked(packed), 0)
    taken = [passing.take(ids) for ids in passing.passing(batches(2))]
    assert groups == [2, 4, 5, 5, 3]  # the first of 20 batches goes alone
    assert [each is None for each in taken] == [True] + 19 * [False]
    assert passing.take(np.arange(2)) is None


def test_where_checksums_are_compared_only_what_the_cache_holds_is_prepared_at_once(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [Together(unchecked(packed), 0).at_once(size) for size in (1, 64, 100, 1000)] == [
        512,
        8,
        5,
        4,
    ]
    with_names = DataLoader(packed, 4, transform=RRC, fields=("image", "source")).maker
    assert with_names.check_crc
    size = sum(path.stat().st_size for path in packed.glob("*.lmdb")) / N
    monkeypatch.setattr(together, "CHECKED", 10.5 * size)
    assert [Together(with_names, 0).at_once(size) for size in (1, 4, 10, 100)] == [10, 2, 1, 1]
    monkeypatch.setattr(
        together, "CHECKED", 10_000 * size
    )  # records so small that they do not count
    assert [Together(with_names, 0).at_once(size) for size in (1, 100, 1000)] == [512, 5, 1]


def test_damage_is_looked_at_alone_and_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pack_photos(tmp_path / "whole", N)
    expected = list(DataLoader(whole, 4, transform=RRC, seed=1, shuffle=False))
    packed = tmp_path / "packed"
    shutil.copytree(whole, packed)
    value = bytearray(value_of(packed, 21))
    value[8] = 99  # its version
    put_value(packed, 21, bytes(value))
    assert prepare_together(made(packed), list(batches(10)), 0) == []
    monkeypatch.setattr(together, "ALONE", 2)
    loader = DataLoader(packed, 4, transform=RRC, seed=1, shuffle=False, on_error="substitute")
    for number, (got, wanted) in enumerate(zip(loader, expected, strict=True)):
        if number != 5:
            same_batch(got, wanted)
    assert loader.stats().bad == 1


@pytest.mark.parametrize("error", [StoreError, OSError, MemoryError])
def test_a_shard_that_does_not_open_fails_in_the_place_of_its_batch(
    packed: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    expected = list(DataLoader(packed, 4, transform=RRC, shuffle=False, fields=("image", "id")))
    loader = DataLoader(packed, 4, transform=RRC, shuffle=False, fields=("image", "id"))

    def refused(dataset: Dataset, ids: NDArray[np.int64], *, check_crc: bool) -> BatchRecords:
        if 21 in ids:
            raise error("opening a shard: permission denied")
        return read_records(dataset, ids, check_crc=check_crc)

    for module in (together, maker_module):
        monkeypatch.setattr(module, "read_records", refused)
    iterator = iter(loader)
    for wanted in expected:
        if 21 in wanted["id"]:
            with pytest.raises(error, match="permission denied"):
                next(iterator)
        else:
            assert same_batch(next(iterator), wanted)
    assert next(iterator, None) is None


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_timeout_names_the_samples_that_are_being_read(
    packed: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """With one batch ahead none is begun at that moment, with three those that are begun have been read."""
    go_on = threading.Event()

    def hanging(dataset: Dataset, ids: NDArray[np.int64], *, check_crc: bool) -> BatchRecords:
        go_on.wait(30)
        return read_records(dataset, ids, check_crc=check_crc)

    monkeypatch.setattr(together, "read_records", hanging)
    expected = [
        i
        for batch in DataLoader(packed, 4, shuffle=False, fields=("id",)).batch_sampler  # type: ignore[union-attr]
        for i in batch
    ]
    iterator = iter(
        DataLoader(
            packed,
            4,
            shuffle=False,
            transform=RRC,
            fields=("image", "id"),
            timeout=2,
            prefetch_factor=ahead,
        )
    )
    with pytest.raises(
        RuntimeError, match=r"no batch within timeout=2 s; being loaded: samples"
    ) as caught:
        list(iterator)
    assert [int(i) for i in re.findall(r"(\d+) \(shard-", str(caught.value))] == expected[
        4:12
    ]  # the second and third batch
    go_on.set()
    assert [i for batch in iterator for i in batch["id"].tolist()] == expected[
        4 if ahead == 1 else 0 :
    ]


def test_sizes_that_differ_between_batches_are_no_fault(tmp_path: Path) -> None:
    """Without a size in the plan each batch has that of its images."""
    packed = pack_photos(tmp_path / "packed", N, vary=0)
    sizes = {tuple(images.shape[-2:]) for images, _ in DataLoader(packed, 4)}
    assert sizes == {(72, 96)}
    varied = pack_photos(tmp_path / "varied", N, order="source")
    assert {tuple(images.shape[-2:]) for images, _ in DataLoader(varied, 1)} == {
        (72 + 8 * a, 96 + 8 * b) for a in (0, 1) for b in (0, 1, 2)
    }
