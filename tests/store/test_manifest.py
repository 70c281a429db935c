"""``manifest.json``: dump and parse are inverse and deterministic; parse rejects all else."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload._store.fields import Field
from fastload._store.manifest import (
    MAX_BYTES,
    Column,
    Manifest,
    Shard,
    dump,
    expected_columns,
    parse,
    seal,
)
from fastload._store.properties import Properties
from fastload._store.record import HEADER
from fastload.errors import ConfigError, CorruptManifest

FIELDS = (
    Field("image", "image"),
    Field("label", "int", classes=("crane", "crane", 'a "b" \\', "ü")),
    Field("boxes", "boxes", image="image"),
    Field("cameras", "image", list=True),
    Field("score", "float"),
)


def example(*, n_shards: int = 3, fields: tuple[Field, ...] = FIELDS, **changes: Any) -> Manifest:
    n_samples = 10 * n_shards
    columns = [
        Column(
            name,
            dtype,
            (2 * n_shards, 2) if name == "_blocks" else (n_samples,),
            128 + int(dtype[2]) * (4 * n_shards if name == "_blocks" else n_samples),
            "0123abcd",
        )
        for name, dtype in expected_columns(fields).items()
    ]
    shards = [
        Shard(f"shard-{i:05d}.lmdb", 16384, 10, 10 * i, 7, 4096, "01" * 4, "ab" * 32, "cd" * 32)
        for i in range(n_shards)
    ]
    return dataclasses.replace(
        Manifest(
            n_samples=n_samples,
            fields=fields,
            properties=tuple(Properties() for _ in fields),
            shards=tuple(shards),
            columns=tuple(columns),
            content="cd" * 32,
            tool="fastload 0.1.0",
            seed=7,
            converted={"cmyk": 2},
            skipped=1,
            options={"encode": "keep", "deep": [1, 2.5, None, {"a": True}]},
        ),
        **changes,
    )


def tree() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dump(example()))
    del found["crc32c"]
    return found


def sealed(found: dict[str, Any]) -> bytes:
    return seal(json.dumps(found)[1:-1].encode())


def test_a_manifest_round_trips() -> None:
    written = dump(example())
    assert parse(written) == example()
    assert dump(parse(written)) == written
    assert parse(sealed(tree())) == example(), (
        "another spelling of the same JSON, rightly sealed, is as good"
    )


def test_an_empty_dataset_is_valid() -> None:
    assert parse(dump(example(n_shards=0))).n_samples == 0


def test_the_text_has_one_line_per_shard() -> None:
    lines = dump(example()).decode().splitlines()
    assert lines[1] == ' "format": "fastload",'
    assert sum("shard-0000" in line for line in lines) == 3
    assert re.fullmatch(r' "crc32c": "[0-9a-f]{8}"', lines[-2])


def test_every_flipped_bit_is_detected() -> None:
    written = dump(example())
    for place in range(len(written)):
        for bit in range(8):
            damaged = bytearray(written)
            damaged[place] ^= 1 << bit
            with pytest.raises(CorruptManifest):
                parse(bytes(damaged))
    assert parse(written) == example()


def test_every_truncation_is_detected() -> None:
    written = dump(example())
    for end in range(len(written)):
        with pytest.raises(CorruptManifest):
            parse(written[:end])


@pytest.mark.parametrize(
    ("version", "advice"), [(4, "install a newer fastload"), (2, "pack the dataset again")]
)
def test_another_version_is_rejected_with_advice(version: int, advice: str) -> None:
    with pytest.raises(
        CorruptManifest, match=f"format version {version}, this fastload reads version 3: {advice}"
    ):
        parse(sealed({**tree(), "version": version}))


def test_a_manual_edit_is_reported_as_one() -> None:
    with pytest.raises(CorruptManifest, match="edited by hand"):
        parse(dump(example()).replace(b"crane", b"Crane"))


def test_too_many_bytes_are_rejected_before_parsing() -> None:
    with pytest.raises(CorruptManifest, match=f"at most {MAX_BYTES}"):
        parse(bytes(MAX_BYTES + 1))


REMOVE = object()


def changed(path: str, value: Any) -> bytes:
    """Changes or removes one value at a path like shards.1.size and updates the checksum."""
    found = tree()
    *parents, last = path.split(".")
    place: Any = found
    for step in parents:
        place = place[int(step) if isinstance(place, list) else step]
    if value is REMOVE:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return sealed(found)


ROWS = tree()
PATHS = [
    *ROWS,
    *(f"{key}.0.{inner}" for key in ("fields", "shards", "columns") for inner in ROWS[key][0]),
]


@pytest.mark.parametrize("path", [path for path in PATHS if path not in ("options", "converted")])
def test_every_value_is_required_and_typed(path: str) -> None:
    for wrong in (REMOVE, None, True, -1, 1.5, "x" * 2000, "\ud800", [], {}, [None], {"a": []}):
        with pytest.raises(CorruptManifest):
            parse(changed(path, wrong))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("new", 1),
        ("shards.0.new", 1),
        ("fields.0.new", 1),
        ("columns.0.new", 1),
        ("options", []),
        ("converted", {"a": -1}),
        ("converted", {"a": True}),
        ("format", "Fastload"),
        ("version", True),
        ("version", 2.0),
        ("order", "random"),
        ("seed", 1 << 64),
        ("n_samples", 29),
        ("n_samples", 10**18),
        ("n_samples", 30.0),
        ("shards.1.first", 11),
        ("shards.1.first", 9),
        ("shards.2.records", 0),
        ("shards.1.name", "shard-00000.lmdb"),
        ("shards.1.size", 1 << 47),
        ("shards.1.blake3", "AB" * 32),
        ("shards.1.stamp", "ab"),
        ("content", "ab"),
        ("fields.0.name", "Image"),
        ("fields.0.name", "source"),
        ("fields.0.name", "label"),
        ("fields.0.kind", "pickle"),
        ("fields.2.image", "label"),
        ("fields.2.image", "nothing"),
        ("fields.0.classes", ["a"]),
        ("fields.1.classes", [1]),
        ("fields.1.classes", ["\0"]),
        ("columns.1.dtype", "|O"),
        ("columns.1.dtype", ">i8"),
        ("columns.1.shape", [29]),
        ("columns.1.shape", [30, 1]),
        ("columns.0.shape", [6, 3]),
        ("columns.0.shape", []),
        ("columns.1.size", 1),
        ("columns.1.crc32c", 5),
        ("columns.1.name", "../../etc/passwd"),
        ("columns.1.name", "_blocks"),
        ("columns.1.folder", "../columns"),
        ("columns.1.folder", "columns-0"),
        ("columns.1.folder", "columns-1/.."),
    ],
)
def test_inconsistent_values_are_rejected(path: str, value: Any) -> None:
    with pytest.raises(CorruptManifest):
        parse(changed(path, value))
    assert parse(dump(example())) == example()


def test_records_are_bounded_by_the_size_of_their_shard() -> None:
    """All other numbers agree. A reader reserves memory for the number of records."""
    most = 16384 // HEADER.size

    def with_records(last: int) -> bytes:
        found = tree()
        found["shards"][2]["records"] = last
        found["n_samples"] = n = 20 + last
        for column in found["columns"]:
            if column["name"] != "_blocks":
                column["size"] += (n - 30) * int(column["dtype"][2])
                column["shape"] = [n]
        return sealed(found)

    assert parse(with_records(most)).n_samples == 20 + most
    for too_many in (most + 1, 1 << 38):
        with pytest.raises(CorruptManifest, match=rf"records.*0 to {most}"):
            parse(with_records(too_many))


@settings(max_examples=300)
@given(
    st.binary(max_size=300)
    | st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace"))
)
def test_random_bytes_raise_only_corrupt_manifest(rubbish: bytes) -> None:
    for data in (rubbish, seal(rubbish)):
        with pytest.raises(CorruptManifest):
            parse(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=300)
@given(st.sampled_from(PATHS), json_values)
def test_any_json_value_is_accepted_or_rejected(path: str, value: Any) -> None:
    try:
        found = parse(changed(path, value))
    except CorruptManifest:
        return
    assert parse(dump(found)) == found


@pytest.mark.parametrize(
    "wrong",
    [
        {"options": {"a": float("nan")}},
        {"options": {1: 2}},
        {"options": {"a": object()}},
        {"seed": -1},
        {"content": ""},
        {"order": "x"},
        {"n_samples": 1},
        {"tool": "\ud800"},
    ],
)
def test_dump_rejects_what_parse_rejects(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"writing manifest\.json"):
        dump(example(**wrong))


def test_ten_million_samples_are_read_in_bounded_memory() -> None:
    import tracemalloc

    shards = tuple(
        Shard(
            f"shard-{i:05d}.lmdb",
            512 << 20,
            4546,
            4546 * i,
            4546 * i,
            1 << 17,
            "0" * 8,
            f"{i:064x}",
            "ef" * 32,
        )
        for i in range(2200)
    )
    n_samples = 4546 * 2200
    fields = (
        Field("image", "image"),
        Field("label", "int", classes=tuple(f"class {i}" for i in range(1000))),
    )
    columns = tuple(
        Column(
            name,
            dtype,
            (131_000, 2) if name == "_blocks" else (n_samples,),
            128 + int(dtype[2]) * (262_000 if name == "_blocks" else n_samples),
            "0" * 8,
        )
        for name, dtype in expected_columns(fields).items()
    )
    written = dump(
        Manifest(
            n_samples=n_samples,
            fields=fields,
            properties=tuple(Properties() for _ in fields),
            shards=shards,
            columns=columns,
            content="0" * 64,
        )
    )
    tracemalloc.start()
    found = parse(written)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.shards == shards
    assert peak < 15e6
