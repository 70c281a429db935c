"""A partial decode has exactly the pixels of the whole decode."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastload._common.native import core
from tests.corpus import photos
from tests.decoding import libjpeg_alone, native, pixels_of, run
from tests.jpeg_samples import SAMPLINGS, decode, encode, encode_by_pillow, markers, sample_image

module: Any = core()
pytestmark = pytest.mark.skipif(module is None, reason="not run: no native core")
scales = st.sampled_from([1, 2, 4, 8])
# width, height, scale, region of the scaled image (x0, y0, x1, y1)
Part = tuple[int, int, int, tuple[int, int, int, int]]


def region(data: bytes, scale: int, part: tuple[int, int, int, int]) -> NDArray[np.uint8]:
    return np.asarray(module.decode_region(data, scale, *part))


def whole(data: bytes, scale: int = 1) -> NDArray[np.uint8]:
    header = module.jpeg_header(data)
    return region(data, scale, (0, 0, -(-header.width // scale), -(-header.height // scale)))


@st.composite
def parts(draw: st.DrawFn) -> Part:
    width, height, scale = draw(st.integers(1, 170)), draw(st.integers(1, 170)), draw(scales)
    x0, y0 = (
        draw(st.integers(0, -(-width // scale) - 1)),
        draw(st.integers(0, -(-height // scale) - 1)),
    )
    return (
        width,
        height,
        scale,
        (
            x0,
            y0,
            draw(st.integers(x0 + 1, -(-width // scale))),
            draw(st.integers(y0 + 1, -(-height // scale))),
        ),
    )


@settings(max_examples=300)
@given(parts(), st.sampled_from(SAMPLINGS), st.integers(20, 100), st.sampled_from([0, 1, 2, 5, -1]))
def test_a_region_equals_the_whole_decode(
    part: Part, sampling: str, quality: int, restart: int
) -> None:
    width, height, scale, box = part
    data = encode(sample_image(width, height), sampling, quality)
    if restart:
        data = module.rewrite(data, restart=restart).jpeg
    x0, y0, x1, y1 = box
    assert np.array_equal(region(data, scale, box), whole(data, scale)[y0:y1, x0:x1])


@settings(max_examples=60)
@given(parts(), st.sampled_from(["444", "422", "420", "gray"]))
def test_a_region_of_a_progressive_image_equals_the_whole_decode(part: Part, sampling: str) -> None:
    width, height, scale, box = part
    data = encode_by_pillow(sample_image(width, height), sampling, progressive=True)
    x0, y0, x1, y1 = box
    assert np.array_equal(region(data, scale, box), whole(data, scale)[y0:y1, x0:x1])


def test_a_region_of_an_image_with_missing_scans() -> None:
    """libjpeg replaces missing scans by smoothing across blocks. The rewrite rejects such files."""
    jpeg, random = (
        encode_by_pillow(sample_image(150, 110), "420", progressive=True),
        np.random.default_rng(0),
    )
    scans = [place for place in range(len(jpeg)) if jpeg.startswith(b"\xff\xda", place)]
    for last, following in itertools.pairwise(scans):
        tables = jpeg.find(b"\xff\xc4", last, following)
        truncated = jpeg[: tables if tables > 0 else following] + b"\xff\xd9"
        expected = whole(truncated)
        for _ in range(5):
            x0, y0 = int(random.integers(0, 150)), int(random.integers(0, 110))
            x1, y1 = int(random.integers(x0 + 1, 151)), int(random.integers(y0 + 1, 111))
            assert np.array_equal(region(truncated, 1, (x0, y0, x1, y1)), expected[y0:y1, x0:x1])
        with pytest.raises(module.BadJpeg, match="scans are missing"):
            module.rewrite(truncated)


@settings(max_examples=100)
@given(
    st.integers(1, 150),
    st.integers(1, 150),
    st.sampled_from(SAMPLINGS),
    st.integers(1, 100),
    st.sampled_from([0, 1, 3, 1000]),
)
def test_the_whole_decode_equals_simplejpeg(
    width: int, height: int, sampling: str, quality: int, restart: int
) -> None:
    data = encode(sample_image(width, height), sampling, quality)
    data = module.rewrite(data, restart=restart).jpeg if restart else data
    assert np.array_equal(whole(data), decode(data))


@settings(max_examples=150)
@given(
    parts(),
    st.sampled_from(SAMPLINGS),
    st.integers(1, 100),
    st.sampled_from([0, 1, 4]),
    st.integers(0, 2),
)
def test_the_entropy_hook_gives_the_pixels_of_libjpeg(
    part: Part, sampling: str, quality: int, restart: int, kind: int
) -> None:
    width, height, scale, box = part
    flat = np.full((height, width, 3), 90, np.uint8)
    noise = np.random.default_rng(quality).integers(0, 256, flat.shape, np.uint8)
    data = encode((flat, noise, sample_image(width, height))[kind], sampling, quality)
    data = module.rewrite(data, restart=restart).jpeg if restart else data
    hooked = region(data, scale, box)
    with libjpeg_alone():
        assert np.array_equal(hooked, region(data, scale, box))


@pytest.mark.skipif(
    shutil.which("cjpeg") is None, reason="not run: no cjpeg (Debian: libjpeg-turbo-progs)"
)
@pytest.mark.parametrize(
    "factors", ["4x2", "2x4", "4x1", "1x4", "3x1", "2x2,2x1,1x1", "1x1,2x2,2x2"]
)
@pytest.mark.parametrize("scale", [1, 2, 4, 8])
def test_a_region_with_rare_sampling_equals_the_whole_decode(factors: str, scale: int) -> None:
    """With 4x2 and 2x4, libjpeg scales chroma less than the image and must still enlarge it."""
    width, height, random = 191, 150, np.random.default_rng(scale)
    portable = b"P6 %d %d 255\n" % (width, height) + sample_image(width, height).tobytes()
    jpeg = subprocess.run(
        ["cjpeg", "-sample", factors], input=portable, capture_output=True, check=True
    ).stdout
    expected = whole(jpeg, scale)
    for _ in range(30):
        x0, y0 = (int(random.integers(0, side)) for side in (expected.shape[1], expected.shape[0]))
        x1, y1 = (
            int(random.integers(x0 + 1, expected.shape[1] + 1)),
            int(random.integers(y0 + 1, expected.shape[0] + 1)),
        )
        assert np.array_equal(region(jpeg, scale, (x0, y0, x1, y1)), expected[y0:y1, x0:x1]), (
            x0,
            y0,
            x1,
            y1,
        )


def test_photos_equal_simplejpeg() -> None:
    for path in photos(40):
        data = path.read_bytes()
        assert np.array_equal(whole(data), decode(data)), path.name


@settings(max_examples=120)
@given(
    st.integers(20, 300),
    st.integers(20, 300),
    st.sampled_from(SAMPLINGS),
    st.sampled_from([-1, 1, 2, 6]),
    st.data(),
)
def test_a_restart_index_changes_no_pixel(
    width: int, height: int, sampling: str, restart: int, data: st.DataObject
) -> None:
    rewritten = module.rewrite(encode(sample_image(width, height), sampling), restart=restart)
    jpeg = rewritten.jpeg
    index = rewritten.index
    interval = rewritten.interval
    orientation = data.draw(st.integers(1, 8))
    shown_w, shown_h = (height, width) if orientation >= 5 else (width, height)
    w, h = data.draw(st.integers(1, shown_w)), data.draw(st.integers(1, shown_h))
    request = {
        "x": data.draw(st.integers(0, shown_w - w)),
        "y": data.draw(st.integers(0, shown_h - h)),
        "w": w,
        "h": h,
        "size": len(jpeg),
        "orientation": orientation,
    }
    size = (data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60)))
    cut = pixels_of(
        native(),
        jpeg + index.tobytes(),
        size,
        index_offset=len(jpeg),
        index_count=len(index),
        interval=interval,
        **request,
    )
    assert np.array_equal(cut, pixels_of(native(), jpeg, size, **request))


def test_a_wrong_index_never_changes_pixels() -> None:
    rewritten = module.rewrite(encode(sample_image(320, 240), "420"), restart=2)
    jpeg = rewritten.jpeg
    index = rewritten.index
    interval = rewritten.interval
    request: dict[str, Any] = {"x": 100, "y": 50, "w": 90, "h": 80, "size": len(jpeg)}
    right = pixels_of(native(), jpeg, (64, 64), **request)
    for wrong in (index[::-1], index * 0, index + 1, index | 0xFFFFFFFF):
        source = jpeg + wrong.astype("<u4").tobytes()
        found = run(
            native(),
            [source],
            (64, 64),
            index_offset=len(jpeg),
            index_count=len(index),
            interval=interval,
            **request,
        )
        assert not found.ok or np.array_equal(found.output[0], right)
    assert np.array_equal(pixels_of(native(), jpeg, (64, 64), **request), right)


def without(jpeg: bytes, marker: int) -> bytes:
    kept = b"".join(
        bytes((0xFF, each)) + (len(body) + 2).to_bytes(2, "big") + body
        for each, body in markers(jpeg)
        if each != marker
    )
    head = sum(4 + len(body) for _, body in markers(jpeg)) + 2
    return jpeg[:2] + kept + jpeg[head:]


def test_tables_of_the_previous_image_are_not_used() -> None:
    picked = encode(sample_image(64, 48), "420", 90)
    for _ in range(3):
        assert pixels_of(native(), picked, (64, 48)).any()
        no_quantization = run(native(), [without(picked, 0xDB)] * 4, (64, 48))
        assert len(no_quantization.reasons) == 4
        assert "uantization table" in no_quantization.reasons[0]
        # Without Huffman tables the standard tables apply (motion JPEG), not the previous ones.
        optimized = module.rewrite(encode(sample_image(64, 48, seed=3), "420", 30), restart=0).jpeg
        sources = [optimized, without(picked, 0xC4)] * 4
        assert np.array_equal(
            run(native(), sources, (64, 48)).output[1::2],
            np.stack([simplejpeg.decode_jpeg(picked)] * 4),
        )


def test_libjpeg_decides_about_unexpected_markers() -> None:
    jpeg = module.rewrite(encode(sample_image(64, 48), "444"), restart=2).jpeg
    at = jpeg.index(b"\xff\xd0")
    with_fill_byte = jpeg[:at] + b"\xff" + jpeg[at:]
    assert np.array_equal(whole(with_fill_byte), decode(jpeg))
    with pytest.raises(module.BadJpeg, match="found marker 0xd3 instead of RST0"):
        whole(jpeg[: at + 1] + b"\xd3" + jpeg[at + 2 :])
    assert np.array_equal(whole(jpeg), decode(jpeg))


def test_damaged_data_give_the_same_result_with_and_without_the_hook() -> None:
    random = np.random.default_rng(5)
    jpegs = [
        module.rewrite(encode(sample_image(48, 40, seed), sampling, 92), restart=restart).jpeg
        for seed, (sampling, restart) in enumerate([("444", 0), ("420", 1), ("gray", 3)])
    ]
    accepted = 0
    for turn in range(900):
        damaged = bytearray(jpegs[turn % 3])
        start = damaged.index(b"\xff\xda") + 14
        for place in random.integers(start, len(damaged), 1 + turn % 2):
            damaged[place] = random.integers(0, 256)
        hooked = decode_result(bytes(damaged))
        with libjpeg_alone():
            unhooked = decode_result(bytes(damaged))
        assert hooked == unhooked
        accepted += hooked.startswith(b"pixels: ")
    assert 50 < accepted < 850


def test_an_extra_byte_before_a_stuffed_zero_gives_the_same_result() -> None:
    """libjpeg reads FF FF 00 as FF 00, but keeps values of its first attempt."""
    jpeg = encode(sample_image(200, 160), "444", 97)
    start = jpeg.index(b"\xff\xda") + 14
    places = [
        place for place in range(start, len(jpeg) - 2) if jpeg[place : place + 2] == b"\xff\0"
    ]
    assert len(places) > 20
    for place in places[:: len(places) // 20]:
        odd = jpeg[:place] + b"\xff" + jpeg[place:]
        hooked = decode_result(odd, 200, 160)
        with libjpeg_alone():
            assert hooked == decode_result(odd, 200, 160), place


def decode_result(data: bytes, width: int = 48, height: int = 40) -> bytes:
    try:
        return b"pixels: " + region(data, 1, (0, 0, width, height)).tobytes()
    except module.BadJpeg as error:
        return b"error: " + str(error).encode()
