"""Batches planned in groups equal batches planned one by one; faulty batches are planned alone."""

from __future__ import annotations

import dataclasses
import re
import shutil
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastload import transforms as T
from fastload._load import pipeline as pipeline_module
from fastload._load import planning
from fastload._load.batch import Ids, PlannedBatch, Progress
from fastload._load.loader import DataLoader
from fastload._load.pipeline import Pipeline, plan_batches
from fastload._load.planning import Planner
from fastload._load.records import BatchRecords, read_records
from fastload._store.dataset import Dataset
from fastload.errors import StoreError
from tests.loading import backends, pack_photos, same_batch
from tests.packed_datasets import put_value, value_of

RRC = [T.RandomResizedCrop(32), T.HorizontalFlip()]
N = 40


def batches(size: int, count: int = N) -> Iterator[NDArray[np.int64]]:
    order = np.random.default_rng(3).permutation(count)
    return (order[first : first + size] for first in range(0, count, size))


def make_pipeline(path: Path, backend: str = "auto") -> Pipeline:
    return DataLoader(path, 4, transform=RRC, backend=backend).pipeline


def unchecked(path: Path) -> Planner:
    """Returns a planner that leaves checksums to the decode threads, even without the core."""
    planner = make_pipeline(path).planner
    planner.check_crc = False
    return planner


@pytest.mark.parametrize("backend", backends())
def test_a_batch_of_a_group_equals_the_batch_planned_alone(packed: Path, backend: str) -> None:
    pipeline = make_pipeline(packed, backend)
    some = list(batches(12))  # 12, 12, 12, 4
    group = pipeline.planner.plan_group(some, 7)
    assert [each.ids.tolist() for each in group] == [ids.tolist() for ids in some]
    for planned, ids in zip(group, some, strict=True):
        alone = pipeline.planner.plan(ids, 7)
        assert (planned.epoch, planned.faults) == (alone.epoch, alone.faults) == (7, {})
        assert list(planned.records.views) == list(alone.records.views)
        assert (planned.records.rows == alone.records.rows).all()
        assert (planned.records.part_rows(0) == alone.records.part_rows(0)).all()
        for place in range(len(ids)):
            assert planned.records.source(place) == alone.records.source(place) != ""
        one = planned.rows["image"]
        other = alone.rows["image"]
        for each in dataclasses.fields(one):
            assert np.array_equal(getattr(one, each.name), getattr(other, each.name)), each.name
        image = pipeline.spec.images[0]
        found, expected = (
            pipeline.images.requests(image, each.records, each.rows["image"])
            for each in (planned, alone)
        )
        assert (found.requests == expected.requests).all()
        assert list(found.sources) == list(expected.sources)
        assert same_batch(
            pipeline.finish(pipeline.submit(planned)), pipeline.finish(pipeline.submit(alone))
        )


def test_groups_start_small(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []
    singles: list[int] = []
    planner = unchecked(packed)
    plan = planner.plan
    plan_group = planner.plan_group

    def counted_group(some: Sequence[Ids], epoch: int) -> deque[PlannedBatch]:
        groups.append(len(some))
        return plan_group(some, epoch)

    def counted(ids: Ids, epoch: int, *, in_order: bool) -> PlannedBatch:
        singles.append(len(groups))
        return plan(ids, epoch, in_order=in_order)

    monkeypatch.setattr(planner, "plan_group", counted_group)
    monkeypatch.setattr(planner, "plan", counted)
    monkeypatch.setattr(planning, "GROUP_SAMPLES", 10)
    monkeypatch.setattr(planning, "GROUP_BATCHES", 3)
    planned = list(plan_batches(planner, batches(2), 0, Progress()))
    assert groups == [2, 4, 5, 5, 3]
    assert singles == [0]  # the first of 20 batches, before any group
    expected = [ids.tolist() for ids in batches(2)]
    assert [each.ids.tolist() for each in planned if isinstance(each, PlannedBatch)] == expected


def test_a_group_with_verified_checksums_fits_the_cache(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = (1, 64, 100, 1000)
    assert [unchecked(packed).group_size(size) for size in sizes] == [512, 8, 5, 4]
    loader = DataLoader(packed, 4, transform=RRC, fields=("image", "source"))
    planner = loader.pipeline.planner
    assert planner.check_crc
    record_bytes = sum(path.stat().st_size for path in packed.glob("*.lmdb")) / N
    monkeypatch.setattr(planning, "GROUP_BYTES", 10.5 * record_bytes)
    assert [planner.group_size(size) for size in (1, 4, 10, 100)] == [10, 2, 1, 1]
    monkeypatch.setattr(planning, "GROUP_BYTES", 10_000 * record_bytes)  # tiny records
    assert [planner.group_size(size) for size in (1, 100, 1000)] == [512, 5, 1]


def test_a_damaged_record_does_not_affect_other_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pack_photos(tmp_path / "whole", N)
    expected = list(DataLoader(whole, 4, transform=RRC, seed=1, shuffle=False))
    packed = tmp_path / "packed"
    shutil.copytree(whole, packed)
    value = bytearray(value_of(packed, 21))
    value[8] = 99  # its version
    put_value(packed, 21, bytes(value))
    assert not make_pipeline(packed).planner.plan_group(list(batches(10)), 0)
    monkeypatch.setattr(pipeline_module, "N_SINGLE", 2)
    loader = DataLoader(packed, 4, transform=RRC, seed=1, shuffle=False, on_error="substitute")
    for number, (got, wanted) in enumerate(zip(loader, expected, strict=True)):
        assert same_batch(got, wanted) == (number != 5)
    assert loader.stats().bad == 1


@pytest.mark.parametrize("error", [StoreError, OSError, MemoryError])
def test_a_shard_that_cannot_be_opened_fails_only_its_batch(
    packed: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    expected = list(DataLoader(packed, 4, transform=RRC, shuffle=False, fields=("image", "id")))
    loader = DataLoader(packed, 4, transform=RRC, shuffle=False, fields=("image", "id"))

    def refused(dataset: Dataset, ids: NDArray[np.int64], **options: Any) -> BatchRecords:
        if 21 in ids:
            raise error("opening a shard: permission denied")
        return read_records(dataset, ids, **options)

    monkeypatch.setattr(planning, "read_records", refused)
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
    """With one prefetched batch, none is in flight; with three, their records were read."""
    go_on = threading.Event()

    def hanging(dataset: Dataset, ids: NDArray[np.int64], **options: Any) -> BatchRecords:
        if len(ids) > 4:  # a group
            go_on.wait(300)
        return read_records(dataset, ids, **options)

    monkeypatch.setattr(planning, "read_records", hanging)
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
            timeout=5,
            prefetch_factor=ahead,
        )
    )
    with pytest.raises(
        RuntimeError, match=r"no batch within timeout=5 s. Waiting for samples"
    ) as caught:
        list(iterator)
    assert [int(i) for i in re.findall(r"(\d+) \(shard-", str(caught.value))] == expected[
        4:12
    ]  # the second and third batch
    go_on.set()
    assert [i for batch in iterator for i in batch["id"].tolist()] == expected[
        4 if ahead == 1 else 0 :
    ]


def test_batches_may_have_different_sizes(tmp_path: Path) -> None:
    """Without a resize, each batch has the size of its images."""
    packed = pack_photos(tmp_path / "packed", N, vary=0)
    sizes = {tuple(images.shape[-2:]) for images, _ in DataLoader(packed, 4)}
    assert sizes == {(72, 96)}
    varied = pack_photos(tmp_path / "varied", N, order="source")
    assert {tuple(images.shape[-2:]) for images, _ in DataLoader(varied, 1)} == {
        (72 + 8 * a, 96 + 8 * b) for a in (0, 1) for b in (0, 1, 2)
    }
