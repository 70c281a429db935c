"""``verify`` reports the same with and without the native check of many records at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google_crc32c import value as crc32c

from fastload._common.native import core
from fastload._store.fields import Field
from fastload._store.kinds import KINDS
from fastload._store.manifest import read_manifest
from fastload._store.record import HEADER, ROW, encode_record, parse_record
from fastload._store.verify import VerifyReport, verify
from fastload._store.verify.bulk import BulkChecker
from fastload._store.verify.record import RecordChecker
from tests.packed_datasets import (
    change_column,
    encoded,
    flip,
    pack_samples,
    photo,
    put_values,
    values_of,
)
from tests.store.strange_records import strange

pytestmark = pytest.mark.skipif(core() is None, reason="the native core is missing")

FIELDS = (
    Field("image", "image"),
    Field("mask", "mask"),
    Field("weight", "float"),
    Field("label", "int", classes=("a", "b", "c")),
    Field("name", "str"),
    Field("cameras", "image", list=True),
    Field("ranks", "int", list=True),
    Field("blob", "bytes"),
)


def sample(i: int) -> dict[str, Any]:
    rng = np.random.default_rng(i)
    png = rng.integers(0, 256, (100, 90, 3), dtype=np.uint8)  # too large to be stored raw
    values = {
        "image": encoded(photo(120, 90, seed=i, gray=i % 5 == 0)),
        "mask": rng.integers(0, 9, (20, 20), dtype=np.uint16),
        "weight": i / 4,
        "label": i % 3,
        "name": ("ascii", "naïve")[i % 2],
        "cameras": [png, png[:5, :6, 0]],
        "ranks": [i, -i],
        "blob": bytes([i % 256]),
    }
    for number, name in enumerate(values):  # every field is missing in some samples
        if i % 11 == number:
            return {key: value for key, value in values.items() if key != name}
    return values


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return pack_samples(tmp_path / "packed", FIELDS, [sample(i) for i in range(60)])


def examined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list to which ``verify`` adds the samples that it checks one by one."""
    samples: list[int] = []
    check = RecordChecker.check

    def counted(self: RecordChecker, sample_id: int, *args: Any) -> tuple[str, list[str], int]:
        samples.append(sample_id)
        return check(self, sample_id, *args)

    monkeypatch.setattr(RecordChecker, "check", counted)
    return samples


def assert_same_report(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> VerifyReport:
    """Compares the reports with and without the bulk check; returns one."""
    report = verify(dataset, jobs=2)
    with monkeypatch.context() as patch:
        patch.setattr(BulkChecker, "create", lambda *_args: None)
        single = verify(dataset, jobs=2)
    assert [*map(str, report.faults)] == [*map(str, single.faults)]
    assert (report.n_faults, report.n_checked) == (single.n_faults, single.n_checked)
    assert report.not_checked == single.not_checked
    return report


def test_intact_records_are_not_checked_one_by_one(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = examined(monkeypatch)
    report = verify(dataset)
    assert report.ok, report
    assert report.n_checked == 60
    # Only text that is not ASCII needs Python.
    assert sorted(samples) == [i for i in range(60) if sample(i).get("name") == "naïve"]


def test_records_with_json_or_arrays_are_checked_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = (Field("label", "int"), Field("more", "json"), Field("boxes", "boxes"))
    values = [{"label": i, "more": {"n": i}, "boxes": [[0, 0, 1, 1]]} for i in range(5)]
    packed = pack_samples(tmp_path / "packed", fields, values)
    samples = examined(monkeypatch)
    assert verify(packed).ok
    assert sorted(samples) == [*range(5)]
    assert BulkChecker.create([Field("a", "int")], {}) is not None
    supported = {"int", "float", "str", "bytes", "image", "mask"}
    for name in KINDS:
        assert (BulkChecker.create([Field("a", name)], {}) is not None) == (name in supported)


@pytest.mark.parametrize("round", range(6))
def test_mutated_records_have_the_same_faults(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, round: int
) -> None:
    (shard,) = read_manifest(dataset).shards
    changed: dict[int, bytes] = {}
    for i, value in values_of(dataset, shard).items():
        if i % 4:  # the others stay intact
            parts = parse_record(memoryview(value), shard.key(i))
            rng = np.random.default_rng([round, i])
            changed[i] = encode_record(shard.key(i), strange(parts, len(FIELDS), rng))
    put_values(dataset, shard, changed)
    report = assert_same_report(dataset, monkeypatch)
    assert report.n_faults > 20
    assert {fault.record for fault in report.faults} - {None} <= changed.keys()


def set_byte(record: bytes, place: int, byte: int) -> bytes:
    """Changes one byte of a record and its checksum."""
    data = bytearray(record)
    data[place] = byte
    data[4:8] = crc32c(bytes(data[8:])).to_bytes(4, "little")
    return bytes(data)


def padding_of(record: bytes) -> int:
    """Returns the offset of the first padding between two parts."""
    rows = ROW.iter_unpack(record[HEADER.size : HEADER.size + ROW.size * record[10]])
    ends = (int(row[6] + row[7]) for row in rows)
    return next(end for end in ends if end % 8)


def test_reserved_bytes_padding_and_order_are_faults(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader ignores these; verify does not."""
    (shard,) = read_manifest(dataset).shards
    values = values_of(dataset, shard)
    changed = {
        20: set_byte(values[20], 9, 1),  # reserved in the header
        24: set_byte(values[24], HEADER.size + ROW.size - 1, 1),  # reserved in the first row
        26: set_byte(values[26], padding_of(values[26]), 1),
        28: set_byte(values[28], HEADER.size, 1),  # the first part now is one of the second field
    }
    put_values(dataset, shard, changed)
    report = assert_same_report(dataset, monkeypatch)
    assert [fault.record for fault in report.faults] == [*changed]


@pytest.mark.parametrize("name", ["label", "weight", "image.width", "image.height"])
def test_other_values_in_a_column_are_faults(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def change(rows: Any) -> None:
        rows[[7, 49]] = 2 if name == "label" else 77

    change_column(dataset, name, change)
    report = assert_same_report(dataset, monkeypatch)
    assert [fault.record for fault in report.faults] == [7, 49]


def test_a_missing_record_and_a_damaged_file(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shard,) = read_manifest(dataset).shards
    put_values(dataset, shard, {5: None})
    report = assert_same_report(dataset, monkeypatch)
    assert [str(fault.record) for fault in report.faults[:2]] == ["None", "5"]
    flip(dataset / shard.name, 20_000)
    assert not assert_same_report(dataset, monkeypatch).ok
