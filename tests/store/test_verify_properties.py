"""``verify`` compares the properties of fields in the manifest with the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload._store.fields import Field
from fastload._store.manifest import read_manifest
from fastload._store.properties import Properties
from fastload._store.verify import verify
from fastload._store.verify.bulk import BulkChecker
from tests.packed_datasets import encoded, pack_samples, photo, spoil_image, write_manifest

FIELDS = (
    Field("image", "image"),
    Field("cameras", "image", list=True),
    Field("mask", "mask"),
    Field("label", "int"),
)
N_SAMPLES = 30
Change = Callable[[Properties], None]


def sample(i: int) -> dict[str, Any]:
    return {
        "image": encoded(photo(40, 30, seed=i, gray=i == 3)),
        "cameras": [encoded(photo(16, 16, seed=i))] * (1 + i % 2),
        "mask": np.zeros((4, 6), np.uint8),
        "label": None if i == 4 else i,
    }


def pack_some(dest: Path, *more: Field) -> Path:
    """``more``: fields that sample() does not contain; "numbers" is an array."""
    samples = [{**sample(i), "numbers": np.zeros((2, 3), np.float32)} for i in range(N_SAMPLES)]
    names = {field.name for field in (*FIELDS, *more)}
    kept = [{name: value for name, value in each.items() if name in names} for each in samples]
    return pack_samples(dest, (*FIELDS, *more), kept)


def change_properties(dataset: Path, field: str, change: Change) -> None:
    """Changes the properties of one field and seals the manifest, as an attacker would."""
    found = read_manifest(dataset)
    names = [each.name for each in found.fields]
    change(found.properties[names.index(field)])
    write_manifest(dataset, replace(found, properties=found.properties))


def assign(**values: Any) -> Change:
    def change(found: Properties) -> None:
        for name, value in values.items():
            setattr(found, name, value)

    return change


WRONG = [
    ("image", assign(channels={3}), "channels {3}, but the records have {1, 3}"),
    ("image", assign(channels=set()), "channels none, but the records have {1, 3}"),
    ("image", assign(bits={8, 16}), "bits {8, 16}, but the records have {8}"),
    ("image", assign(shape=("|u1", (2,))), "shape ('|u1', (2,)), but the records have none"),
    (
        "cameras",
        assign(lengths=Counter({2: 30})),
        "lengths {2: 30}, but the records have {1: 15, 2: 15}",
    ),
    (
        "mask",
        assign(shape=("|u1", (6, 4))),
        "shape ('|u1', (6, 4)), but the records have ('|u1', (4, 6))",
    ),
    ("mask", assign(shape=None), "shape none, but the records have ('|u1', (4, 6))"),
    ("label", assign(lengths=Counter({1: 30})), "lengths {1: 30}, but the records have {1: 29}"),
    ("label", assign(lengths=Counter()), "lengths none, but the records have {1: 29}"),
]


@pytest.fixture(params=["bulk", "single"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "single":
        monkeypatch.setattr(BulkChecker, "create", lambda *_args: None)
    return str(request.param)


@pytest.mark.usefixtures("way")
def test_each_wrong_property_is_a_fault_of_the_manifest(tmp_path: Path) -> None:
    dataset = pack_some(tmp_path / "packed")
    manifest = (dataset / "manifest.json").read_bytes()
    assert verify(dataset).ok
    for field, change, expected in WRONG:
        (dataset / "manifest.json").write_bytes(manifest)
        change_properties(dataset, field, change)
        report = verify(dataset, jobs=2)
        assert [str(fault) for fault in report.faults] == [
            f"manifest.json: properties of field {field!r}: {expected}"
        ]
        assert report.n_checked == N_SAMPLES


def test_the_shape_of_arrays(tmp_path: Path) -> None:
    dataset = pack_some(tmp_path / "packed", Field("numbers", "array"))
    assert verify(dataset, deep=True).ok
    change_properties(dataset, "numbers", assign(shape=("<f4", (3, 2))))
    (fault,) = verify(dataset, deep=True).faults
    assert fault.what == (
        "properties of field 'numbers': shape ('<f4', (3, 2)), but the records have ('<f4', (2, 3))"
    )


@pytest.mark.usefixtures("way")
def test_damaged_records_are_not_compared(tmp_path: Path) -> None:
    """The properties of a damaged record are unknown: only contradictions of the others count."""
    dataset = pack_some(tmp_path / "packed")
    spoil_image(dataset, 3)  # the only gray image
    assert [fault.record for fault in verify(dataset).faults] == [3]
    change_properties(dataset, "image", assign(channels={1}))
    change_properties(dataset, "mask", assign(shape=("|u1", (9, 9))))
    whole, other, record = verify(dataset).faults
    assert whole.what.endswith("'image': channels {1}, but the records have {3}")
    assert other.what.endswith("but the records have ('|u1', (4, 6))")
    assert record.record == 3


@pytest.mark.usefixtures("way")
def test_one_shard_can_contradict_the_manifest(tmp_path: Path) -> None:
    big = [
        {**sample(i), "image": encoded(photo(700, 600, seed=i, noise=60, quality=95))}
        for i in range(6)
    ]
    dataset = pack_samples(tmp_path / "packed", FIELDS, big, shard_size=1 << 20, block_size=1 << 19)
    assert len(read_manifest(dataset).shards) > 1
    assert verify(dataset, shard=0).ok
    change_properties(dataset, "image", assign(bits={16}))
    report = verify(dataset, shard=0)
    assert [fault.shard for fault in report.faults] == ["manifest.json"]
    assert "bits {16}, but the records have {8}" in str(report)
