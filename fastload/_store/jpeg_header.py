"""Reads JPEG headers and rejects images that exceed the limits, before any decoder runs.

The native core parses the markers. ``parse_markers`` does the same in Python: it is used without
the core, and tests compare the two.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from fastload._common.native import core
from fastload.errors import BadImage

# Limits on the header: a 300-byte JPEG can request gigabytes.
MAX_SIDE = 16_384
MAX_PIXELS = 64_000_000
MAX_PIXELS_PER_BYTE = 512  # a complete Huffman-coded JPEG spends at least one bit per 8x8 block
MAX_SCANS = 128

_SUBSAMPLING = {
    ((1, 1),): "gray",
    ((1, 1),) * 3: "444",
    ((2, 1), (1, 1), (1, 1)): "422",
    ((2, 2), (1, 1), (1, 1)): "420",
    ((1, 2), (1, 1), (1, 1)): "440",
    ((4, 1), (1, 1), (1, 1)): "411",
    ((4, 2), (1, 1), (1, 1)): "410",
}
_NO_LENGTH = frozenset((0x00, 0x01, *range(0xD0, 0xD8)))  # stuffed zero, TEM, RST0-7: not segments
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOFn; the others are DHT, JPG, DAC
_SOI = 0xD8
_EOI = 0xD9
_SOS = 0xDA
_DRI = 0xDD
_APP0 = 0xE0
_APP1 = 0xE1
_APP14 = 0xEE


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """The contents of a JPEG's markers. Sizes are in pixels as stored, before ``orientation``."""

    width: int
    height: int
    precision: int  # bits per sample
    sof: int  # frame marker: 0xC0 baseline, 0xC1 extended, 0xC2 progressive
    sampling: tuple[tuple[int, int], ...]  # (horizontal, vertical) factors per component
    orientation: int  # EXIF 1..8; 1 = as stored
    restart_interval: int  # MCUs between restart markers, 0 = none
    n_scans: int
    complete: bool  # the file has an end marker
    adobe_transform: int  # -1 without an Adobe marker
    jfif: bool
    scan_offset: int  # first byte of the first scan's entropy-coded data
    end_offset: int  # first byte after the end marker

    @property
    def components(self) -> int:
        """1 for grayscale, 3 for color, 4 for CMYK or YCCK."""
        return len(self.sampling)

    @property
    def progressive(self) -> bool:
        return self.sof in (0xC2, 0xC6, 0xCA, 0xCE)

    @property
    def arithmetic(self) -> bool:
        """True for arithmetic instead of Huffman coding, which few decoders support."""
        return self.sof >= 0xC9

    @property
    def ordinary(self) -> bool:
        """True if every decoder supports it: Huffman-coded, 8 bit, one or three components."""
        return self.sof in (0xC0, 0xC1, 0xC2) and self.precision == 8 and self.components in (1, 3)

    @property
    def coding(self) -> str:
        """Describes the coding, for messages."""
        return f"frame type 0x{self.sof:02X}, {self.precision} bit, {self.components} components"

    @property
    def subsampling(self) -> str:
        """``"444"``, ``"420"``, ..., ``"gray"``, or the factors if the combination has no name."""
        if self.components == 1:
            return "gray"
        return _SUBSAMPLING.get(self.sampling) or ",".join(f"{h}x{v}" for h, v in self.sampling)


def read_header(data: bytes | memoryview) -> JpegHeader:
    """Reads the markers of a JPEG; raises BadImage if it is not a JPEG or its structure is invalid.

    >>> read_header(open("photo.jpg", "rb").read()).subsampling        # doctest: +SKIP
    '420'
    """
    module = core()
    if module is None:
        return parse_markers(data)
    try:
        found = module.jpeg_header(data)
    except module.BadJpeg as error:
        raise BadImage(str(error)) from None
    return JpegHeader(
        width=found.width,
        height=found.height,
        precision=found.precision,
        sof=found.sof,
        sampling=found.sampling,
        orientation=found.orientation,
        restart_interval=found.restart_interval,
        n_scans=found.n_scans,
        complete=found.complete,
        adobe_transform=found.adobe_transform,
        jfif=found.jfif,
        scan_offset=found.scan_offset,
        end_offset=found.end_offset,
    )


def check_size(width: int, height: int) -> None:
    """Raises BadImage for an image of any format that is empty or exceeds the limits."""
    if min(width, height) < 1:
        raise BadImage(f"{width}x{height} pixels: sides must be at least 1")
    if max(width, height) > MAX_SIDE:
        raise BadImage(f"{width}x{height} pixels: sides may be at most {MAX_SIDE}")
    if width * height > MAX_PIXELS:
        raise BadImage(f"{width}x{height} pixels: at most {MAX_PIXELS // 1_000_000} megapixels")


def check_bomb(header: JpegHeader, n_bytes: int) -> None:
    """Raises BadImage for a JPEG whose decoding would cost far more than its file size suggests."""
    check_size(header.width, header.height)
    if header.width * header.height > MAX_PIXELS_PER_BYTE * n_bytes:
        raise BadImage(
            f"{header.width}x{header.height} pixels in {n_bytes} bytes: truncated or a "
            f"decompression bomb (at most {MAX_PIXELS_PER_BYTE} pixels per byte)"
        )
    if header.n_scans > MAX_SCANS:
        raise BadImage(f"{header.n_scans} scans: at most {MAX_SCANS}")


def check_limits(header: JpegHeader, n_bytes: int) -> None:
    """Raises BadImage for a JPEG that is too large, a bomb, or in a coding unsupported by GPUs."""
    check_bomb(header, n_bytes)
    if not header.ordinary:
        raise BadImage(f"{header.coding}: expected Huffman-coded, 8 bit, gray or color")


def check_scans(data: bytes, header: JpegHeader) -> None:
    """Raises BadImage if a component, or bits of a progressive image, are in no scan.

    A file that was truncated between two scans and closed again has this form. libjpeg decodes it
    to other pixels without a warning.
    """
    n_in_first_scan = data[header.scan_offset - 4 - 2 * header.components]
    if header.n_scans == 1 and not header.progressive and n_in_first_scan == header.components:
        return
    missing: set[tuple[int, int]] = set()  # component, coefficient
    for marker, _, body in _segments(data):
        if marker in _FRAMES:
            missing = {(component, k) for component in body[6::3] for k in range(64)}
        elif marker == _SOS and len(body) >= 4:
            *_, first, last, bits = body if header.progressive else (0, 63, 0)
            scanned = {(each, k) for each in body[1:-3:2] for k in range(first, last + 1)}
            missing = missing | scanned if bits & 15 else missing - scanned
    if missing:
        raise BadImage("incomplete JPEG: scans are missing")


def parse_markers(data: bytes | memoryview) -> JpegHeader:
    """Parses the markers in Python; the result and the messages equal those of the native core."""
    data = bytes(data)
    if len(data) < 4 or not data.startswith(b"\xff\xd8"):
        raise BadImage("not a JPEG: it does not start with FF D8")
    sof = 0
    frame = b""
    n_scans = 0
    scan_offset = 0
    restart_interval = 0
    adobe_transform = -1
    orientation = 0
    jfif = False
    complete = False
    end = len(data)
    for marker, start, body in _segments(data):
        if marker == _EOI:
            complete = True
            end = start
        elif marker in _FRAMES:
            if frame:
                raise BadImage(f"a second frame header (SOF) at byte {start - 4}")
            _check_frame(body, start)
            sof = marker
            frame = body
        elif marker == _SOS:
            body_end = start + len(body)
            if not frame:
                raise BadImage(f"a scan (SOS) before the frame header (SOF) at byte {body_end}")
            n_scans += 1
            scan_offset = scan_offset or body_end
        elif marker == _DRI and len(body) >= 2 and not n_scans:
            restart_interval = int.from_bytes(body[:2], "big")
        elif marker == _APP0 and body.startswith(b"JFIF\0"):
            jfif = True
        elif marker == _APP14 and len(body) >= 12 and body.startswith(b"Adobe"):
            adobe_transform = body[11]
        elif marker == _APP1 and not orientation and body.startswith(b"Exif\0\0"):
            orientation = _exif_orientation(body[6:])
    if not frame:
        raise BadImage(f"no frame header (SOF) in {len(data)} bytes")
    if not n_scans:
        raise BadImage(f"no image data: no scan (SOS) in {len(data)} bytes")
    return JpegHeader(
        width=int.from_bytes(frame[3:5], "big"),
        height=int.from_bytes(frame[1:3], "big"),
        precision=frame[0],
        sof=sof,
        sampling=tuple((factors >> 4, factors & 15) for factors in frame[7::3]),
        orientation=orientation or 1,
        restart_interval=restart_interval,
        n_scans=n_scans,
        complete=complete,
        adobe_transform=adobe_transform,
        jfif=jfif,
        scan_offset=scan_offset,
        end_offset=end,
    )


def _segments(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yields (marker, start of its body, body).

    Skips other bytes between markers, as libjpeg does.
    """
    position = 2
    while (position := data.find(b"\xff", position)) >= 0:
        while position < len(data) and data[position] == 0xFF:
            position += 1
        if position >= len(data):
            return
        marker = data[position]
        position += 1
        if marker in _NO_LENGTH:
            continue
        if marker == _EOI:
            yield marker, position, b""
            return
        if marker == _SOI:
            raise BadImage(f"a second start marker at byte {position - 2}")
        length = int.from_bytes(data[position : position + 2], "big")
        if position + 2 <= len(data) and length < 2:
            raise BadImage(f"marker 0xFF{marker:02X} has length {length} at byte {position - 2}")
        if position + max(length, 2) > len(data):
            raise BadImage(f"cut off in marker 0xFF{marker:02X} at byte {position - 2}")
        yield marker, position + 2, data[position + 2 : position + length]
        position += length


def _check_frame(body: bytes, start: int) -> None:
    if len(body) < 6 or len(body) != 6 + 3 * body[5]:
        raise BadImage(f"the frame header (SOF) has a wrong length at byte {start - 4}")
    height, width = struct.unpack(">HH", body[1:5])
    if not width or not height:
        raise BadImage(f"the size is {width}x{height}")
    if not 1 <= body[5] <= 4:
        raise BadImage(f"expected 1 to 4 components, found {body[5]}")
    for i, factors in enumerate(body[7::3]):
        if not (1 <= factors >> 4 <= 4 and 1 <= factors & 15 <= 4):
            raise BadImage(
                f"component {i} has sampling factors {factors >> 4}x{factors & 15}, expected 1 to 4"
            )


def _exif_orientation(tiff: bytes) -> int:
    """Returns tag 0x0112 of the first directory, or 1 if it is missing or damaged."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1
    magic, directory = struct.unpack_from(order + "HI", tiff, 2)
    if magic != 42 or directory + 2 > len(tiff):
        return 1
    (entries,) = struct.unpack_from(order + "H", tiff, directory)
    for entry in range(directory + 2, directory + 2 + 12 * entries, 12):
        if entry + 12 > len(tiff):
            return 1
        tag, kind, count = struct.unpack_from(order + "HHI", tiff, entry)
        if tag == 0x0112:
            # The standard says type 3 (16 bits). Some cameras write type 4 (32 bits).
            if kind not in (3, 4) or count != 1:
                return 1
            (value,) = struct.unpack_from(order + ("H" if kind == 3 else "I"), tiff, entry + 8)
            return int(value) if 1 <= value <= 8 else 1
    return 1
