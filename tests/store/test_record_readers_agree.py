"""All Python readers of record headers use one parser, so they agree."""

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
from tests.packed_datasets import change_parts, flip, shard_of, value_of


def header_with(sample_id: int, *, version: int = 1, reserved: int = 0, n_parts: int = 0) -> bytes:
    """Returns a record that consists of a header with a valid checksum."""
    rest = HEADER.pack(b"FLR1", 0, version, reserved, n_parts, HEADER.size, sample_id)[8:]
    crc: int = google_crc32c.value(rest)
    return b"FLR1" + crc.to_bytes(4, "little") + rest


@pytest.mark.parametrize(
    "options", [{}, {"version": 2}, {"reserved": 1}, {"n_parts": MAX_PARTS + 1}]
)
def test_a_checksum_alone_does_not_make_a_record_intact(options: dict[str, int]) -> None:
    """GPU backends once compared only the checksum and accepted what other readers reject."""
    record = memoryview(header_with(3, **options))
    if options:
        with pytest.raises(RecordError):
            parse_record(record, 3)
    else:
        assert parse_record(record, 3) == []
    assert is_intact(record) == (not options)
    assert not is_intact(record[:-1])


def test_a_record_of_another_version_is_reported_not_missing(dataset: Path) -> None:
    """The scan of a damaged shard once skipped such a record, so it counted as missing."""
    source = Dataset(dataset).source(2)
    shard = dataset / shard_of(dataset, 2).name
    flip(shard, shard.read_bytes().find(value_of(dataset, 2)) + 8)
    report = verify(dataset)
    assert [fault.record for fault in report.faults] == [None, 2]
    assert "record version is" in report.faults[1].what
    assert report.faults[1].source == source


def test_all_readers_name_the_same_original_file(dataset: Path) -> None:
    """The loader once used the first of two names, the dataset the last."""
    change_parts(dataset, 1, lambda parts: [*parts, Part(SOURCE_FIELD, b"second name", item=1)])
    opened = Dataset(dataset)
    records = read_records(opened, np.arange(40), check_crc=True)
    for sample_id in range(40):
        assert records.source(sample_id) == opened.source(sample_id)
    assert opened.source(1) == "second name"
    faults = verify(dataset).faults
    assert [fault.record for fault in faults] == [1]
    assert faults[0].what == "2 original paths, expected at most 1"


def test_offsets_follow_from_the_parts(packed_folder: Path) -> None:
    record = memoryview(value_of(packed_folder, 0))
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
    """Returns True if the code unpacks HEADER or ROW, or contains the magic as a literal."""
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
