"""Compares an image part with its row in the part table, by header or by decoding it."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

# Imported here because a first import in a verify thread could fail for lack of files or memory.
import fastload._store.pixels  # noqa: F401
from fastload._store.fields import Field
from fastload._store.jpeg_header import (
    JpegHeader,
    check_limits,
    check_scans,
    check_size,
    read_header,
)
from fastload._store.kinds import PixelKind
from fastload._store.record import CODEC_NAMES, JPEG, PLAIN, PNG, RAW, Part
from fastload.errors import BadImage, RecordError

_PNG_HEAD = struct.Struct(">8s4x4sIIB")


def check_image(
    field: Field, kind: PixelKind, part: Part, index: Part | None, *, deep: bool
) -> Iterator[str]:
    """Yields the faults of one image or mask; ``index`` is its restart index, if it has one."""
    if part.codec not in kind.codecs:
        expected = ", ".join(CODEC_NAMES[codec] for codec in kind.codecs)
        yield f"codec {part.codec} ({CODEC_NAMES[part.codec]}), expected one of {expected}"
        return
    if not 1 <= part.orientation <= 8 or not part.channels or not part.bits:
        yield (
            f"orientation {part.orientation}, {part.channels} channels, {part.bits} bits: expected "
            "orientation 1 to 8 and at least 1 channel and 1 bit"
        )
    try:
        check_size(part.width, part.height)
        if part.codec == JPEG:
            yield from _check_jpeg(part, index)
        elif index is not None:
            yield (
                f"a restart index for a {CODEC_NAMES[part.codec]} image, expected it only for jpeg"
            )
        if part.codec == PNG:
            yield from _check_png(part)
        if deep:
            # libjpeg's warnings are faults here, because these bytes decoded without one when
            # packed. It gives no warning if whole scans are missing.
            if part.codec == JPEG:
                check_scans(bytes(part.data), read_header(memoryview(part.data)))
            kind.decode(field, part)
        elif part.codec == RAW:
            expected_bytes = part.width * part.height * part.channels * part.bits // 8
            if len(part.data) != expected_bytes:
                yield (
                    f"{len(part.data)} bytes of raw pixels, expected {expected_bytes} for "
                    f"{part.width}x{part.height}x{part.channels} with {part.bits} bits"
                )
    except BadImage as error:
        yield error.why
    except RecordError as error:
        yield str(error)


def _check_jpeg(part: Part, index: Part | None) -> Iterator[str]:
    header = read_header(memoryview(part.data))
    check_limits(header, len(part.data))
    found = (header.width, header.height, header.components)
    recorded = (part.width, part.height, part.channels)
    if found != recorded or part.bits != 8:
        yield (
            f"a JPEG of {found[0]}x{found[1]} with {found[2]} components, but the part table says "
            f"{recorded[0]}x{recorded[1]} with {recorded[2]} of {part.bits} bits"
        )
    if not header.complete:
        yield "the JPEG has no end marker"
    if part.interval and header.restart_interval != part.interval:
        yield (
            f"a restart marker every {header.restart_interval} MCUs, but the part table says "
            f"{part.interval}"
        )
    elif bool(part.interval) != (index is not None):
        has_index = "a" if index is not None else "no"
        yield f"restart interval {part.interval}, but {has_index} restart index"
    elif index is not None and (why := _check_index(part, header, index)):
        yield f"restart index: {why}"


def _check_index(part: Part, header: JpegHeader, index: Part) -> str:
    """Checks that each entry follows a restart marker and that the last is at the end marker.

    The loader copies the byte ranges in the index without inspecting the JPEG.
    """
    if index.codec != PLAIN or len(index.data) % 4:
        return (
            f"{len(index.data)} bytes with codec {index.codec}, expected a multiple of 4 with "
            f"codec {PLAIN}"
        )
    entries = np.frombuffer(index.data, "<u4").astype(np.int64)
    segments = _count_segments(header)
    if len(entries) != segments + 1:
        return f"{len(entries)} entries, expected {segments + 1} for {segments} segments"
    data = np.frombuffer(part.data, np.uint8)
    if (
        entries[0] != header.scan_offset
        or entries[-1] + 2 > len(data)
        or (np.diff(entries) <= 0).any()
    ):
        return (
            f"entries from {entries[0]} to {entries[-1]}, expected increasing entries from "
            f"{header.scan_offset} to less than {len(data) - 1}"
        )
    inner = entries[1:-1]
    marked = (data[inner - 2] == 0xFF) & (data[inner - 1] == 0xD0 + np.arange(len(inner)) % 8)
    if not marked.all():
        return f"entry {int(np.flatnonzero(~marked)[0]) + 1} does not follow a restart marker"
    if tuple(data[entries[-1] : entries[-1] + 2]) != (0xFF, 0xD9):
        return "the last entry is not at the end marker"
    return ""


def _count_segments(header: JpegHeader) -> int:
    across = down = 1  # a single component is coded block by block, for any sampling factors
    if header.components > 1:
        across, down = (max(factors[axis] for factors in header.sampling) for axis in (0, 1))
    mcus = -(-header.width // (8 * across)) * -(-header.height // (8 * down))
    return -(-mcus // header.restart_interval)


def _check_png(part: Part) -> Iterator[str]:
    if len(part.data) < _PNG_HEAD.size:
        yield f"{len(part.data)} bytes, expected a PNG file"
        return
    magic, chunk, width, height, depth = _PNG_HEAD.unpack_from(part.data)
    if (magic, chunk) != (b"\x89PNG\r\n\x1a\n", b"IHDR"):
        yield f"starts with {magic!r}, expected a PNG file"
    elif (width, height) != (part.width, part.height):
        yield f"a PNG of {width}x{height}, but the part table says {part.width}x{part.height}"
    elif (depth == 16) != (part.bits == 16):
        yield f"a PNG of {depth} bits per sample, but the part table says {part.bits}"
