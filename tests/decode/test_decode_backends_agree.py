"""The native backend and the reference give the same pixels, within one level, and the same verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload._common.checksum import crc32c
from fastload._common.native import core
from fastload._decode.backend import (
    COLOURS,
    REQUEST,
    STAGES,
    DecodeBatch,
    Filter,
    PixelFormat,
    Status,
    new_requests,
)
from fastload.errors import BadImage, ConfigError
from tests.decoding import native, pixels_of, reference, run
from tests.jpeg_samples import encode, encode_by_pillow, picture

JPEGS = [
    encode(picture(120, 90), "420"),
    encode(picture(61, 133), "444", 97),
    encode(picture(80, 80), "gray"),
    encode_by_pillow(picture(100, 70), "422", progressive=True),
]
SIZES = [(120, 90), (61, 133), (80, 80), (100, 70)]


def record(payload: bytes) -> tuple[bytes, int]:
    """A record around one part, and where the part starts."""
    body = bytes([1, 0, 1, 0]) + (48 + len(payload)).to_bytes(4, "little") + bytes(8 + 24) + payload
    return b"FLR1" + crc32c(body).to_bytes(4, "little") + body, 48


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
    colour: Any = draw(st.sampled_from(["rgb", "bgr", "gray"]))
    pixels = PixelFormat(draw(st.sampled_from(["nhwc", "nchw"])), colour, 3)
    asked: dict[str, Any] = {
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
        "channels": 1 if colour == "gray" else 3,
    }
    ours, theirs = (
        pixels_of(backend, JPEGS[which], (out_w, out_h), **options, **asked).astype(int)
        for backend in (native(), reference())
    )
    assert abs(ours - theirs).max() <= 1


@pytest.mark.parametrize("backend", [native, reference])
def test_a_record_is_checked_first(backend: Any) -> None:
    source, offset = record(JPEGS[0])
    asked: dict[str, Any] = {"offset": offset, "size": len(JPEGS[0]), "check": 1}
    assert np.array_equal(
        pixels_of(backend(), source, (60, 45), **asked), pixels_of(backend(), JPEGS[0], (60, 45))
    )
    damaged = bytearray(source)
    damaged[-3] ^= 1
    result = run(
        backend(),
        [source, bytes(damaged), source[:20], b"", source],
        (60, 45),
        **asked,
        pixels=PixelFormat(fill=9),
    )
    assert result.status.tolist() == [
        Status.OK,
        Status.CORRUPT,
        Status.CORRUPT,
        Status.CORRUPT,
        Status.OK,
    ]
    assert (np.asarray(result.output)[1:4] == 9).all()
    with pytest.raises(BadImage, match="slot 1"):
        result.raise_first()


def test_images_of_one_record_share_it() -> None:
    source, offset = record(JPEGS[0] + JPEGS[2])
    requests = new_requests(2)
    requests["source"], requests["check"], requests["out_w"], requests["out_h"] = 0, 1, 40, 30
    requests["offset"], requests["size"] = (
        [offset, offset + len(JPEGS[0])],
        [len(JPEGS[0]), len(JPEGS[2])],
    )
    for backend in (native(), reference()):
        output = np.zeros((2, 30, 40, 3), np.uint8)
        backend.collect(backend.submit(DecodeBatch([source], requests, output))).raise_first()
        assert np.array_equal(output[0], pixels_of(backend, JPEGS[0], (40, 30)))
        assert np.array_equal(output[1], pixels_of(backend, JPEGS[2], (40, 30)))


BAD_ROWS: list[dict[str, Any]] = [
    {"x": -1, "y": 0, "w": 5, "h": 5},
    {"x": 0, "y": 0, "w": 121, "h": 5},
    {"x": 116, "y": 0, "w": 5, "h": 5},
    {"y": 86, "w": 5, "h": 5},
    {"w": 5, "h": 0},
    {"w": -5, "h": -5},
    {"x": 2**31 - 1, "y": 2**31 - 1, "w": 2**31 - 1, "h": 2**31 - 1},
    {"out_w": 0},
    {"out_h": -3},
    {"out_w": 41},
    {"pad_left": -1},
    {"pad_left": 2**31 - 1},
    {"pad_top": 1},
    {"orientation": 0},
    {"orientation": 9},
    {"filter": 7},
    {"source": 5},
    {"size": 10**6},
    {"offset": 10**6, "size": 1},
]


@pytest.mark.parametrize("row", BAD_ROWS, ids=str)
@pytest.mark.parametrize("backend", [native, reference])
def test_a_request_that_does_not_fit_fails_alone(backend: Any, row: dict[str, Any]) -> None:
    requests = new_requests(3)
    requests["out_w"], requests["out_h"], requests["source"] = 40, 30, 0
    for name, value in row.items():
        requests[name][1] = value
    output = np.full((3, 30, 40, 3), 77, np.uint8)
    result = backend().collect(
        backend().submit(DecodeBatch([JPEGS[0]], requests, output, PixelFormat(fill=5)))
    )
    assert result.status[0] == result.status[2] == Status.OK
    assert result.status[1] in (Status.BAD_REQUEST, Status.BAD_IMAGE)
    assert result.reasons.keys() == {1}
    assert result.reasons[1]
    assert (output[1] == 5).all()
    expected = pixels_of(backend(), JPEGS[0], (40, 30))
    assert np.array_equal(output[0], expected)
    assert np.array_equal(output[2], expected)


@pytest.mark.parametrize("backend", [native, reference])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\xff\xd8",
        b"GIF89a" * 9,
        JPEGS[0][:300],
        JPEGS[0][:-900],
        JPEGS[0][:-2],
        bytes(1000),
    ],
)
def test_what_is_no_whole_jpeg_is_refused(backend: Any, data: bytes) -> None:
    result = run(
        backend(), [JPEGS[0], data, JPEGS[0]], (60, 45), pixels=PixelFormat(fill=(1, 2, 3))
    )
    assert result.status.tolist() == [Status.OK, Status.BAD_IMAGE, Status.OK]
    assert (np.asarray(result.output)[1] == (1, 2, 3)).all()
    assert np.array_equal(result.output[2], pixels_of(backend(), JPEGS[0], (60, 45)))


RAW: dict[str, Any] = {"codec": 1, "raw_w": 4, "raw_h": 4, "raw_channels": 3, "raw_bits": 8}


@pytest.mark.parametrize(
    "row",
    [
        {"raw_w": 5},
        {"raw_h": 0},
        {"raw_w": -4, "raw_h": -4},
        {"raw_channels": 2},
        {"raw_bits": 16},
        {"raw_bits": 7},
        {"raw_w": 2**31 - 1, "raw_h": 2**31 - 1},
        {"raw_channels": 255},
    ],
    ids=str,
)
@pytest.mark.parametrize("backend", [native, reference])
def test_raw_pixels_of_another_size_are_refused(backend: Any, row: dict[str, Any]) -> None:
    result = run(backend(), [bytes(48)], (4, 4), **{**RAW, **row})
    assert result.status[0] in (Status.BAD_IMAGE, Status.BAD_REQUEST)
    run(backend(), [bytes(48)], (4, 4), **RAW).raise_first()


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
def test_levels_that_make_no_sense_raise(pixels: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        run(native(), [JPEGS[0]], (40, 30), pixels=PixelFormat(**pixels), dtype=np.float32)


@pytest.mark.parametrize("wrong", [{"layout": "hwc"}, {"colour": "cmyk"}, {"white": 0.0}], ids=str)
def test_unknown_formats_raise(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PixelFormat(**wrong)


@pytest.mark.parametrize("sources", [5, ["text"], [None], [np.zeros((4, 4), np.uint8)[:, ::2]]])
def test_sources_that_are_no_bytes_raise(sources: Any) -> None:
    requests = new_requests(1)
    requests["out_w"] = requests["out_h"] = 4
    with pytest.raises(ConfigError):
        native().submit(DecodeBatch(sources, requests, output_of(1, 4, 4, 3)))


def test_requests_of_another_dtype_raise() -> None:
    others: list[Any] = [
        np.zeros(3, np.int64),
        np.zeros((1, 2), REQUEST),
        np.zeros(2, [("offset", "<u8")]),
    ]
    for requests in others:
        for backend in (native(), reference()):
            with pytest.raises(ConfigError, match="requests"):
                backend.submit(DecodeBatch([], requests, output_of(3, 4, 4, 3)))


def test_requests_need_not_be_contiguous() -> None:
    requests = new_requests(4)[::2]
    requests["source"], requests["out_w"], requests["out_h"] = [0, 1], 40, 30
    output = output_of(2, 30, 40, 3)
    native().collect(native().submit(DecodeBatch(JPEGS[:2], requests, output))).raise_first()
    assert np.array_equal(output[1], pixels_of(native(), JPEGS[1], (40, 30)))


def test_an_empty_batch_is_done_at_once() -> None:
    result = native().collect(
        native().submit(DecodeBatch([], new_requests(0), output_of(0, 4, 4, 3)))
    )
    assert result.ok
    assert result.times_ns.shape == (0, len(STAGES))


def test_the_request_is_laid_out_as_the_core_has_it() -> None:
    module = core()
    if module is None:
        pytest.skip("not run: no native core")
    fields = REQUEST.fields
    assert fields is not None
    assert [
        (name, fields[name][1], fields[name][0].itemsize) for name in REQUEST.names or ()
    ] == module.request_members()
    assert module.request_size == REQUEST.itemsize
    assert COLOURS == ("rgb", "bgr", "gray", "stored")


def test_times_say_where_a_sample_was() -> None:
    result = run(native(), JPEGS[:2], (40, 30))
    assert (result.times_ns[:, STAGES.index("decode")] > 0).all()
    assert (result.times_ns[:, STAGES.index("resize")] > 0).all()
