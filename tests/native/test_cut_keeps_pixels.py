"""Inside its region, a cut JPEG has the pixels of the whole image, bit for bit."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from typing import cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.corpus import photos
from tests.jpeg_samples import (
    SAMPLINGS,
    Pixels,
    decode,
    decode_by_pillow,
    encode,
    markers,
    replace_frame,
    sample_image,
)

core = pytest.importorskip("fastload._core", reason="not run: no native core")

LONG = os.environ.get("FASTLOAD_LONG") == "1"
Box = tuple[int, int, int, int]


def assert_cut_keeps_pixels(
    jpeg: bytes, index: object, interval: int, box: Box, whole: Pixels
) -> bytes:
    """Cuts, decodes and compares; returns the cut JPEG."""
    x, y, w, h = box
    found = core.cut(jpeg, index, interval, x, y, w, h)
    left = x - found.x0
    top = y - found.y0
    assert left >= 0
    assert top >= 0
    np.testing.assert_array_equal(
        decode(found.jpeg)[top : top + h, left : left + w],
        whole[y : y + h, x : x + w],
        err_msg=f"{box} from {found.x0},{found.y0}",
    )
    return bytes(found.jpeg)


def random_box(rng: np.random.Generator, width: int, height: int) -> Box:
    w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
    return int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1)), w, h


@st.composite
def images_and_boxes(draw: st.DrawFn) -> tuple[bytes, int, Box]:
    width, height = draw(st.integers(1, 150)), draw(st.integers(1, 120))
    jpeg = encode(
        sample_image(width, height, draw(st.integers(0, 5))),
        draw(st.sampled_from(SAMPLINGS)),
        draw(st.sampled_from((30, 75, 95))),
    )
    x, y = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    return (
        jpeg,
        draw(st.integers(1, 40)),
        (x, y, draw(st.integers(1, width - x)), draw(st.integers(1, height - y))),
    )


@settings(
    max_examples=3000 if LONG else 300, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(images_and_boxes())
def test_random_images_intervals_and_regions(case: tuple[bytes, int, Box]) -> None:
    jpeg, restart, box = case
    rewritten = core.rewrite(jpeg, restart=restart)
    written = rewritten.jpeg
    assert_cut_keeps_pixels(written, rewritten.index, restart, box, decode(written))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_many_regions_per_sampling(sampling: str) -> None:
    """FASTLOAD_LONG=1 tests 10,000 regions over all samplings."""
    rng = np.random.default_rng(SAMPLINGS.index(sampling))
    for seed in range(70 if LONG else 10):
        width, height = int(rng.integers(1, 200)), int(rng.integers(1, 160))
        across = -(-width // (8 * {"422": 2, "420": 2, "411": 4}.get(sampling, 1)))
        divisors = [n for n in range(1, across + 1) if across % n == 0]
        restart = int(rng.choice(divisors)) if seed % 3 else int(rng.integers(1, 2 * across + 1))
        rewritten = core.rewrite(
            encode(sample_image(width, height, seed), sampling, int(rng.integers(20, 100))),
            restart=restart,
        )
        jpeg = rewritten.jpeg
        whole = decode(jpeg)
        for _ in range(25):
            box = random_box(rng, width, height)
            assert_cut_keeps_pixels(jpeg, rewritten.index, restart, box, whole)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_regions_at_every_mcu_border(sampling: str) -> None:
    """Regions start or end at, just before and just after every MCU border."""
    for size in (67, 64, 49, 33, 19, 17):
        rewritten = core.rewrite(encode(sample_image(size, size), sampling), restart=1)
        jpeg = rewritten.jpeg
        index = rewritten.index
        interval = rewritten.interval
        whole = decode(jpeg)
        stops = sorted(
            {min(max(at + d, 0), size) for at in range(0, size + 1, 8) for d in (-1, 0, 1)} | {size}
        )
        for start, stop in ((a, b) for a in stops for b in stops if a < b):
            assert_cut_keeps_pixels(jpeg, index, interval, (start, 0, stop - start, size), whole)
            assert_cut_keeps_pixels(jpeg, index, interval, (0, start, size, stop - start), whole)
            assert_cut_keeps_pixels(
                jpeg, index, interval, (start, start, stop - start, stop - start), whole
            )


def test_cut_photos_are_equal_in_two_decoders() -> None:
    rng = np.random.default_rng(3)
    smaller = []
    for path in photos(30):
        rewritten = core.rewrite(path.read_bytes())
        jpeg = rewritten.jpeg
        index = rewritten.index
        width = rewritten.width
        height = rewritten.height
        interval = rewritten.interval
        whole = decode(jpeg)
        for _ in range(6):
            box = random_box(rng, width, height)
            part = assert_cut_keeps_pixels(jpeg, index, interval, box, whole)
            smaller.append(len(part) / len(jpeg))
            np.testing.assert_array_equal(decode_by_pillow(part), np.squeeze(decode(part)))
    assert np.mean(smaller) < 0.6


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("scale", [1, 2, 4, 8])
def test_a_cut_keeps_pixels_in_scaled_decoding(sampling: str, scale: int) -> None:
    """A scaled decode finds the same pixels in the cut as in the whole image."""
    rng = np.random.default_rng(scale)

    def scaled(jpeg: bytes) -> Pixels:
        image = Image.open(io.BytesIO(jpeg))
        # Pillow derives the scale from the sizes. A slightly smaller size selects this scale.
        image.draft(
            None, cast(tuple[int, int], (image.width / scale * 0.999, image.height / scale * 0.999))
        )
        return np.asarray(image)

    for seed in range(12):
        width, height = int(rng.integers(60, 200)), int(rng.integers(60, 200))
        rewritten = core.rewrite(encode(sample_image(width, height, seed), sampling), restart=1)
        jpeg = rewritten.jpeg
        index = rewritten.index
        interval = rewritten.interval
        whole = scaled(jpeg)
        assert whole.shape[:2] == (-(-height // scale), -(-width // scale))
        for _ in range(10):
            x, y, w, h = random_box(rng, width, height)
            part = core.cut(jpeg, index, interval, x, y, w, h, scale=scale)
            assert part.x0 % 8 == part.y0 % 8 == 0
            inside = whole[y // scale : -(-(y + h) // scale), x // scale : -(-(x + w) // scale)]
            top = y // scale - part.y0 // scale
            left = x // scale - part.x0 // scale
            found = scaled(part.jpeg)[top : top + inside.shape[0], left : left + inside.shape[1]]
            np.testing.assert_array_equal(
                found, inside, err_msg=f"{(x, y, w, h)} of {width}x{height}"
            )


@pytest.mark.skipif(
    shutil.which("cjpeg") is None, reason="not run: no cjpeg (Debian: libjpeg-turbo-progs)"
)
@pytest.mark.parametrize(
    "factors",
    [
        "1x1,2x2,2x2",
        "1x1,2x1,1x1",
        "2x2,1x2,1x2",
        "2x2,2x1,1x1",
        "4x2,1x1,1x1",
        "1x1,1x2,2x1",
        "3x1,1x1,1x1",
    ],
)
def test_a_cut_keeps_pixels_with_rare_sampling_factors(factors: str) -> None:
    rng = np.random.default_rng(0)
    for width, height in ((97, 83), (33, 70), (5, 6)):
        portable = b"P6 %d %d 255\n" % (width, height) + sample_image(width, height).tobytes()
        jpeg = subprocess.run(
            ["cjpeg", "-sample", factors], input=portable, capture_output=True, check=True
        ).stdout
        for restart in (1, 2, 7):
            rewritten = core.rewrite(jpeg, restart=restart)
            written = rewritten.jpeg
            index = rewritten.index
            interval = rewritten.interval
            assert core.jpeg_header(written).sampling == core.jpeg_header(jpeg).sampling
            whole = decode_by_pillow(written)
            np.testing.assert_array_equal(whole, decode_by_pillow(jpeg))
            for _ in range(15):
                x, y, w, h = random_box(rng, width, height)
                part = core.cut(written, index, interval, x, y, w, h)
                left = x - part.x0
                top = y - part.y0
                np.testing.assert_array_equal(
                    decode_by_pillow(part.jpeg)[top : top + h, left : left + w],
                    whole[y : y + h, x : x + w],
                )


def test_gray_images_may_declare_any_sampling_factors() -> None:
    """With one component an MCU is one block, regardless of the factors."""
    rewritten = core.rewrite(encode(sample_image(100, 77), "gray"), restart=1)
    jpeg = rewritten.jpeg
    index = rewritten.index
    width = rewritten.width
    height = rewritten.height
    interval = rewritten.interval
    frame = dict(markers(jpeg))[0xC0]
    odd = replace_frame(jpeg, body=frame[:7] + b"\x22" + frame[8:])
    found, found_interval = core.find_segments(odd)
    assert (found.tolist(), found_interval) == (index.tolist(), interval)
    rng = np.random.default_rng(0)
    for _ in range(30):
        assert_cut_keeps_pixels(
            odd, found, found_interval, random_box(rng, width, height), decode(jpeg)
        )


def test_a_cut_is_a_small_regular_jpeg() -> None:
    """It has the right size, RST0, RST1 ... in order, and only the MCUs it needs."""
    rewritten = core.rewrite(encode(sample_image(200, 200), "420"), restart=1)
    jpeg = rewritten.jpeg
    index = rewritten.index
    interval = rewritten.interval
    cut = core.cut(jpeg, index, interval, 70, 40, 50, 60)
    part = cut.jpeg
    assert (cut.x0, cut.y0) == (64, 32)
    header = core.jpeg_header(part)
    assert (header.width, header.height) == (64, 80)
    assert header.restart_interval == interval
    assert header.complete
    found, found_interval = core.find_segments(part)
    assert found_interval == interval
    assert len(found) - 1 == 4 * 5
    before, after = list(markers(jpeg)), list(markers(part))
    assert [marker for marker, _ in before] == [marker for marker, _ in after]
    assert [body for marker, body in before if marker != 0xC0] == [
        body for marker, body in after if marker != 0xC0
    ]
    again = core.cut(part, found, interval, 17, 17, 1, 1)  # a cut can be cut
    np.testing.assert_array_equal(
        decode(again.jpeg)[17 - again.y0, 17 - again.x0],
        decode(jpeg)[cut.y0 + 17, cut.x0 + 17],
    )
    assert len(again.jpeg) < len(part)


def test_only_subsampled_chroma_extends_the_region() -> None:
    """A region on MCU borders needs a neighbor with subsampled chroma, and none without."""
    for sampling, expected in (
        ("444", (32, 32, 16, 16)),
        ("gray", (32, 32, 16, 16)),
        ("422", (16, 32, 48, 16)),
        ("420", (16, 16, 48, 48)),
        ("440", (32, 16, 16, 48)),
    ):
        rewritten = core.rewrite(encode(sample_image(160, 160), sampling), restart=1)
        part = core.cut(rewritten.jpeg, rewritten.index, rewritten.interval, 32, 32, 16, 16)
        header = core.jpeg_header(part.jpeg)
        assert (part.x0, part.y0, header.width, header.height) == expected, sampling


def test_images_are_cut_before_rows_that_start_a_segment() -> None:
    """Segments may be a part of a row, whole rows, or cross the end of a row."""
    for restart, expected in (
        (20, (0, 40, 160, 16)),
        (40, (0, 32, 160, 32)),
        (8, (0, 32, 160, 32)),
        (7, (0, 0, 160, 56)),
        (399, (0, 0, 160, 160)),
    ):
        rewritten = core.rewrite(encode(sample_image(160, 160), "444"), restart=restart)
        jpeg = rewritten.jpeg
        index = rewritten.index
        interval = rewritten.interval
        part = core.cut(jpeg, index, interval, 80, 40, 8, 16)
        header = core.jpeg_header(part.jpeg)
        assert (part.x0, part.y0, header.width, header.height) == expected, restart
        assert_cut_keeps_pixels(jpeg, index, interval, (80, 40, 8, 16), decode(jpeg))
