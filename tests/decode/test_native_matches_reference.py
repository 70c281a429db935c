"""The native backend matches the reference: pixels within 1, and the same errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload._common.native import core
from fastload._decode.backend import (
    COLORS,
    REQUEST,
    STAGES,
    DecodeBatch,
    Filter,
    PixelFormat,
    new_requests,
)
from fastload.errors import ConfigError
from tests.decoding import native, pixels_of, reference, run
from tests.jpeg_samples import encode, encode_by_pillow, sample_image

JPEGS = [
    encode(sample_image(120, 90), "420"),
    encode(sample_image(61, 133), "444", 97),
    encode(sample_image(80, 80), "gray"),
    encode_by_pillow(sample_image(100, 70), "422", progressive=True),
]
SIZES = [(120, 90), (61, 133), (80, 80), (100, 70)]


@settings(max_examples=150)
@given(st.data())
def test_same_pixels(data: st.DataObject) -> None:
    draw = data.draw
    which = draw(st.integers(0, len(JPEGS) - 1))
    orientation = draw(st.integers(1, 8))
    width, height = SIZES[which][::-1] if orientation >= 5 else SIZES[which]
    w, h = draw(st.integers(1, width)), draw(st.integers(1, height))
    out_w, out_h = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    left, top = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    color: Any = draw(st.sampled_from(["rgb", "bgr", "gray"]))
    pixels = PixelFormat(draw(st.sampled_from(["nhwc", "nchw"])), color, 3)
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
    }
    options: dict[str, Any] = {
        "pixels": pixels,
        "canvas": (out_w + left + 3, out_h + top),
        "channels": 1 if color == "gray" else 3,
    }
    found, wanted = (
        pixels_of(backend, JPEGS[which], (out_w, out_h), **options, **columns).astype(int)
        for backend in (native(), reference())
    )
    assert abs(found - wanted).max() <= 1


def output_of(*shape: int) -> Any:
    return np.zeros(shape, np.uint8)


@pytest.mark.parametrize(
    "output",
    [
        output_of(1, 30, 40, 3),
        output_of(2, 30, 40),
        output_of(2, 30, 40, 4),
        output_of(2, 30, 40, 1),
        np.zeros((2, 30, 40, 3), np.int32),
        np.zeros((2, 30, 40, 3), np.float64),
        np.broadcast_to(np.zeros((1, 30, 40, 3), np.uint8), (2, 30, 40, 3)),
        np.lib.stride_tricks.as_strided(output_of(9, 30, 40, 3), (2, 30, 40, 3), (100, 120, 3, 1)),
        "no array",
    ],
    ids=lambda _: "",
)
def test_an_output_that_cannot_hold_the_batch_raises(output: Any) -> None:
    with pytest.raises((ConfigError, AttributeError)):
        run(native(), [JPEGS[0]] * 2, (40, 30), output=output)
    run(native(), [JPEGS[0]] * 2, (40, 30)).raise_first()


def test_read_only_output_raises() -> None:
    output = output_of(1, 30, 40, 3)
    output.flags.writeable = False
    with pytest.raises(ConfigError):
        run(native(), [JPEGS[0]], (40, 30), output=output)


@pytest.mark.parametrize(
    "pixels",
    [
        {"fill": 256},
        {"fill": -1},
        {"fill": (1, 2)},
        {"mean": (0.5,)},
        {"std": (0.0, 1.0, 1.0)},
        {"std": (float("nan"),) * 3},
        {"mean": (float("inf"),) * 3},
    ],
    ids=str,
)
def test_invalid_fill_mean_and_std_raise(pixels: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        run(native(), [JPEGS[0]], (40, 30), pixels=PixelFormat(**pixels), dtype=np.float32)


@pytest.mark.parametrize("wrong", [{"layout": "hwc"}, {"color": "cmyk"}, {"white": 0.0}], ids=str)
def test_unknown_formats_raise(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PixelFormat(**wrong)


@pytest.mark.parametrize("sources", [5, ["text"], [None], [np.zeros((4, 4), np.uint8)[:, ::2]]])
def test_sources_that_are_not_bytes_raise(sources: Any) -> None:
    requests = new_requests(1)
    requests["out_w"] = requests["out_h"] = 4
    with pytest.raises(ConfigError):
        native().submit(DecodeBatch(sources, requests, output_of(1, 4, 4, 3)))


def test_requests_do_not_have_to_be_contiguous() -> None:
    requests = new_requests(4)[::2]
    requests["source"], requests["out_w"], requests["out_h"] = [0, 1], 40, 30
    output = output_of(2, 30, 40, 3)
    native().collect(native().submit(DecodeBatch(JPEGS[:2], requests, output))).raise_first()
    assert np.array_equal(output[1], pixels_of(native(), JPEGS[1], (40, 30)))


def test_the_request_layout_equals_the_struct_of_the_core() -> None:
    module = core()
    if module is None:
        pytest.skip("not run: no native core")
    fields = REQUEST.fields
    assert fields is not None
    assert [
        (name, fields[name][1], fields[name][0].itemsize) for name in REQUEST.names or ()
    ] == module.request_members()
    assert module.request_size == REQUEST.itemsize
    assert COLORS == ("rgb", "bgr", "gray", "stored")


def test_times_are_reported_per_stage() -> None:
    result = run(native(), JPEGS[:2], (40, 30))
    assert (result.times_ns[:, STAGES.index("decode")] > 0).all()
    assert (result.times_ns[:, STAGES.index("resize")] > 0).all()
