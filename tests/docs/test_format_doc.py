"""docs/FORMAT.md is complete: a reader written from it alone finds the same values."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fastload._common import strict_json
from fastload._store import kinds, manifest, properties, record
from fastload._store.columns import npy_header
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload._store.jpeg_header import MAX_PIXELS, MAX_PIXELS_PER_BYTE, MAX_SIDE
from fastload._store.kinds import KINDS
from tests.small_dataset import jpeg, parts_of, same, write_dataset
from tests.store.test_dataset import ALL, full_sample

DOC = Path(__file__).parents[2] / "docs" / "FORMAT.md"
READER = Path(__file__).parent / "format_reader.py"


def read(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(READER), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )


def as_printed(kind: str, stored: record.Part, decoded: Any) -> Any:
    """What the independent reader prints for a value that fastload decoded."""
    if isinstance(decoded, np.ndarray) and kind not in ("image", "mask"):
        return [list(decoded.shape), decoded.ravel().tolist()]
    if kind in ("image", "mask"):
        shape = [stored.width, stored.height, stored.channels, stored.bits, stored.orientation]
        return [
            *shape,
            (bytes(stored.data) if stored.codec == record.JPEG else decoded.tobytes()).hex(),
        ]
    return decoded.hex() if kind == "bytes" else decoded


def test_an_independent_reader_finds_the_same_values(tmp_path: Path) -> None:
    samples = [full_sample(i) for i in range(9)]
    samples.append(dict.fromkeys(samples[0]))
    samples.append({**samples[3], "image": jpeg(40, 30)})
    write_dataset(tmp_path, samples, fields=ALL, per_shard=4)
    done = read(tmp_path)
    assert done.stderr == ""
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    columns, found = lines[:-11], lines[-11:]
    ds = open_dataset(tmp_path)
    for name, shape, rows in columns:
        assert np.array_equal(np.array(rows).reshape(shape), ds.column(name), equal_nan=True), name
    assert [name for name, _, _ in columns] == [*manifest.expected_columns(ALL)]
    assert len(ds) == 11
    for i in range(11):
        assert found[i].pop("source") == ds.source(i)
        sample = ds[i]
        for number, field in enumerate(ALL):
            parts = [part for part in ds.parts(i) if part.field == number]
            decoded = sample[field.name] if field.list else [sample[field.name]] if parts else []
            printed = [
                as_printed(field.kind.name, part, each)
                for part, each in zip(parts, decoded, strict=True)
            ]
            expected = printed if field.list else printed[0] if printed else None
            got = found[i][field.name]
            if field.kind.name == "bytes" and got is not None:
                got = got[-1]
            assert got == expected, (i, field.name)
    assert same(ds[3], samples[3]), "both equal what was packed"


def test_the_reader_is_short_and_independent_of_fastload() -> None:
    source = READER.read_text()
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    assert len(statements) <= 60
    imported = {
        name.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import)
        for name in node.names
    }
    imported |= {
        str(node.module) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)
    }
    assert imported == {
        "blake3",
        "json",
        "struct",
        "sys",
        "zlib",
        "google_crc32c",
        "lmdb",
        "pathlib",
        "typing",
    }


def test_the_reader_detects_damage(tmp_path: Path) -> None:
    write_dataset(tmp_path, [full_sample(3)], fields=ALL)
    shard = tmp_path / "shard-00000.lmdb"
    data = bytearray(shard.read_bytes())
    data[data.index("nº 3".encode())] ^= 1
    shard.write_bytes(data)
    done = read(tmp_path)
    assert done.returncode == 1
    assert "AssertionError" in done.stderr


def test_the_example_record_is_correct() -> None:
    found = re.search(r"```hex\n(.*?)```", DOC.read_text(), re.DOTALL)
    assert found
    example = bytes.fromhex(found[1])
    fields = (Field("number", "int"), Field("text", "str"))
    assert example == record.encode_record(
        7, parts_of(fields, {"number": 5, "text": "é"}, "a/b.jpg")
    )


def test_every_name_and_limit_is_documented() -> None:
    text = DOC.read_text()
    for word in (
        *manifest._KEYS,
        *manifest._SHARD_KEYS,
        *properties._KEYS,
        *KINDS,
        *record.CODEC_NAMES,
        *manifest.ORDERS,
        manifest.SHARD_NAME.pattern,
    ):
        assert word in text, word
    for figure in (
        record.MAX_RECORD,
        record.MAX_PARTS,
        manifest.MAX_SHARDS,
        record.SOURCE_FIELD,
        manifest.COLUMN_HEADER,
        manifest.MAX_DEPTH,
        strict_json.MAX_DIGITS,
        kinds.MAX_JSON_DEPTH,
        kinds.MAX_DIMENSIONS,
        MAX_SIDE,
        MAX_PIXELS,
        MAX_PIXELS_PER_BYTE,
        manifest._SEAL_BYTES,
    ):
        assert f"{figure:,}" in text or str(figure) in text, figure
    for code, dtype in enumerate(kinds.DTYPES):
        assert f"{code} {dtype.kind}{8 * dtype.itemsize}" in text or (
            dtype.kind == "b" and f"{code} bool" in text
        )
    assert npy_header("<i8", (1000,))[10:].rstrip().decode() in text
    assert npy_header("<i8", (1000,))[:10] == b"\x93NUMPY\x01\x00\x76\x00"
