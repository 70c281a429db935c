"""DALI's graph on the CPU gives the pixels of the exact reference: 1 level inside, more only in the outermost ring; masks are equal."""

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
from tests.gpu_backends import CORNER, INTERIOR, RING, dali, worst
from tests.jpeg_samples import SAMPLINGS, encode, encode_by_pillow, picture

SIZES = [(120, 90), (61, 133), (16, 16), (17, 9), (250, 40)]
JPEGS = [
    (encode(picture(*size, seed=number), sampling), size)
    for number, size in enumerate(SIZES)
    for sampling in SAMPLINGS
]
UNUSUAL = [
    (encode_by_pillow(picture(100, 70), "422", progressive=True), (100, 70)),
    (encode_by_pillow(picture(90, 64), "420", restart_marker_rows=1), (90, 64)),
]


def check(one: Any, other: Any) -> None:
    inside, ring, corners = worst(one, other)
    assert inside <= INTERIOR
    assert ring <= RING
    assert corners <= CORNER


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
    asked: dict[str, Any] = {
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
    ours, theirs = (
        pixels_of(backend, jpeg, (out_w, out_h), **options, **asked)
        for backend in (dali(), reference())
    )
    if options["pixels"].layout == "nchw":
        ours, theirs = ours.transpose(1, 2, 0), theirs.transpose(1, 2, 0)
    inner = np.s_[top : top + out_h, left : left + out_w]
    check(ours[inner], theirs[inner])
    outside = ours.copy()
    outside[inner] = 3
    assert (outside == 3).all()


@pytest.mark.parametrize("size", [(224, 224), (96, 160), (1, 1), (7, 300)])
def test_photos_cut_from_their_restart_index(size: tuple[int, int]) -> None:
    """As packed: rewritten with an index, cut to half the picture, against the reference, which decodes all of it."""
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
    for ours, *others in zip(*outputs, strict=True):
        for theirs in others:
            inside, ring, corners = worst(ours, theirs)
            assert inside <= INTERIOR
            assert max(ring, corners) <= (
                RING if min(size) > 1 else 64
            )  # one pixel has both its neighbors outside


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_normalized_as_the_native_core_does_it(dtype: torch.dtype, layout: Any) -> None:
    """Same level, same bits: compared where both decoders have the same levels."""
    jpeg, size = JPEGS[0]
    form: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    shape = (1, size[1], size[0], 3) if layout == "nhwc" else (1, 3, size[1], size[0])
    found = [
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
    ours, our_levels, theirs, their_levels = found
    same = our_levels == their_levels
    assert same.float().mean() > 0.99
    assert torch.equal(ours[same], theirs[same])


@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_borders_have_their_color_in_the_order_of_the_output(color: Any) -> None:
    asked: dict[str, Any] = {
        "canvas": (50, 40),
        "pad_left": 5,
        "pad_top": 5,
        "pixels": PixelFormat(color=color, fill=(10, 20, 30)),
    }
    ours, theirs = (
        pixels_of(backend, JPEGS[0][0], (40, 30), exact=1, **asked)
        for backend in (dali(), reference())
    )
    assert ours[0, 0].tolist() == theirs[0, 0].tolist() == [10, 20, 30]
    check(ours[5:35, 5:45], theirs[5:35, 5:45])


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
    ours, theirs = (
        raw_pixels(backend, mask, (40, 30), **options) for backend in (dali(), reference())
    )
    assert np.array_equal(ours, theirs)
    assert (ours[:6] == 9).all()


@pytest.mark.parametrize("jpeg", [JPEGS[0], JPEGS[5]], ids=["color", "gray"])
def test_nearest_is_exact_for_pictures_too(jpeg: tuple[bytes, tuple[int, int]]) -> None:
    ours, theirs = (
        pixels_of(backend, jpeg[0], (31, 57), filter=Filter.NEAREST, exact=1)
        for backend in (dali(), reference())
    )
    assert np.array_equal(ours, theirs)


def test_one_batch_with_all_sorts_of_rows() -> None:
    """JPEGs for DALI, turned ones, raw pixels, a progressive one and another filter for the CPU: each in its slot."""
    raw = picture(30, 20)
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
    for ours, theirs in zip(*outputs, strict=True):
        check(ours, theirs)
    for row in (1, 2, 3, 4):
        assert worst(outputs[0][row], outputs[1][row])[1] <= 1, (
            "the CPU's rows are the CPU's, rings included"
        )
