"""Encodes and parses records. A record is one sample as bytes: header, part table, parts.

This module does no I/O. docs/FORMAT.md defines the layout.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fastload._common.checksum import Bytes, crc32c
from fastload.errors import ConfigError, RecordError

MAGIC = b"FLR1"
VERSION = 1
MAX_RECORD = 64 * 1024 * 1024  # bytes, the whole record
MAX_PARTS = 1024
SOURCE_FIELD = 0xFFFF  # field number of the implicit part "source": the original path as text
MAX_FIELDS = 1024  # real field numbers stay far below SOURCE_FIELD

PLAIN, JPEG, PNG, RAW, DEFLATED, ARRAY = range(6)  # codecs
CODEC_NAMES = ("plain", "jpeg", "png", "raw", "deflated", "array")
DATA = 0  # roles
RESTART_INDEX = 1

HEADER = struct.Struct("<4sIBBHIQ")  # magic, crc, version, reserved, parts, length, sample id
ROW = struct.Struct("<HHBBBBIIHHHBB")  # field, item, codec, role, channels, bits, offset, length,
# width, height, interval, orientation, reserved
CRC_FROM = 8  # the checksum covers all bytes after itself
_PADDING = tuple(bytes(n) for n in range(8))

# One row of a part table and the place of its record in its batch: PartRow of
# native/shard/record.h.
PART_ROW = np.dtype(
    [
        ("sample", "<u4"),
        ("offset", "<u4"),
        ("length", "<u4"),
        ("field", "<u2"),
        ("item", "<u2"),
        ("width", "<u2"),
        ("height", "<u2"),
        ("interval", "<u2"),
        ("codec", "u1"),
        ("role", "u1"),
        ("channels", "u1"),
        ("bits", "u1"),
        ("orientation", "u1"),
        ("reserved", "u1"),
    ]
)


class Part(NamedTuple):
    """One stored value, such as an image, a label, or one of six camera images.

    It is a tuple because reading a record creates about four of them, and a frozen dataclass takes
    several times as long to create. After reading, ``data`` is a view into the shard, not a copy.
    """

    field: int  # index in the manifest's list of fields
    data: Bytes
    item: int = 0  # index in a list field
    codec: int = PLAIN
    role: int = DATA
    # The remaining fields describe an image or mask and are 0 for other values.
    channels: int = 0
    bits: int = 0  # per channel: 8, 16 or 32
    width: int = 0  # as stored, before `orientation` is applied
    height: int = 0
    interval: int = 0  # MCUs per restart segment, 0 = none
    orientation: int = 0  # EXIF 1..8, to be applied after decoding


def encode_record(sample_id: int, parts: Iterable[Part]) -> bytes:
    """Encodes one sample. Sorts the parts by field, item and role, and copies the payload once."""
    if not 0 <= sample_id < 1 << 63:
        raise ConfigError(f"sample id {sample_id}: expected 0 to 2**63 - 1")
    ordered = sorted(parts, key=_key)
    _check_parts(ordered)
    table: list[bytes] = []
    body: list[Bytes] = []
    end = HEADER.size + ROW.size * len(ordered)
    for part, offset in zip(ordered, part_offsets(ordered), strict=True):
        size = memoryview(part.data).nbytes
        table.append(_row(part, offset, size))
        body += [_PADDING[offset - end], part.data]
        end = offset + size
    if end > MAX_RECORD:
        raise ConfigError(
            f"sample {sample_id}: its record has {end} bytes, at most {MAX_RECORD} are allowed; "
            "split the sample, or pack smaller images"
        )
    header = HEADER.pack(MAGIC, 0, VERSION, 0, len(ordered), end, sample_id)
    crc = 0
    for piece in (header[CRC_FROM:], *table, *body):
        crc = crc32c(piece, crc)
    return b"".join((MAGIC, crc.to_bytes(4, "little"), header[CRC_FROM:], *table, *body))


def part_offsets(parts: Sequence[Part]) -> Iterator[int]:
    """Yields the offset of each part: parts follow the table, aligned to 8 bytes."""
    end = HEADER.size + ROW.size * len(parts)
    for part in parts:
        offset = end + (-end & 7)
        yield offset
        end = offset + memoryview(part.data).nbytes


class RecordHeader(NamedTuple):
    """The first 24 bytes of a record. ``parse`` does not validate them; ``check`` does."""

    magic: bytes
    crc: int
    version: int
    reserved: int
    n_parts: int
    length: int
    sample_id: int

    @classmethod
    def parse(cls, value: Bytes) -> RecordHeader:
        """Raises RecordError if ``value`` is too short for a header or too long for a record."""
        if not HEADER.size <= len(value) <= MAX_RECORD:
            raise RecordError("record length", len(value), f"{HEADER.size} to {MAX_RECORD}")
        return cls(*HEADER.unpack_from(value))

    def check(self, value: memoryview, expect_id: int) -> None:
        """Checks magic, version, id, length, checksum and limits; raises RecordError."""
        if self.magic != MAGIC:
            raise RecordError("magic", self.magic, MAGIC)
        if self.version != VERSION:
            raise RecordError(
                "record version", self.version, f"{VERSION}; a newer fastload may support it"
            )
        if self.sample_id != expect_id:
            raise RecordError("sample id", self.sample_id, expect_id)
        if self.length != len(value):
            raise RecordError("record length", len(value), self.length)
        found = crc32c(value[CRC_FROM:])
        if found != self.crc:
            raise RecordError("checksum", f"0x{found:08x}", f"0x{self.crc:08x}")
        if self.reserved or self.n_parts > MAX_PARTS:
            raise RecordError(
                "record header (reserved, parts)",
                (self.reserved, self.n_parts),
                f"at most {(0, MAX_PARTS)}",
            )


def is_intact(value: memoryview) -> bool:
    """Returns True if the header and the checksum of a record are valid, for any sample id."""
    try:
        header = RecordHeader.parse(value)
        header.check(value, header.sample_id)
    except RecordError:
        return False
    return True


def parse_record(value: memoryview, expect_id: int) -> list[Part]:
    """Checks a record and returns its parts as views into ``value``; raises RecordError."""
    size = len(value)
    header = RecordHeader.parse(value)
    header.check(value, expect_id)
    end = HEADER.size + ROW.size * header.n_parts
    if end > size:
        raise RecordError("end of the part table", end, f"at most {size}")
    parts: list[Part] = []
    last = -1
    for (
        field,
        item,
        codec,
        role,
        channels,
        bits,
        offset,
        n_bytes,
        width,
        height,
        interval,
        orientation,
        reserved,
    ) in ROW.iter_unpack(value[HEADER.size : end]):
        # One comparison checks alignment, bounds, gaps and overlap: the end of the previous part
        # determines the offset.
        place = end + (-end & 7)
        key = field << 24 | item << 8 | role
        if offset != place or place + n_bytes > size or key <= last:
            raise _bad_row(len(parts), (offset, n_bytes, field, item, role), place, size)
        if codec > ARRAY or role > RESTART_INDEX or orientation > 8 or reserved:
            raise RecordError(
                f"part {len(parts)} (codec, role, orientation, reserved)",
                (codec, role, orientation, reserved),
                f"at most {(ARRAY, RESTART_INDEX, 8, 0)}",
            )
        if place != end and value[end:place] != _PADDING[place - end]:
            raise RecordError(f"padding before part {len(parts)}", bytes(value[end:place]), "zeros")
        end = place + n_bytes
        last = key
        parts.append(
            Part(
                field,
                value[place:end],
                item,
                codec,
                role,
                channels,
                bits,
                width,
                height,
                interval,
                orientation,
            )
        )
    if end != size:
        raise RecordError("end of the last part", end, size)
    return parts


def shown_size(part: Part) -> tuple[int, int]:
    """Returns (width, height) of the upright image: orientations 5 to 8 swap the stored sides."""
    return (part.height, part.width) if part.orientation >= 5 else (part.width, part.height)


def source_of(parts: Sequence[Part]) -> str:
    """Returns the original path, which is the last part, or '' if it was not stored."""
    if not parts or parts[-1].field != SOURCE_FIELD:
        return ""
    return bytes(parts[-1].data).decode("utf-8", "replace")


def salvage_source(value: memoryview) -> str:
    """Returns the original path from a record with a wrong checksum, or '' if it is unreadable."""
    try:
        n_parts = RecordHeader.parse(value).n_parts
        row = ROW.unpack_from(value, HEADER.size + ROW.size * (n_parts - 1))
        text = bytes(value[row[6] : row[6] + row[7]]).decode()
    except (RecordError, struct.error, UnicodeDecodeError):
        return ""
    return text if row[0] == SOURCE_FIELD and text.isprintable() and len(text) <= 4096 else ""


def _key(part: Part) -> int:
    return part.field << 24 | part.item << 8 | part.role


def _row(part: Part, offset: int, size: int) -> bytes:
    try:
        return ROW.pack(
            part.field,
            part.item,
            part.codec,
            part.role,
            part.channels,
            part.bits,
            offset,
            size,
            part.width,
            part.height,
            part.interval,
            part.orientation,
            0,
        )
    except struct.error as error:
        raise ConfigError(
            f"field {part.field}, item {part.item}: {part._replace(data=b'')} does not fit in the "
            f"part table ({error})"
        ) from None


def _check_parts(ordered: list[Part]) -> None:
    if len(ordered) > MAX_PARTS:
        raise ConfigError(f"sample with {len(ordered)} parts: expected at most {MAX_PARTS}")
    for before, after in itertools.pairwise(ordered):
        if _key(before) == _key(after):
            raise ConfigError(
                f"field {after.field}, item {after.item}, role {after.role} occurs twice in a "
                "sample"
            )
    for part in ordered:
        if not (
            0 <= part.codec <= ARRAY
            and 0 <= part.role <= RESTART_INDEX
            and 0 <= part.orientation <= 8
        ):
            raise ConfigError(
                f"part of field {part.field}: codec {part.codec}, role {part.role}, orientation "
                f"{part.orientation}: expected at most {ARRAY}, {RESTART_INDEX}, 8"
            )


def _bad_row(i: int, row: tuple[int, int, int, int, int], place: int, size: int) -> RecordError:
    offset, n_bytes, *key = row
    if offset != place:
        return RecordError(f"offset of part {i}", offset, place)
    if place + n_bytes > size:
        return RecordError(f"end of part {i}", place + n_bytes, f"at most {size}")
    return RecordError(f"part {i} (field, item, role)", tuple(key), "sorted, without duplicates")
