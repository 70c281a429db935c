"""``verify`` reports shard, record and original file for each kind of damage."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastload._common.native import core
from fastload._pack.sources.base import Encoded
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload._store.kinds import encode_array
from fastload._store.manifest import read_manifest
from fastload._store.record import (
    ARRAY,
    DATA,
    JPEG,
    RESTART_INDEX,
    SOURCE_FIELD,
    Part,
    encode_record,
    parse_record,
)
from fastload._store.verify import Fault, VerifyReport, columns, verify
from tests.packed_datasets import (
    change_column,
    change_parts,
    flip,
    pack_samples,
    photo,
    put_value,
    shard_of,
    value_of,
)

Parts = list[Part]


def only_fault(path: Path, *, deep: bool = False) -> Fault:
    report = verify(path, deep=deep, jobs=2)
    assert report.n_faults == len(report.faults) == 1, report
    assert not report.ok
    return report.faults[0]


def place(path: Path, sample_id: int) -> tuple[str, int, str]:
    """Returns shard, record number and original file of a sample."""
    shard = shard_of(path, sample_id)
    return shard.name, sample_id - shard.first, open_dataset(path).source(sample_id)


def test_an_undamaged_dataset_has_no_faults(packed_folder: Path) -> None:
    found = read_manifest(packed_folder)
    assert len(found.shards) >= 2
    for deep in (False, True):
        report = verify(packed_folder, deep=deep, jobs=2)
        assert report.ok
        assert report.faults == ()
        assert (report.n_checked, report.n_shards, report.n_columns) == (40, len(found.shards), 5)
        assert report.n_decoded == (40 if deep else 0)
        assert ": OK" in str(report).splitlines()[0]


# Files.


def test_a_flipped_byte_in_a_record(dataset: Path, packed_folder: Path) -> None:
    """The digest is wrong and the file is not mapped, but the report still names the record."""
    shard, record, source = place(packed_folder, 7)
    flip(dataset / shard, (dataset / shard).read_bytes().find(value_of(packed_folder, 7)) + 5000)
    report = verify(dataset, jobs=2)
    whole, in_record = report.faults
    assert report.n_faults == 2
    assert (whole.shard, whole.record) == (shard, None)
    assert whole.what.startswith("BLAKE3 ")
    assert (in_record.shard, in_record.record, in_record.source) == (shard, record, source)
    assert in_record.what.startswith("checksum is 0x")
    records = {each.name: each.records for each in read_manifest(dataset).shards}
    assert report.not_checked == ((shard, records[shard]),)
    assert report.n_checked == 40 - records[shard], "the other shards are checked"
    assert verify(packed_folder).ok


def test_a_flipped_byte_in_a_record_number(dataset: Path, packed_folder: Path) -> None:
    shard, record, _ = place(packed_folder, 3)
    flip(dataset / shard, (dataset / shard).read_bytes().find(value_of(packed_folder, 3)) + 16)
    report = verify(dataset)
    assert [(fault.shard, fault.record) for fault in report.faults] == [
        (shard, None),
        (shard, record),
    ]
    assert "did not find the record" in report.faults[1].what


def test_a_flipped_byte_between_the_records(dataset: Path) -> None:
    flip(dataset / "shard-00000.lmdb", 40)  # LMDB's first meta page
    fault = only_fault(dataset)
    assert (fault.shard, fault.record) == ("shard-00000.lmdb", None)
    assert "a scan found all " in fault.what
    assert "records intact" in fault.what


def test_a_record_inside_a_record_does_not_hide_the_damaged_one(tmp_path: Path) -> None:
    blob = encode_record(1, [Part(0, b"a copy")])
    path = pack_samples(
        tmp_path / "packed", (Field("blob", "bytes"),), [{"blob": blob}, {"blob": b"the real one"}]
    )
    flip(path / "shard-00000.lmdb", (path / "shard-00000.lmdb").read_bytes().find(b"the real one"))
    report = verify(path)
    assert [(fault.record, fault.source) for fault in report.faults] == [
        (None, ""),
        (1, "samples/001"),
    ]


@pytest.mark.parametrize("seed", range(40))
def test_any_flipped_byte_of_any_file_is_found(
    packed_folder: Path, dataset: Path, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    paths = sorted(
        path for path in dataset.rglob("*") if path.is_file() and path.name != "pack-log.jsonl"
    )
    path = paths[seed % len(paths)]
    flip(path, int(rng.integers(path.stat().st_size)))
    report = verify(dataset, jobs=2)
    assert not report.ok
    assert report.faults[0].shard == str(path.relative_to(dataset))


@pytest.mark.parametrize(
    ("share", "more"), [(0, 0), (0, 100), (0, 5000), (1, -4096), (1, -1), (1, 1)]
)
def test_a_truncated_or_extended_shard(dataset: Path, share: int, more: int) -> None:
    """Mapping such a file would kill the process."""
    path = dataset / "shard-00001.lmdb"
    expected = path.stat().st_size
    os.truncate(path, share * expected + more)
    report = verify(dataset, jobs=2)
    assert report.faults[0].shard == "shard-00001.lmdb"
    assert report.faults[0].what.startswith(f"{path.stat().st_size} bytes, expected {expected}")
    assert report.not_checked[0][0] == "shard-00001.lmdb"
    assert report.n_checked == 40 - report.not_checked[0][1]


def test_a_missing_shard_a_link_and_a_fifo(dataset: Path, packed_folder: Path) -> None:
    path = dataset / "shard-00000.lmdb"
    path.unlink()
    assert "No such file" in only_fault(dataset).what
    path.symlink_to(packed_folder / path.name)
    assert only_fault(dataset).shard == path.name
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in only_fault(dataset).what
    path.unlink()
    shutil.copy(packed_folder / path.name, path)
    assert verify(dataset).ok


def test_swapped_shards(dataset: Path) -> None:
    first, second = dataset / "shard-00000.lmdb", dataset / "shard-00001.lmdb"
    first.rename(dataset / "aside")
    second.rename(first)
    (dataset / "aside").rename(second)
    report = verify(dataset, jobs=2)
    assert [(fault.shard, fault.record) for fault in report.faults] == [
        ("shard-00000.lmdb", None),
        ("shard-00001.lmdb", None),
    ]
    assert all("Is it another shard?" in fault.what for fault in report.faults)


def test_a_damaged_manifest_is_a_fault(dataset: Path) -> None:
    flip(dataset / "manifest.json", 100)
    fault = only_fault(dataset)
    assert fault.shard == "manifest.json"
    assert fault.what.startswith("checksum 0x")


# Records.


def test_a_record_with_a_wrong_checksum(dataset: Path) -> None:
    value = bytearray(value_of(dataset, 9))
    value[3000] ^= 1
    put_value(dataset, 9, bytes(value))
    fault = only_fault(dataset)
    assert (fault.shard, fault.record, fault.source) == place_of(dataset, 9, value)
    assert fault.what.startswith("checksum is 0x")


def place_of(path: Path, sample_id: int, value: bytearray) -> tuple[str, int, str]:
    """Like ``place``, for a damaged record."""
    shard = shard_of(path, sample_id)
    row = len(value) - bytes(value)[::-1].find(
        b"\0"
    )  # the source is the last part, after padding or the table
    return shard.name, sample_id - shard.first, bytes(value[row:]).decode()


def test_a_record_with_another_records_number(dataset: Path) -> None:
    parts = parse_record(memoryview(value_of(dataset, 12)), 12)
    where = place(dataset, 12)
    put_value(dataset, 12, encode_record(11, parts))
    fault = only_fault(dataset)
    assert (fault.shard, fault.record, fault.source) == where
    assert fault.what == "sample id is 11, expected 12"


def test_a_record_that_is_missing(dataset: Path) -> None:
    shard, record, _ = place(dataset, 5)
    put_value(dataset, 5, None)
    report = verify(dataset)
    assert [(fault.shard, fault.record) for fault in report.faults] == [
        (shard, None),
        (shard, record),
    ]
    assert "records, expected" in report.faults[0].what
    assert report.faults[1].what == "the record is missing"


def replace_part(
    number: int, role: int, change: Callable[[Part], Part]
) -> Callable[[Parts], Parts]:
    def changed(parts: Parts) -> Parts:
        found = [
            change(part) if (part.field, part.role) == (number, role) else part for part in parts
        ]
        assert found != parts
        return found

    return changed


def moved_index(part: Part) -> Part:
    entries = np.frombuffer(part.data, "<u4").copy()
    entries[1] += 1
    return part._replace(data=entries.tobytes())


PART_FAULTS: dict[str, tuple[Callable[[Parts], Parts], str]] = {
    "a class out of range": (
        replace_part(1, DATA, lambda part: part._replace(data=(7).to_bytes(8, "little"))),
        "class 7, expected 0 to 2",
    ),
    "an int of 7 bytes": (
        replace_part(1, DATA, lambda part: part._replace(data=bytes(7))),
        "7 bytes, codec 0",
    ),
    "a field that does not exist": (
        lambda parts: [*parts, Part(9, b"?")],
        "field number 9, expected below 2",
    ),
    "a second value of a field": (
        lambda parts: [*parts, Part(1, bytes(8), 1)],
        "the field is not a list",
    ),
    "an original file that is no text": (
        replace_part(SOURCE_FIELD, DATA, lambda part: part._replace(data=b"\xff")),
        "not UTF-8",
    ),
    "no JPEG at all": (
        replace_part(0, DATA, lambda part: part._replace(data=b"?" * len(part.data))),
        "not a JPEG",
    ),
    "a JPEG that is cut off": (
        replace_part(0, DATA, lambda part: part._replace(data=bytes(part.data[:-2]))),
        "no end marker",
    ),
    "a size in the table": (
        replace_part(0, DATA, lambda part: part._replace(width=part.width - 1)),
        "but the part table says",
    ),
    "a codec that is no image's": (
        replace_part(0, DATA, lambda part: part._replace(codec=ARRAY)),
        "codec 5 (array)",
    ),
    "an orientation of no image": (
        replace_part(0, DATA, lambda part: part._replace(orientation=0)),
        "orientation 0",
    ),
    "a restart interval": (
        replace_part(0, DATA, lambda part: part._replace(interval=part.interval + 1)),
        "a restart marker every",
    ),
    "a restart index that is missing": (
        lambda parts: [part for part in parts if part.role == DATA],
        "but no restart index",
    ),
    "a restart index of nothing": (
        lambda parts: [*parts, Part(0, bytes(8), 3, role=RESTART_INDEX)],
        "a restart index for item 3",
    ),
    "a restart index beside the marker": (
        replace_part(0, RESTART_INDEX, moved_index),
        "entry 1 does not follow a restart marker",
    ),
    "a restart index that is short": (
        replace_part(0, RESTART_INDEX, lambda part: part._replace(data=bytes(part.data[:-4]))),
        "entries",
    ),
}


@pytest.mark.parametrize("name", PART_FAULTS)
def test_a_wrong_part_in_a_record_with_a_valid_checksum(dataset: Path, name: str) -> None:
    change, what = PART_FAULTS[name]
    if core() is None and "restart in" in name:
        pytest.skip("not run: no native core, which makes the restart index")
    where = place(dataset, 30)
    change_parts(dataset, 30, change)
    report = verify(dataset, jobs=2)
    assert report.faults
    assert {fault.shard for fault in report.faults} == {where[0]}
    assert {fault.record for fault in report.faults} == {where[1]}
    assert any(what in fault.what for fault in report.faults), report
    if name != "an original file that is no text":
        assert {fault.source for fault in report.faults} == {where[2]}
    others = [fault for fault in report.faults if what not in fault.what]
    repeats = ("columns/", "restart index") if name == "a JPEG that is cut off" else ("columns/",)
    assert all(any(word in fault.what for word in repeats) for fault in others), (
        "no faults except this one and its copies"
    )


def test_only_deep_finds_an_image_that_cannot_be_decoded(dataset: Path) -> None:
    """All checksums are valid: the image was damaged before packing, or packed by another tool."""

    def cut_out(part: Part) -> Part:
        data = bytes(part.data)
        middle = len(data) // 2
        return part._replace(data=data[:middle] + bytes(300) + data[middle + 300 :])

    where = place(dataset, 21)
    change_parts(dataset, 21, replace_part(0, DATA, cut_out))
    shallow = verify(dataset)
    assert all("restart index" in fault.what for fault in shallow.faults), (
        "the header alone does not show it"
    )
    report = verify(dataset, deep=True, jobs=2)
    decoded = [fault for fault in report.faults if "restart index" not in fault.what]
    assert [(fault.shard, fault.record, fault.source) for fault in decoded] == [where]
    assert "orrupt" in decoded[0].what  # libjpeg's text; other readers ignore this warning


# Columns.


def put_column(
    path: Path, name: str, rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
) -> None:
    change_column(path, name, lambda _: rows)


def test_a_column_that_differs_from_the_records(dataset: Path) -> None:
    label = int(open_dataset(dataset).column("label")[17])
    other = (label + 1) % 3

    def wrong(rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        rows[17] = other

    change_column(dataset, "label", wrong)
    fault = only_fault(dataset)
    assert (fault.shard, fault.record, fault.source) == place(dataset, 17)
    names = ("cat", "dog", "emu")
    assert fault.what == (
        f"columns/label.npy, row 17: {other} ({names[other]}), "
        f"but the record has {label} ({names[label]})"
    )


@pytest.mark.parametrize("name", ["image.width", "image.height"])
def test_an_image_size_in_a_column(dataset: Path, name: str) -> None:
    def wrong(rows: np.ndarray[tuple[int], np.dtype[np.uint16]]) -> None:
        rows[2] += 1

    change_column(dataset, name, wrong)
    fault = only_fault(dataset)
    assert (fault.shard, fault.record, fault.source) == place(dataset, 2)
    assert f"columns/{name}.npy" in fault.what


def test_damaged_and_missing_columns_do_not_stop_other_checks(dataset: Path) -> None:
    flip(dataset / "columns/label.npy", 200)
    (dataset / "columns/image.width.npy").unlink()
    report = verify(dataset)
    assert [(fault.shard, fault.record) for fault in report.faults] == [
        ("columns/image.width.npy", None),
        ("columns/label.npy", None),
    ]
    assert "No such file" in report.faults[0].what
    assert report.faults[1].what.startswith("checksum 0x")
    assert "fastload verify" not in str(report), "advice to run this very command"
    assert report.n_checked == 40


def test_wrong_blocks_are_reported(dataset: Path) -> None:
    def gap(rows: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> None:
        rows[1, 0] += 1

    def empty(rows: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> None:
        rows[0] = (0, 0)

    good = open_dataset(dataset).column("_blocks").copy()
    cases: list[tuple[Callable[..., object], str]] = [
        (gap, "1 of"),
        (lambda rows: np.concatenate(([[0, 0]], rows)), "block 0: 0 samples"),
        (empty, "at least 1, starting at sample 0"),
        (lambda rows: rows[:-1], "samples, expected 40"),
        (lambda rows: np.array([[0, 40]]), "contains the start of shard-00001.lmdb"),
    ]
    for change, what in cases:
        change_column(dataset, "_blocks", change)
        fault = only_fault(dataset)
        assert (fault.shard, fault.record) == ("columns/_blocks.npy", None)
        assert what in fault.what
        put_column(dataset, "_blocks", good)
    assert verify(dataset).ok


@pytest.mark.parametrize("piece", [1 << 20, 16])
def test_the_source_index_is_a_permutation(
    dataset: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_ROWS", piece)
    monkeypatch.setattr(columns, "_POSITIONS", piece)
    good = open_dataset(dataset).column("_source_index").copy()
    for row, value, what in (
        (30, good[4], f"The first is sample 30 at position {good[4]}"),
        (
            6,
            40,
            "1 source positions are out of range. The first is 40 of sample 6, expected 0 to 39",
        ),
        (
            6,
            -1,
            "1 source positions are out of range. The first is -1 of sample 6, expected 0 to 39",
        ),
    ):
        changed = good.copy()
        changed[row] = value
        put_column(dataset, "_source_index", changed)
        fault = only_fault(dataset)
        assert (fault.shard, fault.record) == ("columns/_source_index.npy", None)
        assert what in fault.what
        assert fault.what.startswith("1 s")  # exactly one sample or position
    put_column(dataset, "_source_index", good)
    assert verify(dataset).ok


# Other kinds of fields.

FIELDS = (
    Field("image", "image"),
    Field("mask", "mask"),
    Field("boxes", "boxes"),
    Field("lanes", "points", list=True),
    Field("camera", "matrix"),
    Field("weight", "float"),
    Field("name", "str"),
    Field("more", "json"),
    Field("cameras", "image", list=True),
)


@pytest.fixture
def many_kinds(tmp_path: Path) -> Path:
    samples = [
        {
            "image": Encoded(photo(64, 48, seed=i), "a"),
            "mask": np.full((48, 64), i, np.uint8),
            "boxes": [[1, 2, 30, 40]],
            "lanes": [[[0, 0], [5, 5]], [[9, 9, 1]]],
            "camera": np.eye(3),
            "weight": 0.5 * i if i else None,
            "name": f"n{i}",
            "more": {"a": i},
            "cameras": [np.full((20, 30, 3), c, np.uint8) for c in range(3)],
        }
        for i in range(6)
    ]
    return pack_samples(tmp_path / "many", FIELDS, samples)


KIND_FAULTS: dict[str, tuple[int, bytes, str]] = {
    "mask": (1, b"not deflated", "deflated pixels"),
    "boxes": (2, encode_array(np.zeros((2, 5), np.float32)), "expected float32 of (n, 4)"),
    "lanes": (
        3,
        encode_array(np.zeros((2, 2), np.float64)),
        "item 0: float64 of (2, 2), expected float32 of (n, 2 or 3)",
    ),
    "camera": (4, encode_array(np.zeros(3, np.float64)), "expected float64 of (rows, columns)"),
    "weight": (5, bytes(9), "9 bytes"),
    "name": (6, b"\xff\xfe", "not UTF-8"),
    "more": (7, b'{"a": NaN}', "JSON"),
    "cameras": (8, bytes(20), "item 0: "),
}


@pytest.mark.parametrize("name", KIND_FAULTS)
def test_damage_is_found_in_every_field_kind(many_kinds: Path, name: str) -> None:
    number, data, what = KIND_FAULTS[name]
    assert verify(many_kinds, deep=True).ok

    def damage(parts: Parts) -> Parts:
        return [
            part._replace(data=data)
            if part.field == number and part.item == 0 and part.role == DATA
            else part
            for part in parts
        ]

    change_parts(many_kinds, 3, damage)
    assert verify(many_kinds).ok == (name == "mask"), (
        "only deep inspects the deflated bytes of a mask"
    )
    fault = only_fault(many_kinds, deep=True)
    assert (fault.shard, fault.record, fault.source) == ("shard-00000.lmdb", 3, "samples/003")
    assert f"field '{name}'" in fault.what
    assert what in fault.what


def test_a_missing_value_must_also_be_missing_in_the_column(many_kinds: Path) -> None:
    change_parts(many_kinds, 2, lambda parts: [part for part in parts if part.field != 5])
    fault = only_fault(many_kinds)
    assert fault.what == "columns/weight.npy, row 2: 1.0, but the record has no value"


def test_all_images_of_a_list_are_decoded(many_kinds: Path) -> None:
    report: VerifyReport = verify(many_kinds, deep=True)
    assert report.n_decoded == 6 * (1 + 1 + 3)  # image, mask, three cameras
    change_parts(
        many_kinds,
        1,
        lambda parts: [
            part._replace(codec=JPEG) if (part.field, part.item) == (8, 2) else part
            for part in parts
        ],
    )
    fault = only_fault(many_kinds, deep=True)
    assert "field 'cameras': item 2: not a JPEG" in fault.what


def test_a_png_that_contradicts_the_part_table(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (150, 160, 3), dtype=np.uint8)).save(
        file, "PNG"
    )
    path = pack_samples(
        tmp_path / "png",
        (Field("image", "image"),),
        [{"image": Encoded(file.getvalue(), "a.png")}] * 3,
    )
    assert verify(path, deep=True).ok
    good = value_of(path, 1)
    for place, byte, deep, what in (
        (19, 1, False, "a PNG of 1x150"),
        (1, 0, False, "expected a PNG file"),
        (30_000, 0, True, "PNG: "),
    ):

        def damage(parts: Parts, place: int = place, byte: int = byte) -> Parts:
            data = bytearray(parts[0].data)
            data[place] = byte if data[place] != byte else byte + 1
            return [parts[0]._replace(data=bytes(data)), *parts[1:]]

        change_parts(path, 1, damage)
        assert verify(path).ok == deep, "only decoding shows this fault"
        assert what in verify(path, deep=deep).faults[0].what
        put_value(path, 1, good)
    assert verify(path, deep=True).ok
