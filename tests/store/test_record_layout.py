"""``parse_record`` reads what ``encode_record`` writes and rejects all other bytes."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload._store.record import (
    ARRAY,
    HEADER,
    JPEG,
    MAX_PARTS,
    MAX_RECORD,
    PLAIN,
    RESTART_INDEX,
    ROW,
    SOURCE_FIELD,
    Part,
    encode_record,
    parse_record,
    salvage_source,
    shown_size,
)
from fastload.errors import ConfigError, RecordError

PARTS = [
    Part(
        0,
        b"\xff\xd8" + bytes(range(99)),
        0,
        JPEG,
        channels=3,
        bits=8,
        width=500,
        height=375,
        interval=4,
        orientation=6,
    ),
    Part(0, struct.pack("<3I", 2, 50, 101), 0, PLAIN, RESTART_INDEX),
    Part(1, b"\5" + bytes(7)),
    Part(SOURCE_FIELD, "train/cat/é.jpg".encode()),
]
NUMBER = 1 << 40


def record() -> bytearray:
    return bytearray(encode_record(NUMBER, PARTS))


def resealed(value: bytearray) -> memoryview:
    """Returns the record with a valid checksum, as from an attacker or a faulty writer."""
    value[4:8] = google_crc32c.value(bytes(value[8:])).to_bytes(4, "little")
    return memoryview(value)


def plain(parts: list[Part]) -> list[Part]:
    return [part._replace(data=bytes(part.data)) for part in parts]


def test_the_first_bytes_match_the_format() -> None:
    value = encode_record(7, [Part(1, b"abc"), Part(0, b"0123456789")])
    assert value == (
        b"FLR1"
        + google_crc32c.value(value[8:]).to_bytes(4, "little")
        + struct.pack("<BBHIQ", 1, 0, 2, 24 + 48 + 16 + 3, 7)
        + struct.pack("<HHBBBBIIHHHBB", 0, 0, 0, 0, 0, 0, 72, 10, 0, 0, 0, 0, 0)
        + struct.pack("<HHBBBBIIHHHBB", 1, 0, 0, 0, 0, 0, 88, 3, 0, 0, 0, 0, 0)
        + b"0123456789"
        + bytes(6)
        + b"abc"
    )


small = st.integers(0, 255)
one_part = st.builds(
    Part,
    field=st.integers(0, SOURCE_FIELD),
    data=st.binary(max_size=40),
    item=st.integers(0, 65535),
    codec=st.integers(0, ARRAY),
    role=st.integers(0, 1),
    channels=small,
    bits=small,
    width=st.integers(0, 65535),
    height=st.integers(0, 65535),
    interval=st.integers(0, 65535),
    orientation=st.integers(0, 8),
)


@given(
    st.integers(0, (1 << 63) - 1),
    st.lists(one_part, max_size=12, unique_by=lambda part: part[0:1] + part[2:3] + part[4:5]),
)
def test_every_record_round_trips(sample_id: int, parts: list[Part]) -> None:
    value = memoryview(encode_record(sample_id, parts))
    found = parse_record(value, sample_id)
    assert plain(found) == sorted(parts, key=lambda part: (part.field, part.item, part.role))
    assert all(
        isinstance(part.data, memoryview) and part.data.obj is value.obj for part in found
    ), "a part was copied"
    assert encode_record(sample_id, found) == value, "the encoding is not unique"


@settings(max_examples=300)
@given(st.data())
def test_any_flipped_bit_is_detected(data: st.DataObject) -> None:
    value = record()
    bit = data.draw(st.integers(0, 8 * len(value) - 1))
    value[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RecordError):
        parse_record(memoryview(value), NUMBER)


def test_header_and_table_bytes_are_checked_beyond_the_checksum() -> None:
    """Covers all bytes except the fields of a part that may have any value."""
    end = HEADER.size + ROW.size * len(PARTS)
    free = {
        HEADER.size + ROW.size * row + byte
        for row in range(len(PARTS))
        for byte in (0, 1, 2, 3, 6, 7, 16, 17, 18, 19, 20, 21)
    }
    for place in range(end):
        value = record()
        value[place] ^= 0x80
        if place not in range(4, 8) and place not in free:
            with pytest.raises(RecordError):
                parse_record(resealed(value), NUMBER)
    parse_record(memoryview(record()), NUMBER)


@settings(max_examples=500)
@given(st.binary(max_size=200), st.booleans(), st.integers(0, 3))
def test_random_bytes_raise_only_record_error(rubbish: bytes, framed: bool, n_parts: int) -> None:
    value = bytearray(rubbish)
    if framed:
        value[: HEADER.size] = HEADER.pack(
            b"FLR1", 0, 1, 0, n_parts, HEADER.size + max(0, len(rubbish) - HEADER.size), NUMBER
        )
        value = bytearray(resealed(value))
    try:
        found = parse_record(memoryview(value), NUMBER)
    except RecordError:
        return
    assert encode_record(NUMBER, found) == value


def _change(value: bytearray, offset: int, layout: str, *numbers: int) -> memoryview:
    struct.pack_into(layout, value, offset, *numbers)
    return resealed(value)


@pytest.mark.parametrize(
    ("why", "offset", "layout", "number"),
    [
        ("magic", 0, "<I", 0),
        ("version", 8, "<B", 2),
        ("sample id", 16, "<Q", NUMBER + 1),
        ("length", 12, "<I", 60),
        ("reserved", 9, "<B", 1),
        ("part table", 10, "<H", 900),
        ("parts", 10, "<H", MAX_PARTS + 1),
        ("offset of part 0", 24 + 8, "<I", 24 + 96 + 4),
        ("offset of part 1", 48 + 8, "<I", 24 + 96),
        ("end of part 3", 24 + 3 * 24 + 12, "<I", 1 << 31),
        ("end of part 0", 24 + 12, "<I", 0xFFFFFFF0),
        ("offset of part 1", 24 + 12, "<I", 8),
        ("end of the last part", 24 + 3 * 24 + 12, "<I", 1),
        ("field, item, role", 48 + 0, "<H", 9),
        ("codec", 24 + 4, "<B", 6),
        ("role", 24 + 5, "<B", 2),
        ("orientation", 24 + 22, "<B", 9),
        ("reserved", 24 + 23, "<B", 1),
    ],
)
def test_a_wrong_header_or_table_is_named(why: str, offset: int, layout: str, number: int) -> None:
    with pytest.raises(RecordError, match=why):
        parse_record(_change(record(), offset, layout, number), NUMBER)
    assert plain(parse_record(memoryview(record()), NUMBER)) == PARTS


def test_nonzero_padding_is_rejected() -> None:
    value = record()
    place = HEADER.size + ROW.size * len(PARTS) + len(PARTS[0].data)
    value[place] = 1
    with pytest.raises(RecordError, match="padding before part 1"):
        parse_record(resealed(value), NUMBER)


def test_checks_run_in_the_documented_order() -> None:
    """Errors are reported in the order magic, version, id, length, checksum."""
    value = record()
    struct.pack_into("<4sIBBHIQ", value, 0, b"XXXX", 1, 9, 9, 9, 9, 9)
    for offset, good, why in (
        (0, b"FLR1", "magic"),
        (8, b"\1", "version"),
        (16, NUMBER.to_bytes(8, "little"), "sample id"),
        (12, len(value).to_bytes(4, "little"), "length"),
        (None, b"", "checksum"),
    ):
        with pytest.raises(RecordError) as caught:
            parse_record(memoryview(value), NUMBER)
        assert why in caught.value.what
        if offset is not None:
            value[offset : offset + len(good)] = good


def test_limits_on_writing() -> None:
    with pytest.raises(ConfigError, match="at most 1024"):
        encode_record(0, [Part(0, b"", item) for item in range(MAX_PARTS + 1)])
    with pytest.raises(ConfigError, match=f"at most {MAX_RECORD}"):
        encode_record(
            0, [Part(0, memoryview(bytes(1 << 20)).cast("B"), item) for item in range(64)]
        )
    with pytest.raises(ConfigError, match="twice"):
        encode_record(0, [Part(3, b"a", 1), Part(3, b"b", 1)])
    for part in (
        Part(1 << 16, b""),
        Part(0, b"", width=1 << 16),
        Part(0, b"", 0, 6),
        Part(0, b"", orientation=9),
        Part(-1, b""),
    ):
        with pytest.raises(ConfigError):
            encode_record(0, [part])
    for number in (-1, 1 << 63):
        with pytest.raises(ConfigError, match="sample id"):
            encode_record(number, [])
    largest = encode_record(0, [Part(0, b"", item) for item in range(MAX_PARTS)])
    assert len(parse_record(memoryview(largest), 0)) == MAX_PARTS
    full = encode_record(0, [Part(0, bytes(MAX_RECORD - 48))])
    assert len(parse_record(memoryview(full), 0)[0].data) == MAX_RECORD - 48


def test_orientations_5_to_8_swap_the_sides() -> None:
    assert shown_size(Part(0, b"", width=4, height=3, orientation=1)) == (4, 3)
    assert [
        shown_size(Part(0, b"", width=4, height=3, orientation=n)) == (3, 4) for n in range(9)
    ] == [False] * 5 + [True] * 4


def test_the_original_file_is_named_even_if_the_checksum_is_wrong() -> None:
    value = record()
    value[HEADER.size + ROW.size * len(PARTS) + 5] ^= 1
    assert salvage_source(memoryview(value)) == "train/cat/é.jpg"
    assert salvage_source(memoryview(bytes(10))) == ""
    assert salvage_source(memoryview(encode_record(1, PARTS[:2]))) == ""
    for place in range(HEADER.size + ROW.size * len(PARTS)):
        broken = record()
        broken[place] ^= 0xFF
        salvage_source(memoryview(broken))


def test_the_checksum_is_the_same_without_the_native_core() -> None:
    code = (
        "from tests.store.test_record_layout import *; from fastload._common.checksum import crc32c, _fallback\n"
        "assert crc32c is _fallback; print(encode_record(NUMBER, PARTS).hex())\n"
        "parse_record(memoryview(record()), NUMBER)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FASTLOAD_NATIVE": "off"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == record().hex()
