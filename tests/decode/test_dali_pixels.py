"""DALI on the CPU matches the reference: within 1 inside, more in the outermost pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload._common.native import core
from fastload._decode.backend import Codec, DecodeBatch, Filter, PixelFormat, new_requests
from tests.corpus import photos
from tests.decoding import native, pixels_of, raw_pixels, reference
from tests.gpu_backends import (
    INTERIOR,
    RING,
    assert_close_to_reference,
    dali,
    max_differences,
)
from tests.jpeg_samples import SAMPLINGS, encode, encode_by_pillow, sample_image

SIZES = [(120, 90), (61, 133), (16, 16), (17, 9), (250, 40)]
JPEGS = [
    (encode(sample_image(*size, seed=number), sampling), size)
    for number, size in enumerate(SIZES)
    for sampling in SAMPLINGS
]
UNUSUAL = [
    (encode_by_pillow(sample_image(100, 70), "422", progressive=True), (100, 70)),
    (encode_by_pillow(sample_image(90, 64), "420", restart_marker_rows=1), (90, 64)),
]


@settings(max_examples=120)
@given(st.data())
def test_same_pixels_as_the_reference(data: st.DataObject) -> None:
    draw = data.draw
    jpeg, (width, height) = draw(st.sampled_from(JPEGS + UNUSUAL))
    w, h = draw(st.integers(2, width)), draw(st.integers(2, height))
    out_w, out_h, left, top = (
        draw(st.integers(2, 70)),
        draw(st.integers(2, 70)),
        draw(st.integers(0, 9)),
        draw(st.integers(0, 9)),
    )
    color: Any = draw(st.sampled_from(["rgb", "bgr", "gray"]))
    padded = draw(st.booleans())
    canvas = (out_w + left + 3, out_h + top) if padded else (out_w, out_h)
    left, top = (left, top) if padded else (0, 0)
    columns: dict[str, Any] = {
        "x": draw(st.integers(0, width - w)),
        "y": draw(st.integers(0, height - h)),
        "w": w,
        "h": h,
        "pad_left": left,
        "pad_top": top,
        "flip": draw(st.integers(0, 1)),
        "exact": 1,
        "filter": draw(st.sampled_from([Filter.ANTIALIAS, Filter.BILINEAR])),
    }
    options: dict[str, Any] = {
        "pixels": PixelFormat(draw(st.sampled_from(["nhwc", "nchw"])), color, 3),
        "canvas": canvas,
        "channels": 1 if color == "gray" else 3,
    }
    found, wanted = (
        pixels_of(backend, jpeg, (out_w, out_h), **options, **columns)
        for backend in (dali(), reference())
    )
    if options["pixels"].layout == "nchw":
        found, wanted = found.transpose(1, 2, 0), wanted.transpose(1, 2, 0)
    inner = np.s_[top : top + out_h, left : left + out_w]
    assert_close_to_reference(found[inner], wanted[inner])
    outside = found.copy()
    outside[inner] = 3
    assert (outside == 3).all()


@pytest.mark.parametrize("size", [(224, 224), (96, 160), (1, 1), (7, 300)])
def test_photos_cut_from_their_restart_index(size: tuple[int, int]) -> None:
    """Cuts packed photos to half of the image; the reference decodes the complete image."""
    module = core()
    if module is None:
        pytest.skip("not run: no native core")
    sources, requests = [], new_requests(24)
    for row, path in enumerate(photos(24)):
        rewritten = module.rewrite(path.read_bytes())
        jpeg = rewritten.jpeg
        index = rewritten.index
        width = rewritten.width
        height = rewritten.height
        interval = rewritten.interval
        sources.append(jpeg + index.tobytes())
        for name, value in (
            ("size", len(jpeg)),
            ("index_offset", len(jpeg)),
            ("index_count", len(index)),
            ("interval", interval),
            ("x", width // 5),
            ("y", height // 3),
            ("w", width // 2 + 1),
            ("h", height // 2 + 1),
            ("flip", row % 2),
        ):
            requests[name][row] = value
    requests["out_h"], requests["out_w"], requests["exact"] = *size, 1
    outputs = []
    for backend in (dali(), native(), reference()):
        output = np.zeros((24, *size, 3), np.uint8)
        backend.collect(backend.submit(DecodeBatch(sources, requests, output))).raise_first()
        outputs.append(output)
    for found, *others in zip(*outputs, strict=True):
        for wanted in others:
            inside, ring, corners = max_differences(found, wanted)
            assert inside <= INTERIOR
            assert max(ring, corners) <= (
                RING if min(size) > 1 else 64
            )  # a single pixel has both neighbors outside


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_normalization_is_bit_identical_to_the_native_core(dtype: torch.dtype, layout: Any) -> None:
    """Compares the pixels that both backends decode to the same uint8 value."""
    jpeg, size = JPEGS[0]
    form: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    shape = (1, size[1], size[0], 3) if layout == "nhwc" else (1, 3, size[1], size[0])
    outputs = [
        pixels_of(
            backend,
            jpeg,
            size,
            pixels=PixelFormat(layout, **options),
            output=torch.zeros(shape, dtype=kind),
        )
        for backend in (dali(), native())
        for options, kind in ((form, dtype), ({}, torch.uint8))
    ]
    found, found_pixels, wanted, wanted_pixels = outputs
    same = found_pixels == wanted_pixels
    assert same.float().mean() > 0.99
    assert torch.equal(found[same], wanted[same])


@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_padding_has_the_fill_color_in_the_channel_order_of_the_output(color: Any) -> None:
    columns: dict[str, Any] = {
        "canvas": (50, 40),
        "pad_left": 5,
        "pad_top": 5,
        "pixels": PixelFormat(color=color, fill=(10, 20, 30)),
    }
    found, wanted = (
        pixels_of(backend, JPEGS[0][0], (40, 30), exact=1, **columns)
        for backend in (dali(), reference())
    )
    assert found[0, 0].tolist() == wanted[0, 0].tolist() == [10, 20, 30]
    assert_close_to_reference(found[5:35, 5:45], wanted[5:35, 5:45])


@pytest.mark.parametrize("bits", [np.uint8, np.uint16])
def test_masks_are_equal(bits: Any) -> None:
    mask = np.random.default_rng(0).integers(0, np.iinfo(bits).max, (50, 70, 1)).astype(bits)
    options: dict[str, Any] = {
        "filter": Filter.NEAREST,
        "x": 3,
        "y": 4,
        "w": 60,
        "h": 41,
        "flip": 1,
        "canvas": (40, 40),
        "pad_top": 6,
        "pixels": PixelFormat(color="stored", fill=9),
    }
    found, wanted = (
        raw_pixels(backend, mask, (40, 30), **options) for backend in (dali(), reference())
    )
    assert np.array_equal(found, wanted)
    assert (found[:6] == 9).all()


@pytest.mark.parametrize("jpeg", [JPEGS[0], JPEGS[5]], ids=["color", "gray"])
def test_nearest_is_exact_for_images(jpeg: tuple[bytes, tuple[int, int]]) -> None:
    found, wanted = (
        pixels_of(backend, jpeg[0], (31, 57), filter=Filter.NEAREST, exact=1)
        for backend in (dali(), reference())
    )
    assert np.array_equal(found, wanted)


def test_a_batch_with_rows_for_dali_and_for_the_cpu() -> None:
    """Rotated, raw and progressive images and another filter go to the CPU; each has its slot."""
    raw = sample_image(30, 20)
    sources = [JPEGS[0][0], JPEGS[1][0], raw.tobytes(), UNUSUAL[0][0], JPEGS[2][0], JPEGS[3][0]]
    requests = new_requests(6)
    requests["out_w"], requests["out_h"], requests["exact"] = 40, 30, 1
    requests["orientation"][1], requests["filter"][4] = 6, Filter.BILINEAR
    for name, value in (
        ("codec", Codec.RAW),
        ("raw_w", 30),
        ("raw_h", 20),
        ("raw_channels", 3),
        ("raw_bits", 8),
    ):
        requests[name][2] = value
    outputs = []
    for backend in (dali(), reference()):
        output = np.full((6, 30, 40, 3), 77, np.uint8)
        backend.collect(backend.submit(DecodeBatch(sources, requests, output))).raise_first()
        outputs.append(output)
    for found, wanted in zip(*outputs, strict=True):
        assert_close_to_reference(found, wanted)
    for row in (1, 2, 3, 4):
        assert max_differences(outputs[0][row], outputs[1][row])[1] <= 1, (
            "rows decoded by the CPU match at the edges, too"
        )
