"""Checking any record with a valid checksum returns faults and never raises."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fastload._store.columns import open_column
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload._store.manifest import read_manifest
from fastload._store.record import encode_record, parse_record
from fastload._store.verify.record import RecordChecker
from fastload._tools.inspect.sheet import SampleImages
from tests.packed_datasets import encoded, pack_samples, photo, value_of
from tests.store.strange_records import strange

ROUNDS = int(os.environ.get("FASTLOAD_FUZZ_ROUNDS", "600"))
FIELDS = (
    Field("image", "image"),
    Field("mask", "mask"),
    Field("boxes", "boxes"),
    Field("lanes", "points", list=True),
    Field("camera", "matrix"),
    Field("weight", "float"),
    Field("label", "int", classes=("a", "b")),
    Field("name", "str"),
    Field("more", "json"),
    Field("cameras", "image", list=True),
    Field("numbers", "array"),
    Field("blob", "bytes"),
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    png = np.random.default_rng(0).integers(
        0, 256, (160, 150, 3), dtype=np.uint8
    )  # too large to be stored as raw pixels
    sample = {
        "image": encoded(photo(120, 90, seed=1)),
        "mask": np.eye(20, dtype=np.uint16),
        "boxes": [[1, 2, 30, 40]],
        "lanes": [[[0, 0], [5, 5]]],
        "camera": np.eye(3),
        "weight": 0.5,
        "label": 1,
        "name": "n",
        "more": {"a": [1]},
        "cameras": [png, np.zeros((5, 6), np.uint8)],
        "numbers": np.arange(6),
        "blob": b"123",
    }
    return pack_samples(tmp_path_factory.mktemp("strange") / "packed", FIELDS, [sample])


@pytest.mark.parametrize("deep", [False, True])
def test_mutated_records_are_described_without_an_exception(dataset: Path, deep: bool) -> None:
    found = read_manifest(dataset)
    columns = {column.name: open_column(dataset, column) for column in found.columns}
    checker = RecordChecker(FIELDS, columns, deep=deep)
    good = value_of(dataset, 0)
    parts = parse_record(memoryview(good), 0)
    n_with_faults = 0
    for seed in range(ROUNDS):
        value = encode_record(0, strange(parts, len(FIELDS), np.random.default_rng(seed)))
        _, wrong, _ = checker.check(0, 0, memoryview(value))
        assert all(isinstance(why, str) and why for why in wrong), f"seed {seed}"
        n_with_faults += bool(wrong)
    assert n_with_faults > ROUNDS // 2, "most changes are faults"
    assert checker.check(0, 0, memoryview(good))[1] == []


def test_extreme_values_can_be_drawn(dataset: Path) -> None:
    opened = open_dataset(dataset)
    rng = np.random.default_rng(0)
    for _ in range(50):
        sample = opened[0]
        sample["boxes"] = (
            rng.normal(size=(int(rng.integers(5)), 4)) * 10.0 ** rng.integers(-3, 30)
        ).astype(np.float32)
        sample["lanes"] = [
            rng.choice([np.nan, np.inf, -1e9, 0, 50, 1e38], (int(rng.integers(4)), 2))
            for _ in range(3)
        ]
        sample["mask"] = rng.integers(0, 2**32, (90, 120), dtype=np.uint32)
        for panel in SampleImages(opened, sample).panels():
            assert panel.render is not None
            assert panel.render((60, 40)).size == (60, 40)
