"""A rewritten JPEG is baseline: one scan, no metadata, declared colors, indexed segments."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from tests.corpus import corpus_dir, photos
from tests.jpeg_samples import (
    SAMPLINGS,
    decode,
    decode_by_pillow,
    encode,
    encode_by_pillow,
    markers,
    replace_frame,
    sample_image,
)

core = pytest.importorskip("fastload._core", reason="not run: no native core")

JFIF = b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0"
ADOBE_RGB = b"Adobe\0\x64\0\0\0\0\0"


def expected_segments(jpeg: bytes) -> list[int]:
    start = sum(4 + len(body) for _, body in markers(jpeg)) + 2
    offsets = [start]
    for at in range(start, len(jpeg) - 1):
        if jpeg[at] == 0xFF and 0xD0 <= jpeg[at + 1] <= 0xD7:
            assert jpeg[at + 1] == 0xD0 + (len(offsets) - 1) % 8
            offsets.append(at + 2)
    assert jpeg.endswith(b"\xff\xd9")
    return [*offsets, len(jpeg) - 2]


def test_metadata_is_removed() -> None:
    exif = Image.Exif()
    exif[0x010E] = "a description"
    jpeg = encode_by_pillow(
        sample_image(200, 100),
        "420",
        progressive=True,
        exif=exif,
        icc_profile=b"x" * 500,
        comment=b"hello",
        dpi=(72, 72),
    )
    assert core.jpeg_header(jpeg).sof == 0xC2
    found = list(markers(core.rewrite(jpeg).jpeg))
    assert [marker for marker, _ in found] == [
        0xE0,
        0xDB,
        0xDB,
        0xC0,
        0xC4,
        0xC4,
        0xC4,
        0xC4,
        0xDD,
        0xDA,
    ]
    assert found[0][1] == JFIF


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("restart", [0, 1, 3, 8, 1000, -1])
def test_restart_markers_match_the_index(sampling: str, restart: int) -> None:
    jpeg = encode(sample_image(250, 130), sampling)
    rewritten = core.rewrite(jpeg, restart=restart)
    written = rewritten.jpeg
    index = rewritten.index
    interval = rewritten.interval
    header = core.jpeg_header(written)
    assert (header.width, header.height) == (rewritten.width, rewritten.height)
    assert (header.precision, header.sof) == (8, 0xC0)
    assert (header.n_scans, header.complete) == (1, True)
    assert header.sampling == core.jpeg_header(jpeg).sampling
    assert header.restart_interval == interval
    assert rewritten.orientation == 1
    if restart >= 0:
        assert interval == restart
    assert index.dtype == np.uint32
    assert index.tolist() == (expected_segments(written) if interval else [])
    found, found_interval = core.find_segments(written)
    assert (found.tolist(), found_interval) == (index.tolist(), interval)


def test_the_number_of_segments_follows_from_the_interval() -> None:
    # 4:2:0: 16 x 9 MCUs of 16x16 pixels
    index = core.rewrite(encode(sample_image(250, 130), "420"), restart=5).index
    assert len(index) - 1 == -(-16 * 9 // 5)


def test_the_automatic_interval_divides_the_row_and_costs_little() -> None:
    more = []
    for path in photos(40):
        jpeg = path.read_bytes()
        rewritten = core.rewrite(jpeg)
        written = rewritten.jpeg
        index = rewritten.index
        width = rewritten.width
        interval = rewritten.interval
        sampling = core.jpeg_header(jpeg).sampling
        mcu = 8 * (max(h for h, _ in sampling) if len(sampling) > 1 else 1)
        assert interval > 0
        assert -(-width // mcu) % interval == 0
        more.append(len(written) + index.nbytes - len(core.rewrite(jpeg, restart=0).jpeg))
    assert 0 < np.mean(more) < 0.03 * np.mean([path.stat().st_size for path in photos(40)])


def test_no_restart_markers_if_they_cost_too_many_bytes() -> None:
    assert core.rewrite(encode(np.full((300, 300, 3), 90, np.uint8), "420")).interval == 0
    assert core.rewrite(encode(sample_image(40, 8), "gray")).interval == 0


@pytest.mark.parametrize("restart", [-2, 65536, 10**9])
def test_restart_out_of_range_raises(restart: int) -> None:
    jpeg = encode(sample_image(20, 20), "444")
    with pytest.raises(ValueError, match="restart: expected"):
        core.rewrite(jpeg, restart=restart)
    assert core.rewrite(jpeg, restart=65535).interval == 65535


def test_index_of_an_existing_jpeg() -> None:
    pixels = sample_image(100, 60)
    jpeg = encode_by_pillow(pixels, "420", restart_marker_blocks=2)
    index, interval = core.find_segments(jpeg)
    assert interval == 2
    assert index.tolist() == expected_segments(jpeg)
    one = next(body for marker, body in markers(jpeg) if marker == 0xDA)
    for without in (
        encode(pixels, "444"),
        encode_by_pillow(pixels, "420", progressive=True, restart_marker_blocks=2),
        b"",
        b"\xff\xd8",
        jpeg[:-2],
        jpeg[: len(jpeg) // 2],
        jpeg.replace(b"\xff\xd3", b"\xff\xd4"),
        jpeg.replace(one, one[:-3] + b"\0\x10\0"),
    ):
        found, none = core.find_segments(without)
        assert (found.tolist(), none) == ([], 0)


def test_rgb_stays_rgb() -> None:
    """RGB declared by marker or by component names is declared by marker afterwards."""
    pixels = sample_image(50, 40)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", keep_rgb=True, quality=90)
    by_marker = out.getvalue()
    found = dict(markers(by_marker))
    assert found[0xEE][11] == 0
    at = by_marker.index(b"\xff\xee")
    by_name = by_marker[:at] + by_marker[at + 16 :]
    assert bytes(found[0xC0][6::3]) == b"RGB"
    for jpeg in (by_marker, by_name):
        np.testing.assert_allclose(decode_by_pillow(jpeg).astype(int), pixels, atol=40)
        for fast in (True, False):
            written = core.rewrite(jpeg, fast=fast).jpeg
            np.testing.assert_array_equal(decode(written), decode(jpeg))
            np.testing.assert_array_equal(decode_by_pillow(written), decode_by_pillow(jpeg))
            assert next(markers(written)) == (0xEE, ADOBE_RGB)


def test_ycbcr_without_jfif_marker_is_declared() -> None:
    """libjpeg assumes YCbCr without JFIF and with odd ids, so the new file declares it."""
    jpeg = encode(sample_image(50, 40), "422")
    at = jpeg.index(b"\xff\xe0")
    bare = jpeg[:at] + jpeg[at + 18 :]
    frame = dict(markers(bare))[0xC0]
    odd = replace_frame(
        bare,
        body=frame[:6] + b"".join(bytes((9 + i, *frame[7 + 3 * i : 9 + 3 * i])) for i in range(3)),
    )
    scan = odd.rindex(b"\xff\xda")
    odd = odd[: scan + 5] + bytes((9, odd[scan + 6], 10, odd[scan + 8], 11)) + odd[scan + 10 :]
    for source in (bare, odd):
        written = core.rewrite(source).jpeg
        np.testing.assert_array_equal(decode(written), decode(jpeg))
        assert next(markers(written)) == (0xE0, JFIF)
        assert bytes(dict(markers(written))[0xC0][6::3]) == b"\1\2\3"


def test_gray_images_get_1x1_sampling() -> None:
    jpeg = encode(sample_image(50, 41), "gray")
    frame = dict(markers(jpeg))[0xC0]
    for factors in (0x11, 0x22, 0x41, 0x14):
        for fast in (True, False):
            rewritten = core.rewrite(
                replace_frame(jpeg, body=frame[:7] + bytes((factors,)) + frame[8:]),
                restart=2,
                fast=fast,
            )
            np.testing.assert_array_equal(decode(rewritten.jpeg), decode(jpeg))
            assert core.jpeg_header(rewritten.jpeg).sampling == ((1, 1),)
            assert len(rewritten.index) - 1 == -(-7 * 6 // 2)


def test_an_extended_frame_becomes_baseline() -> None:
    jpeg = encode(sample_image(50, 40), "420")
    assert core.rewrite(replace_frame(jpeg, marker=0xC1)).jpeg == core.rewrite(jpeg).jpeg


def test_a_16_bit_quantization_table_stays_extended() -> None:
    """Baseline has no 16-bit tables. Pillow, simplejpeg and OpenCV read extended frames."""
    narrow = encode(sample_image(50, 40), "420")
    at = narrow.index(b"\xff\xdb\0\x43\0") + 5
    wide = b"".join(
        (value + 300 * (i > 40)).to_bytes(2, "big") for i, value in enumerate(narrow[at : at + 64])
    )
    jpeg = replace_frame(
        narrow[: at - 5] + b"\xff\xdb\0\x83\x10" + wide + narrow[at + 64 :], marker=0xC1
    )
    assert not np.array_equal(decode(jpeg), decode(narrow))
    for fast in (True, False):
        written = core.rewrite(jpeg, fast=fast).jpeg
        assert core.jpeg_header(written).sof == 0xC1
        np.testing.assert_array_equal(decode(written), decode(jpeg))
        np.testing.assert_array_equal(decode_by_pillow(written), decode_by_pillow(jpeg))


def test_unusual_files_keep_pixels_and_sampling() -> None:
    """Non-interleaved scans and rare sampling factors keep their pixels or raise a clear error."""
    rejected = {}
    for path in sorted((corpus_dir() / "odd" / "unusual").iterdir()):
        jpeg = path.read_bytes()
        try:
            written = core.rewrite(jpeg, orient=False).jpeg
        except core.BadJpeg as error:
            rejected[path.name] = str(error)
            continue
        header = core.jpeg_header(written)
        before = core.jpeg_header(jpeg)
        assert (header.width, header.height) == (before.width, before.height), path.name
        assert (header.sof, header.n_scans) == (0xC0, 1), path.name
        sampling = before.sampling if len(before.sampling) > 1 else ((1, 1),)
        assert header.sampling == sampling, path.name
        np.testing.assert_array_equal(
            decode_by_pillow(written), decode_by_pillow(jpeg), err_msg=path.name
        )
    assert "CMYK" in rejected["cymk.jpg"]
    assert "four components" in rejected["four_components.jpg"]
    assert len(rejected) <= 6, rejected
