"""The nvJPEG backend on the CPU is bit-identical to the native core for every plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload._common.native import core
from fastload._decode.backend import Codec, DecodeBatch, Filter, PixelFormat, Status, new_requests
from tests.corpus import photos
from tests.decoding import native, pixels_of, raw_pixels, reference, run
from tests.gpu_backends import nvjpeg
from tests.jpeg_samples import SAMPLINGS, encode, encode_by_pillow, sample_image

JPEGS = [
    *(encode(sample_image(120, 90, seed), kind) for seed, kind in enumerate(SAMPLINGS)),
    encode_by_pillow(sample_image(100, 70), "422", progressive=True),
    encode_by_pillow(sample_image(90, 110), "420", restart_marker_rows=1),
    encode(sample_image(1, 1), "420"),
    encode(sample_image(3, 50), "444"),
]
SIZES = [(120, 90)] * len(SAMPLINGS) + [(100, 70), (90, 110), (1, 1), (3, 50)]


@settings(max_examples=80)
@given(st.data())
def test_same_pixels_for_any_plan(data: st.DataObject) -> None:
    draw = data.draw
    which, orientation = (
        draw(st.integers(0, len(JPEGS) - 1)),
        draw(st.sampled_from([1, 1, 1, 3, 6])),
    )
    width, height = SIZES[which][::-1] if orientation >= 5 else SIZES[which]
    w, h = draw(st.integers(1, width)), draw(st.integers(1, height))
    out_w, out_h, left, top = (
        draw(st.integers(low, high)) for low, high in ((1, 70), (1, 70), (0, 9), (0, 9))
    )
    color: Any = draw(st.sampled_from(["rgb", "bgr", "gray"]))
    channels = 1 if color == "gray" else 3
    pixels = PixelFormat(
        draw(st.sampled_from(["nhwc", "nchw"])), color, 3, (0.5,) * channels, (0.2,) * channels
    )
    columns: dict[str, Any] = {
        "x": draw(st.integers(0, width - w)),
        "y": draw(st.integers(0, height - h)),
        "w": w,
        "h": h,
        "pad_left": left,
        "pad_top": top,
        "flip": draw(st.integers(0, 1)),
        "exact": 1,
        "orientation": orientation,
        "filter": draw(st.sampled_from(list(Filter))),
        "pixels": pixels,
        "canvas": (out_w + left + 3, out_h + top),
        "channels": channels,
        "dtype": draw(st.sampled_from([np.uint8, np.float32, np.float16])),
    }
    found, exact, plain = (
        pixels_of(backend, JPEGS[which], (out_w, out_h), **columns)
        for backend in (nvjpeg(), native(), reference())
    )
    assert np.array_equal(found, exact)
    if columns["dtype"] is np.uint8:
        assert abs(found.astype(int) - plain.astype(int)).max() <= 1


def test_photographs_cut_before_decoding() -> None:
    """Uses packed streams with their index and random crops, like the loader."""
    module = core()
    if module is None:
        pytest.skip("not run: no native core")
    rng = np.random.default_rng(2)
    sources, rows = [], []
    for path in photos(24):
        rewritten = module.rewrite(path.read_bytes())
        data = rewritten.jpeg
        index = rewritten.index
        width = rewritten.width
        height = rewritten.height
        interval = rewritten.interval
        orientation = rewritten.orientation
        sources.append(bytes(data) + index.tobytes())
        w, h = int(rng.integers(width // 4, width + 1)), int(rng.integers(height // 4, height + 1))
        w, h = (
            min(w, height if orientation >= 5 else width),
            min(h, width if orientation >= 5 else height),
        )
        rows.append(
            {
                "size": len(data),
                "index_offset": len(data),
                "index_count": len(index),
                "interval": interval,
                "w": w,
                "h": h,
                "orientation": orientation,
                "flip": int(rng.integers(0, 2)),
            }
        )
    requests = new_requests(len(rows))
    for slot, row in enumerate(rows):
        for name, value in row.items():
            requests[name][slot] = value
    requests["out_w"], requests["out_h"], requests["exact"] = 160, 128, 1
    found = []
    for backend in (nvjpeg(), native(), reference()):
        output = np.zeros((len(rows), 128, 160, 3), np.uint8)
        result = backend.collect(backend.submit(DecodeBatch(sources, requests, output)))
        result.raise_first()
        found.append(output.astype(int))
    assert np.array_equal(found[0], found[1])
    assert abs(found[0] - found[2]).max() <= 1


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_masks_are_equal(dtype: type) -> None:
    labels = np.random.default_rng(1).integers(
        0, np.iinfo(dtype).max, (61, 83, 1), dtype, endpoint=True
    )
    for options in ({}, {"flip": 1, "x": 5, "y": 7, "w": 50, "h": 33}):
        found, expected = (
            raw_pixels(backend, labels, (40, 30), filter=Filter.NEAREST, **options)
            for backend in (nvjpeg(), native())
        )
        assert np.array_equal(found, expected)


def test_raw_and_jpeg_rows_in_one_batch() -> None:
    image = sample_image(64, 48)
    sources = [JPEGS[0], image.tobytes(), JPEGS[2], JPEGS[0][:200], JPEGS[5]]
    requests = new_requests(5)
    requests["out_w"], requests["out_h"], requests["exact"] = 32, 24, 1
    raw = {"codec": Codec.RAW, "raw_w": 64, "raw_h": 48, "raw_channels": 3, "raw_bits": 8}
    for name, value in raw.items():
        requests[name][1] = value
    outputs = []
    for backend in (nvjpeg(), native()):
        output = np.full((5, 24, 32, 3), 77, np.uint8)
        result = backend.collect(
            backend.submit(DecodeBatch(sources, requests, output, PixelFormat(fill=4)))
        )
        assert result.status.tolist() == [
            Status.OK,
            Status.OK,
            Status.OK,
            Status.BAD_IMAGE,
            Status.OK,
        ]
        outputs.append(output)
    assert np.array_equal(outputs[0], outputs[1])
    assert (outputs[0][3] == 4).all()


def test_an_exif_orientation_in_the_file_is_not_applied_twice() -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    file = encode_by_pillow(sample_image(90, 60), "420", exif=exif.tobytes())
    for options in ({}, {"orientation": 6}):
        found, expected = (
            pixels_of(backend, file, (45, 45), exact=1, **options)
            for backend in (nvjpeg(), native())
        )
        assert np.array_equal(found, expected)


def test_times_are_reported_for_cut_decode_and_resize() -> None:
    result = run(nvjpeg(), JPEGS[:2], (40, 30))
    assert (result.times_ns[:, 1:4] > 0).all()
