"""Whoever reads a record header in Python uses one parser, so all readers give the same answer."""

from __future__ import annotations

import ast
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

import fastload
from fastload import verify
from fastload._load.records import read_records
from fastload._store.dataset import Dataset
from fastload._store.fields import Field
from fastload._store.record import (
    HEADER,
    MAX_PARTS,
    SOURCE_FIELD,
    Part,
    is_intact,
    parse_record,
    part_offsets,
)
from fastload.errors import RecordError
from tests.packed_datasets import change_parts, flip, pack_samples, value_of

FIELDS = (Field("note", "str"),)


def header_with(sample_id: int, *, version: int = 1, reserved: int = 0, n_parts: int = 0) -> bytes:
    """A record of a header alone, with a right checksum."""
    rest = HEADER.pack(b"FLR1", 0, version, reserved, n_parts, HEADER.size, sample_id)[8:]
    crc: int = google_crc32c.value(rest)
    return b"FLR1" + crc.to_bytes(4, "little") + rest


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return pack_samples(tmp_path / "packed", FIELDS, [{"note": f"note {n}"} for n in range(4)])


@pytest.mark.parametrize(
    "options", [{}, {"version": 2}, {"reserved": 1}, {"n_parts": MAX_PARTS + 1}]
)
def test_a_checksum_alone_does_not_make_a_record_intact(options: dict[str, int]) -> None:
    """The decoders for GPUs compared the checksum only, and decoded what every other reader refuses."""
    record = memoryview(header_with(3, **options))
    if options:
        with pytest.raises(RecordError):
            parse_record(record, 3)
    else:
        assert parse_record(record, 3) == []
    assert is_intact(record) == (not options)
    assert not is_intact(record[:-1])


def test_a_record_of_another_version_is_named_not_lost(packed: Path) -> None:
    """The search of a damaged shard skipped such a record, so it counted as missing."""
    shard = packed / "shard-00000.lmdb"
    flip(shard, shard.read_bytes().find(value_of(packed, 2)) + 8)
    report = verify(packed)
    assert [fault.record for fault in report.faults] == [None, 2]
    assert "record version is" in report.faults[1].what
    assert report.faults[1].source == "samples/002"


def test_all_readers_name_the_same_original_file(packed: Path) -> None:
    """The loader took the first of two names, the dataset the last."""
    change_parts(packed, 1, lambda parts: [*parts, Part(SOURCE_FIELD, b"second name", item=1)])
    dataset = Dataset(packed)
    records = read_records(dataset, np.arange(4), check_crc=True)
    for sample_id in range(4):
        assert records.source(sample_id) == dataset.source(sample_id)
    assert dataset.source(1) == "second name"
    faults = verify(packed).faults
    assert [fault.record for fault in faults] == [1]
    assert faults[0].what == "2 original paths, expected at most 1"


def test_offsets_follow_from_the_parts(packed: Path) -> None:
    record = memoryview(value_of(packed, 0))
    parts = parse_record(record, 0)
    for part, offset in zip(parts, part_offsets(parts), strict=True):
        assert record[offset : offset + len(part.data)] == part.data
        assert offset % 8 == 0


def test_no_other_module_parses_the_header() -> None:
    package = Path(fastload.__file__).parent
    found = [
        str(path.relative_to(package))
        for path in sorted(package.rglob("*.py"))
        if path.name != "record.py" and _unpacks_header(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    ["HEADER.unpack(head)", "record.ROW.iter_unpack(x)", 'value[:4] == b"FLR1"'],
)
def test_the_scan_finds_a_planted_parser(code: str) -> None:
    assert _unpacks_header(code)


def _unpacks_header(code: str) -> bool:
    """It unpacks HEADER or ROW, or has the magic as a literal."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant) and node.value == b"FLR1":
            return True
        if isinstance(node, ast.Attribute) and node.attr in (
            "unpack",
            "unpack_from",
            "iter_unpack",
        ):
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if name in ("HEADER", "ROW"):
                return True
    return False
