"""The JPEG header readers in C++ and Python agree on good files and reject bad ones."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fastload._common.native import core
from fastload._store.jpeg_header import (
    MAX_PIXELS,
    MAX_SCANS,
    JpegHeader,
    check_limits,
    parse_markers,
    read_header,
)
from fastload.errors import BadImage
from tests.corpus import corpus_dir

Reader = Callable[[bytes], JpegHeader]


@pytest.fixture(params=["native", "python"])
def read(request: pytest.FixtureRequest) -> Reader:
    if request.param == "python":
        return parse_markers
    if core() is None:
        pytest.skip("not run: no native core")
    return read_header


def jpeg(width: int = 40, height: int = 30, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height), "teal").save(file, "JPEG", **options)
    return file.getvalue()


def with_exif(orientation: int, byte_order: str = "<", kind: int = 3, tag: int = 0x0112) -> bytes:
    value = struct.pack(
        byte_order + ("HH" if kind == 3 else "I"),
        *([orientation, 0] if kind == 3 else [orientation]),
    )
    tiff = (
        {"<": b"II", ">": b"MM"}[byte_order]
        + struct.pack(byte_order + "HIHHHI", 42, 8, 1, tag, kind, 1)
        + value
    )
    body = b"Exif\0\0" + tiff
    return b"\xff\xd8\xff\xe1" + struct.pack(">H", len(body) + 2) + body + jpeg()[2:]


def test_size_sampling_and_coding(read: Reader) -> None:
    header = read(jpeg(41, 23, subsampling=2))
    assert (header.width, header.height, header.precision, header.sof) == (41, 23, 8, 0xC0)
    assert (header.components, header.subsampling, header.sampling) == (
        3,
        "420",
        ((2, 2), (1, 1), (1, 1)),
    )
    assert (header.n_scans, header.restart_interval, header.orientation) == (1, 0, 1)
    assert header.complete
    assert header.jfif
    assert not header.progressive


def test_grayscale_progressive_restart_and_cmyk_headers(read: Reader) -> None:
    assert read(jpeg(mode="L")).subsampling == "gray"
    progressive = read(jpeg(progressive=True))
    assert progressive.progressive
    assert progressive.n_scans > 1
    assert read(jpeg(restart_marker_blocks=3)).restart_interval == 3
    cmyk = read(jpeg(mode="CMYK"))
    assert (cmyk.components, cmyk.adobe_transform) == (4, 0)


@pytest.mark.parametrize("name", ["444", "422", "420", "440", "411", "Gray"])
def test_every_subsampling_has_its_name(read: Reader, name: str) -> None:
    pixels = np.zeros((16, 16, 1 if name == "Gray" else 3), np.uint8)
    data = simplejpeg.encode_jpeg(
        pixels, colorspace="GRAY" if name == "Gray" else "RGB", colorsubsampling=name
    )
    assert read(data).subsampling == name.lower()


@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
@pytest.mark.parametrize(("written", "found"), [(1, 1), (6, 6), (8, 8), (0, 1), (9, 1)])
def test_orientation(read: Reader, byte_order: str, kind: int, written: int, found: int) -> None:
    assert read(with_exif(written, byte_order, kind)).orientation == found
    assert read(with_exif(written, byte_order, kind, tag=0x0111)).orientation == 1


def test_offsets_frame_the_entropy_coded_data(read: Reader) -> None:
    data = jpeg()
    header = read(data + b"trailing")
    assert header.end_offset == len(data)
    scan = data.index(b"\xff\xda")
    assert header.scan_offset == scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: b"", "not a JPEG"),
        (lambda d: b"\x89PNG" + d, "not a JPEG"),
        (lambda d: d[:20], "no frame header"),
        (lambda d: d[: d.index(b"\xff\xc0") + 6], "cut off in marker 0xFFC0 at byte"),
        (lambda d: d[: d.index(b"\xff\xda")] + b"\xff\xd9", "no image data"),
        (lambda d: d[:2] + d, "a second start marker at byte 2"),
        (
            lambda d: d.replace(b"\xff\xc0\x00\x11\x08\x00\x1e", b"\xff\xc0\x00\x11\x08\x00\x00"),
            "the size is 40x0",
        ),
        (lambda d: d.replace(b"\xff\xc0\x00\x11", b"\xff\xc0\x00\x12"), "wrong length"),
        (lambda d: d[:2] + b"\xff\xfe\x00\x01" + d[2:], "marker 0xFFFE has length 1 at byte 2"),
    ],
)
def test_broken_structure_is_rejected_with_its_position(
    read: Reader, damage: Callable[[bytes], bytes], message: str
) -> None:
    with pytest.raises(BadImage, match=message):
        read(damage(jpeg()))
    assert read(jpeg()).width == 40  # the next good file is still read


def test_a_missing_end_marker_is_reported_not_rejected(read: Reader) -> None:
    assert not read(jpeg()[:-2]).complete


@given(st.data())
def test_native_and_python_reader_agree_on_mutated_files(data: st.DataObject) -> None:
    if core() is None:
        pytest.skip("not run: no native core")
    original = bytearray(jpeg(progressive=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(original) - 1))
        original[place] = data.draw(st.sampled_from([0, 1, 2, 0xC0, 0xC4, 0xD8, 0xDA, 0xFF]))
    assert _verdict(read_header, bytes(original)) == _verdict(parse_markers, bytes(original))


def test_native_and_python_reader_agree_on_the_odd_corpus() -> None:
    files = [path for path in corpus_dir().rglob("*") if path.is_file()]
    if core() is None:
        pytest.skip("not run: no native core")
    assert len(files) > 1000
    for path in files:
        data = path.read_bytes()
        assert _verdict(read_header, data) == _verdict(parse_markers, data), path


def _verdict(read: Reader, data: bytes) -> JpegHeader | str:
    try:
        return read(data)
    except BadImage as error:
        return str(error)


def test_limits_reject_bombs_by_their_header() -> None:
    good = read_header(jpeg())
    check_limits(good, 1000)
    fields = {name: getattr(good, name) for name in JpegHeader.__slots__}
    wrong: list[tuple[dict[str, object], int, str]] = [
        ({"width": 16_385}, 10**9, "at most 16384"),
        ({"width": 16_000, "height": MAX_PIXELS // 16_000 + 1}, 10**9, "at most 64 megapixels"),
        ({"width": 1000, "height": 513}, 1000, "decompression bomb"),
        ({"n_scans": MAX_SCANS + 1}, 1000, "129 scans"),
        ({"sof": 0xC9}, 1000, "0xC9"),
        ({"precision": 12}, 1000, "12 bit"),
        ({"sampling": ((1, 1),) * 4}, 1000, "4 components"),
    ]
    for change, size, message in wrong:
        with pytest.raises(BadImage, match=message):
            check_limits(JpegHeader(**{**fields, **change}), size)
