"""Fuzz targets of the files of a dataset: manifest, records, tree, columns, JPEG, saved state."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastload._common.checksum import crc32c
from fastload._common.native import core
from fastload._load.loader import DataLoader
from fastload._store import columns, manifest
from fastload._store.columns import npy_header
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field, encode_value
from fastload._store.jpeg_header import (
    JpegHeader,
    check_limits,
    check_scans,
    parse_markers,
    read_header,
)
from fastload._store.lmdb_tree import TreeFile, TreePages, unfinished_records
from fastload._store.manifest import Column
from fastload._store.record import (
    CRC_FROM,
    HEADER,
    JPEG,
    PNG,
    RESTART_INDEX,
    ROW,
    SOURCE_FIELD,
    Part,
    encode_record,
    is_intact,
)
from fastload._store.verify.record import RecordChecker
from fastload.errors import BadImage, FastloadError
from tests.fault.trials import make_dataset
from tests.fuzz.mutations import mutate_json
from tests.fuzz.target import Target, folder, keep
from tests.jpeg_samples import (
    SAMPLINGS,
    encode,
    encode_by_pillow,
    one_scan_per_component,
    replace_frame,
    sample_image,
)
from tests.small_dataset import simple_samples, write_dataset
from tests.store.test_dataset import ALL


@cache
def _dataset() -> Path:
    make_dataset(folder() / "dataset", n_samples=6)
    return folder() / "dataset"


def _parse_manifest(data: bytes) -> None:
    """Parses the text, which may lack the seal: an attacker can compute it."""
    place = folder() / "manifest"
    place.mkdir(exist_ok=True)
    for text in (data, manifest.seal(data.strip()[1:-1])):
        (place / manifest.NAME).write_bytes(text)
        with contextlib.suppress(FastloadError):
            manifest.read_manifest(place)


def _manifests() -> list[bytes]:
    data = (_dataset() / manifest.NAME).read_bytes()
    loaded = json.loads(data)
    del loaded["crc32c"]
    small = {**loaded, "fields": loaded["fields"][:1], "shards": loaded["shards"][:1]}
    changed = {
        "format": "x",
        "version": 2,
        "order": "x",
        "converted": {"cmyk": 2},
        "n_samples": 5,
        "shards": loaded["shards"][:1] * 2,
        "fields": loaded["fields"][:1] * 2,
        "columns": loaded["columns"][1:],
    }
    variants = [{**loaded, key: value} for key, value in changed.items()]
    return [data, *(json.dumps(each).encode() for each in (loaded, small, *variants))]


RECORD_FIELDS = (*ALL, Field("along", "int", list=True), Field("rows", "array", along="boxes"))


@cache
def _checker() -> RecordChecker:
    dataset = open_dataset(_dataset())
    found = {each.name: dataset.column(each.name) for each in dataset.manifest.columns}
    return RecordChecker(RECORD_FIELDS, found, deep=True)


def _check_record(data: bytes) -> None:
    """Checks the bytes as a record, also with the checksum, length and offsets that it expects."""
    checker = _checker()
    for value in (data, resealed(data), resealed(_with_offsets(data))):
        key = HEADER.unpack_from(value)[6] if len(value) >= HEADER.size else 0
        checker.check(0, key, memoryview(value))
        checker.check(0, 1, memoryview(value))
        is_intact(memoryview(value))


def resealed(data: bytes) -> bytes:
    """Returns a record with the correct length and checksum."""
    if len(data) < HEADER.size:
        return data
    fixed = bytearray(data)
    fixed[12:16] = len(fixed).to_bytes(4, "little")
    fixed[4:8] = crc32c(bytes(fixed[CRC_FROM:])).to_bytes(4, "little")
    return bytes(fixed)


def _with_offsets(data: bytes) -> bytes:
    """Returns a record whose parts follow each other and end with it, if their lengths permit."""
    fixed = bytearray(data)
    n_parts = HEADER.unpack_from(fixed)[4] if len(fixed) >= HEADER.size else 0
    end = HEADER.size + ROW.size * n_parts
    for i in range(min(n_parts, (len(fixed) - HEADER.size) // ROW.size)):
        row = HEADER.size + ROW.size * i
        place = end + (-end & 7)
        length = int.from_bytes(fixed[row + 12 : row + 16], "little")
        if i == n_parts - 1:
            length = max(0, len(fixed) - place)
        struct.pack_into("<II", fixed, row + 8, place & 0xFFFFFFFF, length)
        fixed[end:place] = bytes(place - end) if end < len(fixed) else b""
        end = place + length
    return bytes(fixed)


def _records() -> list[bytes]:
    dataset = open_dataset(_dataset())
    stored = [bytes(dataset.reader(i).get(i)) for i in range(len(dataset))]
    pixels = sample_image(20, 12)
    jpeg = encode(pixels, "420")
    size: dict[str, Any] = {"width": 20, "height": 12, "bits": 8, "orientation": 6}
    parts = [
        Part(0, jpeg, 0, JPEG, channels=3, **size),
        Part(1, _png(pixels[:, :, 0]), 0, PNG, channels=1, **size),
        Part(11, jpeg, 0, JPEG, channels=3, **size),
        Part(11, _png(pixels), 1, PNG, channels=3, **size),
        Part(11, _png(pixels[:, :, 0] > 99), 2, PNG, channels=1, **{**size, "orientation": 3}),
        Part(
            11, _png(pixels[:, :, 0] * np.uint16(257)), 4, PNG, channels=1, **{**size, "bits": 16}
        ),
        Part(SOURCE_FIELD, b"a.jpg"),
    ]
    text = b"\xff"
    wrong = [Part(n, text) for n in range(len(RECORD_FIELDS) + 1)]
    wrong += [Part(8, text, 1), Part(13, text, 2, role=RESTART_INDEX), Part(SOURCE_FIELD, text)]
    made = [encode_record(7, parts), encode_record(8, wrong), encode_record(0, [])]
    module = core()
    if module is not None:
        packed = module.rewrite(jpeg, restart=1)
        image = Part(0, packed.jpeg, 0, JPEG, channels=3, interval=packed.interval, **size)
        index = Part(0, packed.index_bytes, 0, role=RESTART_INDEX)
        made.append(encode_record(9, [image, index]))
    boxes = encode_value(2, RECORD_FIELDS[2], np.zeros((2, 4), np.float32))
    rows = encode_value(15, RECORD_FIELDS[15], np.arange(3))
    return [*stored, *made, encode_record(10, [*boxes, *rows])]


def _png(pixels: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def _read_tree(data: bytes) -> None:
    """Reads all records; both readers must return the same bytes or the same reason."""
    module = core()
    descriptor = os.memfd_create("tree")
    try:
        os.write(descriptor, data)
        found = _outcomes(TreeFile, descriptor, len(data))
        if module is not None:
            assert found == _outcomes(module.ShardFile, descriptor, len(data))
        for first_key in (0, 100):
            for _, size in unfinished_records(descriptor, first_key):
                assert size > 0
    finally:
        os.close(descriptor)


def _outcomes(opener: Callable[[int, int], Any], descriptor: int, size: int) -> list[str | bytes]:
    try:
        opened = opener(descriptor, size)
    except RuntimeError as error:
        return [str(error)]
    found: list[str | bytes] = []
    for key in (*range(0, 310, 9), 1 << 40):
        try:
            found.append(opened.read(key))
        except KeyError as error:
            found.append(str(error.args[0]))
    return found


def _trees() -> list[bytes]:
    return [
        *(path.read_bytes() for path in sorted(_dataset().glob("*.lmdb"))),
        _tree({i: b"%d" % i for i in range(300)}),  # two leaves below a branch page
        _tree({0: bytes(5000), 9: b"1", 18: bytes(3000)}),  # overflow pages
    ]


def _tree(values: dict[int, bytes]) -> bytes:
    pages: list[bytes] = []
    tree = TreePages(lambda data: pages.append(bytes(data)))
    for key, value in values.items():
        tree.add(key, value)
    tree.end_records()
    tree.end()
    return tree.meta() + b"".join(pages)


def _read_column(data: bytes) -> None:
    """Opens the bytes as columns with the sizes and checksums that they have."""
    place = folder() / "column"
    (place / "columns").mkdir(parents=True, exist_ok=True)
    (place / "columns" / "x.npy").write_bytes(data)
    room = max(0, len(data) - manifest.COLUMN_HEADER)
    for dtype, width in (("<i8", 1), ("<u2", 1), ("<i8", 2)):
        rows = room // (np.dtype(dtype).itemsize * width)
        shape = (rows,) if width == 1 else (rows, width)
        checksum = f"{crc32c(data):08x}"
        for name, size, crc in (
            ("x", len(data), checksum),
            ("x", len(data) + 1, checksum),
            ("x", len(data), "00000000"),
            ("y", len(data), checksum),
        ):
            with contextlib.suppress(FastloadError):
                columns.open_column(place, Column(name, dtype, shape, size, crc))
    with contextlib.suppress(FastloadError):
        columns.open_column(place / "columns", Column("x", "<i8", (0,), 0, "", folder="x.npy"))


def _columns() -> list[bytes]:
    stored = [path.read_bytes() for path in sorted((_dataset() / "columns").iterdir())]
    return [*stored, npy_header("<i8", (0,)), b""]


def _read_jpeg_header(data: bytes) -> None:
    """Reads the header with and without the native core, which must agree."""
    results: list[JpegHeader | str] = []
    for read in (read_header, parse_markers):
        try:
            results.append(read(memoryview(data)))
        except BadImage as error:
            results.append(error.why)
    assert results[0] == results[1], results
    if isinstance(results[0], JpegHeader):
        header = results[0]
        with contextlib.suppress(BadImage):
            check_limits(header, len(data))
        with contextlib.suppress(BadImage):
            check_scans(data, header)
        assert header.subsampling
        assert header.coding
        assert header.progressive + header.arithmetic < 3


def jpegs() -> list[bytes]:
    """Returns small JPEGs of every kind, also of kinds that are refused."""
    found = [
        encode(sample_image(side, side, side), sampling)
        for side in (1, 2, 7, 8, 9, 16)
        for sampling in SAMPLINGS
    ]
    found += [encode(sample_image(33, 18), sampling) for sampling in SAMPLINGS]
    for side in (1, 8, 16, 24):
        pixels = sample_image(side, side, side)
        for sampling in ("444", "420", "gray"):
            found.append(encode_by_pillow(pixels, sampling, progressive=True))
            found.append(encode_by_pillow(pixels, sampling, restart_marker_blocks=1))
            found.append(encode_by_pillow(pixels, sampling, optimize=True, restart_marker_rows=1))
    exif = Image.Exif()
    exif[0x0112] = 6
    found.append(encode_by_pillow(sample_image(9, 5), "444", exif=exif))
    cmyk = io.BytesIO()
    Image.new("CMYK", (9, 5), (1, 2, 3, 4)).save(cmyk, "JPEG")
    found.append(cmyk.getvalue())
    plain = encode(sample_image(16, 16), "420")
    frame = bytes.fromhex("080010001003012200021101031101")
    assert frame in plain
    for name in (0xC1, 0xC3, 0xC9, 0xCA):  # extended, lossless, arithmetic
        found.append(replace_frame(plain, name))
    for body in (
        b"\x0c" + frame[1:],  # 12 bits
        frame[:1] + bytes(4) + frame[5:],  # no pixels
        frame[:1] + b"\xff" * 4 + frame[5:],  # too many pixels
        frame[:5] + b"\x05" + frame[6:],  # five components
    ):
        found.append(replace_frame(plain, body=body))
    scans = one_scan_per_component(16)
    return [*found, scans, scans[: scans.rindex(b"\xff\xda")] + b"\xff\xd9"]


@cache
def _loaders() -> tuple[DataLoader, ...]:
    path = folder() / "labels"
    write_dataset(path, simple_samples(6))
    sampler = list(range(6))
    options: list[dict[str, Any]] = [{"shuffle": True}, {"sampler": sampler}]
    return tuple(keep(DataLoader(path, 2, fields=("id",), **each)) for each in options)


def _load_state(data: bytes) -> None:
    """Loads the state with two kinds of loader; a loaded state can be saved again."""
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        return
    for loader in _loaders():
        with contextlib.suppress(FastloadError):
            loader.load_state_dict(state)
            loader.state_dict()


def _states() -> list[bytes]:
    states = []
    for loader in _loaders():
        states.append(loader.state_dict())
        for batch in itertools.islice(loader, 2):
            assert len(batch["id"])
            states.append(loader.state_dict())
        states.append({**states[-1], "batch_size": 3})
    runs = [[1, 2, "short", 1], [2, 1, "drop", 0], [1, 1, "short", 0]]
    return [json.dumps(state).encode() for state in (*states, {**states[0], "runs": runs})]


_STORE = "fastload._store."
TARGETS = {
    "manifest": Target(
        _parse_manifest,
        _manifests,
        (f"{_STORE}manifest", f"{_STORE}properties", "fastload._common.strict_json"),
        (
            *(
                "dump*",
                "_lines",
                "*_json",
                "*.as_json",
                "stamp_page",
                "_check_value",
                "_read_error",
            ),
            *("Shard.key", "Column.file", "Properties.[!f]*", "PropertyCounter", "_shape_of"),
        ),
        mutate_json,
    ),
    "record": Target(
        _check_record,
        _records,
        (f"{_STORE}record", f"{_STORE}kinds", f"{_STORE}pixels", f"{_STORE}verify.record"),
        (
            *(
                "encode_*",
                "*.encode",
                "part_offsets",
                "_row",
                "_key",
                "_check_parts",
                "_pixel_part",
            ),
            *("*.__*__", "*.fitted", "describe_value", "_wrong_type", "kind_named"),
            *("FieldKind.in_column", "FieldKind.is_missing", "FieldKind.decode"),
        ),
    ),
    "tree": Target(_read_tree, _trees, (f"{_STORE}lmdb_tree",), ("TreePages", "_child")),
    "column": Target(_read_column, _columns, (f"{_STORE}columns",), ("ColumnWriter",)),
    "jpeg-header": Target(_read_jpeg_header, jpegs, (f"{_STORE}jpeg_header",)),
    "state": Target(
        _load_state,
        _states,
        (
            "fastload._order.saved_state",
            "fastload._order.rank_order:RankOrder.load",
            "fastload._order.rank_order:_replayed",
            "fastload._order.rank_order:_checked_runs",
            "fastload._order.sampler_order:SamplerOrder.load",
        ),
        ("shortened",),
        mutate_json,
    ),
}
