"""The rewrite rejects other codings, damage and images beyond the limits, and then still works."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastload._store import jpeg_header as limits
from tests.corpus import corpus_dir, photos
from tests.jpeg_samples import (
    decode,
    decode_by_pillow,
    encode,
    encode_by_pillow,
    markers,
    replace_frame,
    sample_image,
)

core = pytest.importorskip("fastload._core", reason="not run: no native core")


@pytest.fixture(autouse=True)
def _good_image_still_works() -> Iterator[None]:
    good = encode(sample_image(90, 50), "420")
    before = core.rewrite(good).jpeg
    yield
    assert core.rewrite(good).jpeg == before
    np.testing.assert_array_equal(decode(before), decode(good))


def assert_rejected(jpeg: bytes, match: str, **options: int) -> None:
    for paths in ({}, {"keep_tables": False}, {"fast": False}):
        with pytest.raises(core.BadJpeg, match=match):
            core.rewrite(jpeg, **paths, **options)


def frame_of(jpeg: bytes) -> bytes:
    return next(body for marker, body in markers(jpeg) if marker in (0xC0, 0xC2))


def test_unsupported_codings_raise() -> None:
    jpeg = encode(sample_image(30, 20), "444")
    frame = frame_of(jpeg)
    assert_rejected(replace_frame(jpeg, marker=0xC9), "arithmetic coding")
    assert_rejected(replace_frame(jpeg, marker=0xCA), "arithmetic coding")
    assert_rejected(replace_frame(jpeg, marker=0xC3), r"SOF3 \(lossless or hierarchical\)")
    assert_rejected(replace_frame(jpeg, marker=0xC5), r"SOF5 \(lossless or hierarchical\)")
    assert_rejected(replace_frame(jpeg, body=b"\x0c" + frame[1:]), "12 bits per sample, expected 8")
    assert_rejected(replace_frame(jpeg, body=frame[:5] + b"\2" + frame[6:12]), "two components")
    out = io.BytesIO()
    Image.fromarray(np.zeros((20, 30, 4), np.uint8), "CMYK").save(out, "JPEG")
    assert_rejected(out.getvalue(), "CMYK")


@pytest.mark.skipif(
    shutil.which("cjpeg") is None, reason="not run: no cjpeg (Debian: libjpeg-turbo-progs)"
)
def test_too_many_blocks_per_mcu_for_one_scan_raise(tmp_path: Path) -> None:
    """An MCU of 12 blocks is legal in three scans. One scan allows 10."""
    (tmp_path / "scans").write_text("0; 1; 2;")
    jpeg = subprocess.run(
        ["cjpeg", "-sample", "2x2,2x2,2x2", "-scans", str(tmp_path / "scans")],
        check=True,
        capture_output=True,
        input=b"P6 40 30 255\n" + sample_image(40, 30).tobytes(),
    ).stdout
    assert_rejected(jpeg, "[Ss]ampling factors too large")


def test_files_that_are_not_jpegs_raise() -> None:
    for data in (b"", b"\xff", b"\x89PNG\r\n\x1a\n" + bytes(100), b"\xff\xd8\xff\xd9", bytes(1000)):
        assert_rejected(data, "JPEG|frame")


def test_tables_of_the_previous_image_are_not_used() -> None:
    """libjpeg keeps its tables when an object is reused."""
    jpeg = bytes(core.rewrite(encode(sample_image(30, 20), "444", 60), optimize=False).jpeg)

    def without(marker: bytes) -> bytes:
        data = jpeg
        while (at := data.find(b"\xff" + marker)) >= 0:
            data = data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]
        return data

    core.rewrite(encode(sample_image(90, 50), "444", 20))
    assert_rejected(without(b"\xdb"), "[Qq]uantization table")
    # Without Huffman tables the standard tables apply (motion JPEG). optimize=False wrote those.
    for fast in (True, False):
        np.testing.assert_array_equal(
            decode(core.rewrite(without(b"\xc4"), fast=fast).jpeg), decode(jpeg)
        )


def test_too_large_dc_values_raise_if_a_restart_marker_needs_them() -> None:
    """No decoder needs more than 2047. A sum of two differences can be larger."""
    jpeg = encode_by_pillow(np.full((16, 8, 3), 128, np.uint8), "gray", optimize=True)
    data = b"\xff\xd8"
    for marker, old in markers(jpeg):
        body = old
        if marker == 0xC4:  # one code, "0": a difference of 11 bits, or the end of block
            body = old[:1] + b"\1" + bytes(15) + (b"\x00" if old[0] else b"\x0b")
        data += bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body
    bits = ("0" + "1" * 11 + "0") * 2 + "1" * 6
    data += int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0") + b"\xff\xd9"
    assert core.rewrite(data, restart=0).jpeg == data
    assert_rejected(data, "DCT coefficient out of range", restart=1)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 4}])
def test_truncated_files_raise(options: dict[str, int]) -> None:
    jpeg = encode_by_pillow(sample_image(60, 40), "420", 85, **options)
    for length in range(0, len(jpeg) - 1, 7):
        for fast in (True, False):
            with pytest.raises(core.BadJpeg):
                core.rewrite(jpeg[:length], fast=fast)
            with pytest.raises(core.BadJpeg):
                core.rewrite(jpeg[:length] + b"\xff\xd9", fast=fast)


def test_missing_scans_raise() -> None:
    """libjpeg smooths such an image and would not smooth the rewritten one."""
    jpeg = encode_by_pillow(sample_image(60, 40), "420", progressive=True)
    starts = [at for at in range(len(jpeg)) if jpeg.startswith(b"\xff\xda", at)]
    assert len(starts) > 5
    for start in starts[1:]:
        # the tables of a scan precede it
        cut = min(
            (
                at
                for at in (jpeg.rfind(b"\xff\xc4", 0, start),)
                if at > jpeg.rfind(b"\xff\xda", 0, start)
            ),
            default=start,
        )
        coarse = jpeg[:cut] + b"\xff\xd9"
        decode(coarse)
        assert_rejected(coarse, "scans are missing")


def test_damaged_data_raise() -> None:
    jpeg = encode_by_pillow(sample_image(60, 40), "420", restart_marker_blocks=4)
    assert_rejected(jpeg.replace(b"\xff\xd1", b"\xff\xd2", 1), "found marker|[Cc]orrupt")
    assert_rejected(jpeg.replace(b"\xff\xd1", b"", 1), "[Cc]orrupt")
    assert_rejected(jpeg[:-2] + b"\1\2\3" * 9 + b"\xff\xd9", "extraneous bytes")
    assert_rejected(jpeg.replace(b"\xff\xd1", b"\1\2\3" * 9 + b"\xff\xd1", 1), "extraneous bytes")
    assert_rejected(jpeg[:20] + b"\1\2\3" + jpeg[20:], "extraneous bytes")
    assert_rejected(jpeg[:-2], "Premature end")


def test_harmless_oddities_give_a_warning_or_nothing() -> None:
    jpeg = encode(sample_image(60, 40), "420")
    adobe = jpeg[:2] + b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\x07" + jpeg[20:]
    for odd, word in ((jpeg[:11] + b"\x02" + jpeg[12:], "JFIF revision"), (adobe, "Adobe")):
        rewritten = core.rewrite(odd)
        assert word in rewritten.warning
        np.testing.assert_array_equal(decode(rewritten.jpeg), decode(jpeg))
        assert core.rewrite(rewritten.jpeg).warning == ""
    for odd in (
        jpeg + b"after the end",
        jpeg[:20] + b"\xff" * 9 + jpeg[20:],
        jpeg[:-2] + b"\xff\xff\xff\xd9",
    ):
        assert core.rewrite(odd).jpeg == core.rewrite(jpeg).jpeg
        assert core.rewrite(odd).warning == ""


def test_flipped_bits_raise_or_keep_the_decoded_pixels() -> None:
    """A damaged file raises, or the result equals what a strict decoder returns for it."""
    rng = np.random.default_rng(5)
    accepted = 0
    for jpeg in (
        encode(sample_image(100, 70), "420"),
        encode_by_pillow(sample_image(100, 70), "444", restart_marker_blocks=3),
        encode_by_pillow(sample_image(100, 70), "420", progressive=True),
        encode_by_pillow(sample_image(100, 70), "420", optimize=True),
    ):
        for _ in range(150):
            damaged = bytearray(jpeg)
            for _ in range(int(rng.integers(1, 4))):
                damaged[int(rng.integers(2, len(jpeg)))] ^= 1 << int(rng.integers(0, 8))
            data = bytes(damaged)
            try:
                rewritten = core.rewrite(data, orient=False)
            except core.BadJpeg:
                with pytest.raises(core.BadJpeg):
                    core.rewrite(data, orient=False, fast=False)
                continue
            accepted += 1
            slow = core.rewrite(data, orient=False, fast=False)
            assert core.rewrite(data, orient=False, keep_tables=False).jpeg == slow.jpeg
            assert slow.interval == rewritten.interval
            np.testing.assert_array_equal(
                decode(rewritten.jpeg), decode(data, strict=not rewritten.warning)
            )
    assert accepted > 20  # otherwise the comparison above tests nothing


def test_limits_equal_the_python_limits() -> None:
    for name in ("MAX_SIDE", "MAX_PIXELS", "MAX_PIXELS_PER_BYTE", "MAX_SCANS"):
        assert getattr(core, name) == getattr(limits, name)


def test_images_beyond_the_limits_raise() -> None:
    jpeg = encode(sample_image(64, 64), "444")
    frame = frame_of(jpeg)

    def sized(width: int, height: int) -> bytes:
        return replace_frame(
            jpeg, body=frame[:1] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + frame[5:]
        ) + bytes(200_000)

    assert_rejected(sized(16_385, 1), "sides may be at most 16384")
    assert_rejected(sized(16_000, 16_000), "at most 64 megapixels")
    assert_rejected(sized(16_000, 4_000)[:1000], "pixels per byte")
    assert_rejected(sized(16_000, 1_000), "premature end|Premature end|pixels per byte")


def test_too_many_scans_raise() -> None:
    jpeg = encode_by_pillow(sample_image(16, 16), "444", progressive=True)
    start = jpeg.rindex(b"\xff\xda")
    scan = jpeg[start:-2]
    assert_rejected(jpeg[:-2] + scan * 130 + b"\xff\xd9", "scans: at most 128")
    # libjpeg reads fewer scans and finds a bit that is refined twice
    assert_rejected(jpeg[:-2] + scan * 20 + b"\xff\xd9", "progression sequence")


def test_fuzzed_files_raise_or_keep_pixels() -> None:
    """Files from fuzzers raise or keep their pixels, and do not affect the next image."""
    good = photos(1)[0].read_bytes()
    expected = core.rewrite(good).jpeg
    paths = sorted(path for path in (corpus_dir() / "odd").rglob("*") if path.is_file())
    accepted = 0
    for i, path in enumerate(paths if os.environ.get("FASTLOAD_LONG") == "1" else paths[::2]):
        jpeg = path.read_bytes()
        try:
            written = core.rewrite(jpeg, orient=False).jpeg
        except core.BadJpeg:
            pass
        else:
            accepted += 1
            np.testing.assert_array_equal(
                decode_by_pillow(written), decode_by_pillow(jpeg), err_msg=path.name
            )
        if i % 50 == 0:
            assert core.rewrite(good).jpeg == expected
    assert accepted > 5
