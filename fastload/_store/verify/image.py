"""An image part against what the part table says of it: from its header, or decoded whole."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

import fastload._store.pixels  # noqa: F401 - a first import in a verify thread could fail for lack of files or memory
from fastload._store.jpeg_header import JpegHeader, check_limits, check_size, read_header
from fastload._store.kinds import PixelKind
from fastload._store.record import CODEC_NAMES, JPEG, PLAIN, PNG, RAW, Part
from fastload.errors import BadImage, RecordError

_PNG_HEAD = struct.Struct(">8s4x4sII")


def check_image(kind: PixelKind, part: Part, index: Part | None, *, deep: bool) -> Iterator[str]:
    """What is wrong with one image or mask; ``index`` is its restart-segment index, where the record has one."""
    if part.codec not in kind.codecs:
        expected = ", ".join(CODEC_NAMES[codec] for codec in kind.codecs)
        yield f"codec {part.codec} ({CODEC_NAMES[part.codec]}), expected one of {expected}"
        return
    if not 1 <= part.orientation <= 8 or not part.channels or not part.bits:
        yield f"orientation {part.orientation}, {part.channels} channels of {part.bits} bits: not those of an image"
    try:
        check_size(part.width, part.height)
        if part.codec == JPEG:
            yield from _check_jpeg(part, index)
        elif index is not None:
            yield f"a restart index beside a {CODEC_NAMES[part.codec]} image"
        if part.codec == PNG:
            yield from _check_png(part)
        if deep:
            # Strict: what libjpeg warns about and goes on is damage here, since these bytes decoded cleanly when packed.
            kind.decode_pixels(part)
        elif part.codec == RAW:
            yield from _check_raw(part)
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
            f"a JPEG of {found[0]}x{found[1]} with {found[2]} components, but the part table says {recorded[0]}x{recorded[1]} with "
            f"{recorded[2]} of {part.bits} bits"
        )
    if not header.complete:
        yield "the JPEG has no end marker"
    if part.interval and header.restart_interval != part.interval:
        yield f"a restart marker every {header.restart_interval} MCUs, but the part table says {part.interval}"
    elif bool(part.interval) != (index is not None):
        yield f"restart interval {part.interval}, but {'a' if index is not None else 'no'} restart index"
    elif index is not None and (why := _wrong_index(part, header, index)):
        yield f"restart index: {why}"


def _wrong_index(part: Part, header: JpegHeader, index: Part) -> str:
    """Every entry must stand right behind its marker, and the last at the end marker: cut copies what it is recorded."""
    if index.codec != PLAIN or len(index.data) % 4:
        return f"{len(index.data)} bytes with codec {index.codec}, expected a multiple of 4 with codec {PLAIN}"
    entries = np.frombuffer(index.data, "<u4").astype(np.int64)
    segments = _segments(header)
    if len(entries) != segments + 1:
        return f"{len(entries)} entries, expected {segments + 1} for {segments} segments"
    data = np.frombuffer(part.data, np.uint8)
    if (
        entries[0] != header.scan_offset
        or entries[-1] + 2 > len(data)
        or (np.diff(entries) <= 0).any()
    ):
        return (
            f"entries from {entries[0]} to {entries[-1]}, expected to rise from {header.scan_offset} to less than "
            f"{len(data) - 1}"
        )
    inner = entries[1:-1]
    marked = (data[inner - 2] == 0xFF) & (data[inner - 1] == 0xD0 + np.arange(len(inner)) % 8)
    if not marked.all():
        return f"entry {int(np.flatnonzero(~marked)[0]) + 1} does not stand behind a restart marker"
    if tuple(data[entries[-1] : entries[-1] + 2]) != (0xFF, 0xD9):
        return "the last entry does not stand at the end marker"
    return ""


def _segments(header: JpegHeader) -> int:
    """Restart segments of the one scan."""
    across = down = 1  # a lone component is coded block by block, whatever its sampling factors
    if header.components > 1:
        across, down = (max(factors[axis] for factors in header.sampling) for axis in (0, 1))
    mcus = -(-header.width // (8 * across)) * -(-header.height // (8 * down))
    return -(-mcus // header.restart_interval)


def _check_png(part: Part) -> Iterator[str]:
    if len(part.data) < _PNG_HEAD.size:
        yield f"{len(part.data)} bytes, expected a PNG file"
        return
    magic, chunk, width, height = _PNG_HEAD.unpack_from(part.data)
    if (magic, chunk) != (b"\x89PNG\r\n\x1a\n", b"IHDR"):
        yield f"starts with {magic!r}, expected a PNG file"
    elif (width, height) != (part.width, part.height):
        yield f"a PNG of {width}x{height}, but the part table says {part.width}x{part.height}"


def _check_raw(part: Part) -> Iterator[str]:
    expected = part.width * part.height * part.channels * part.bits // 8
    if len(part.data) != expected:
        yield f"{len(part.data)} bytes of pixels, expected {expected} for {part.width}x{part.height}x{part.channels} of {part.bits} bits"
