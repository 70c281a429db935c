"""Input of GPU decoders and the CPU fallback, tested without a GPU library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload._common.native import core
from fastload._decode.backend import Codec, DecodeBatch, Filter, PixelFormat, Status, new_requests
from fastload._decode.gpu.base import CpuFallback, empty_result, write_pixels
from fastload._decode.gpu.staging import StreamCutter
from fastload._store.jpeg_header import read_header
from fastload.errors import ConfigError
from tests.decoding import pixels_of, record, reference
from tests.jpeg_samples import SAMPLINGS, encode, encode_by_pillow, replace_frame, sample_image

JPEG = encode(sample_image(120, 90), "420")
CUTTER = StreamCutter(threads=2)


def batch_of(
    sources: list[Any], *, pixels: PixelFormat | None = None, channels: int = 3, **columns: Any
) -> DecodeBatch:
    requests = new_requests(len(sources))
    requests["out_w"], requests["out_h"] = 40, 30
    for name, value in columns.items():
        requests[name] = value
    return DecodeBatch(
        sources,
        requests,
        np.zeros((len(sources), 30, 40, channels), np.uint8),
        pixels or PixelFormat(),
    )


@settings(max_examples=60)
@given(st.data())
def test_the_box_in_the_cut_stream_equals_the_box_in_the_image(data: st.DataObject) -> None:
    module = core()
    if module is None:
        pytest.skip("not run: no native core")
    draw = data.draw
    rewritten = module.rewrite(encode(sample_image(300, 200), draw(st.sampled_from(SAMPLINGS))))
    jpeg = rewritten.jpeg
    index = rewritten.index
    width = rewritten.width
    height = rewritten.height
    interval = rewritten.interval
    w, h = draw(st.integers(1, width)), draw(st.integers(1, height))
    x, y = draw(st.integers(0, width - w)), draw(st.integers(0, height - h))
    found = CUTTER.cut(
        batch_of(
            [b"record" + jpeg + index.tobytes()],
            offset=6,
            size=len(jpeg),
            index_offset=6 + len(jpeg),
            index_count=len(index),
            interval=interval,
            x=x,
            y=y,
            w=w,
            h=h,
        )
    )
    assert found.rows.tolist() == [0]
    stream, (left, top, box_w, box_h) = bytes(found.data[0]), found.boxes[0].tolist()
    header = read_header(stream)
    assert (header.width, header.height) == tuple(found.sizes[0].tolist())
    assert (box_w, box_h) == (w, h)
    whole, part = (simplejpeg.decode_jpeg(each, "RGB") for each in (jpeg, stream))
    assert np.array_equal(part[top : top + h, left : left + w], whole[y : y + h, x : x + w])


def test_a_complete_image_is_not_copied() -> None:
    source = np.frombuffer(JPEG, np.uint8)
    found = CUTTER.cut(batch_of([source, source]))
    assert found.boxes.tolist() == [[0, 0, 120, 90]] * 2
    assert all(np.shares_memory(np.frombuffer(each, np.uint8), source) for each in found.data)


def with_adobe(transform: int) -> bytes:
    """Returns a JPEG with an Adobe marker instead of the JFIF marker."""
    return (
        JPEG[:2]
        + b"\xff\xee\x00\x0eAdobe\x00\x64"
        + bytes(4)
        + bytes([transform])
        + JPEG[2 + 2 + int.from_bytes(JPEG[4:6], "big") :]
    )


UNUSUAL = {
    "progressive": encode_by_pillow(sample_image(100, 70), "422", progressive=True),
    "garbage": b"GIF89a" * 9,
    "empty": b"",
    "no end": JPEG[:-2],
    "bytes after the end": JPEG + b"\0" * 8,
    "extended": replace_frame(JPEG, marker=0xC1),
    "bomb": replace_frame(
        JPEG,
        body=bytes([8])
        + (9000).to_bytes(2, "big") * 2
        + JPEG[JPEG.find(b"\xff\xc0") + 9 : JPEG.find(b"\xff\xc0") + 19],
    ),
    "RGB by Adobe": with_adobe(0),
    "no marker for the color space": JPEG[:2] + JPEG[2 + 2 + int.from_bytes(JPEG[4:6], "big") :],
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_streams_go_to_the_cpu(name: str) -> None:
    found = CUTTER.cut(batch_of([JPEG, UNUSUAL[name], JPEG]))
    assert (found.rows.tolist(), found.fallback.tolist()) == ([0, 2], [1])


def test_an_adobe_marker_with_ycbcr_is_supported() -> None:
    assert CUTTER.cut(batch_of([with_adobe(1)])).rows.tolist() == [0]


@pytest.mark.parametrize(
    "row",
    [
        {"orientation": 6},
        {"orientation": 0},
        {"codec": Codec.RAW},
        {"filter": 7},
        {"source": 9},
        {"x": -1, "w": 5, "h": 5},
        {"w": 121, "h": 5},
        {"x": 116, "w": 5, "h": 5},
        {"w": 5, "h": 0},
        {"x": 1},
        {"x": 2**31 - 1, "w": 2**31 - 1, "h": 1},
        {"out_w": 0},
        {"out_w": 41},
        {"pad_left": 1},
        {"pad_top": -1},
        {"size": 10**6},
        {"offset": 10**6, "size": 1},
        {"index_offset": 10**6, "index_count": 5},
        {"check": 1},
    ],
    ids=str,
)
def test_invalid_requests_go_to_the_cpu(row: dict[str, Any]) -> None:
    batch = batch_of([JPEG] * 3)
    for name, value in row.items():
        batch.requests[name][1] = value
    found = CUTTER.cut(batch)
    assert (found.rows.tolist(), found.fallback.tolist()) == ([0, 2], [1])


def test_a_change_of_any_byte_of_a_record_is_detected() -> None:
    good, _ = record(JPEG)
    for place in (0, 4, 9, 12, 20, 60, len(good) // 2, len(good) - 1):
        bad = bytearray(good)
        bad[place] ^= 0x10
        found = CUTTER.cut(
            batch_of([good, bytes(bad), good[:-1], good], offset=48, size=len(JPEG), check=1)
        )
        assert found.rows.tolist() == [0, 3], f"byte {place}"


def test_a_record_with_six_cameras_is_verified_once() -> None:
    good, _ = record(JPEG * 6)
    bad = bytearray(good)
    bad[-1] ^= 1
    batch = batch_of(
        [good, bytes(bad)] * 6,
        offset=[48 + len(JPEG) * (i // 2) for i in range(12)],
        size=len(JPEG),
        check=1,
    )
    batch.requests["source"] = np.arange(12) % 2
    found = CUTTER.cut(DecodeBatch([good, bytes(bad)], batch.requests, batch.output))
    assert (found.rows % 2).tolist() == [0] * 6
    assert (found.fallback % 2).tolist() == [1] * 6


@pytest.mark.parametrize(("color", "channels"), [("rgb", 1), ("bgr", 4), ("gray", 3)])
def test_a_wrong_number_of_channels_raises(color: Any, channels: int) -> None:
    with pytest.raises(ConfigError, match="channels for"):
        CUTTER.cut(batch_of([JPEG], pixels=PixelFormat(color=color), channels=channels))


def test_masks_go_to_the_cpu() -> None:
    assert CUTTER.cut(batch_of([JPEG], pixels=PixelFormat(color="stored"))).fallback.tolist() == [0]


@pytest.mark.parametrize("rows", [[1], [0, 2], [0, 1, 2, 3], []], ids=str)
def test_fallback_rows_are_written_to_their_slots_and_a_bad_one_is_reported(
    rows: list[int],
) -> None:
    batch = batch_of(
        [JPEG, b"rubbish", JPEG, JPEG[:-2]], pixels=PixelFormat(fill=9), flip=[0, 0, 1, 0]
    )
    np.asarray(batch.output)[:] = 77
    fallback, result = CpuFallback(threads=1), empty_result(batch)
    fallback.redo(batch, np.array(rows, np.intp), result)
    assert sorted(result.reasons) == [row for row in rows if row % 2]
    assert [Status(int(each)) for each in result.status] == [
        Status.BAD_IMAGE if row in rows and row % 2 else Status.OK for row in range(4)
    ]
    for row, slot in enumerate(np.asarray(batch.output)):
        if row not in rows:
            assert (slot == 77).all()
        elif row % 2:
            assert (slot == 9).all()
        else:
            assert (
                abs(slot.astype(int) - pixels_of(reference(), JPEG, (40, 30), flip=row // 2)).max()
                <= 1
            )
    fallback.close()


@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0]], ids=str)
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("color", ["rgb", "bgr"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16, torch.bfloat16])
def test_write_pixels_follows_the_format(
    rows: list[int], layout: Any, color: Any, dtype: torch.dtype
) -> None:
    """Expects (pixel - mean) / std in float32, rounded to the dtype, as PixelFormat documents."""
    pixel_values = torch.randint(
        0, 256, (len(rows), 4, 5, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    output = torch.full((3, 4, 5, 3) if layout == "nhwc" else (3, 3, 4, 5), 55, dtype=dtype)
    write_pixels(
        pixel_values,
        DecodeBatch([], new_requests(3), output, PixelFormat(layout, color, mean=mean, std=std)),
        np.array(rows),
    )
    expected = pixel_values.flip(-1) if color == "bgr" else pixel_values
    if dtype != torch.uint8:
        scaled = [torch.tensor([255.0 * each for each in values]) for values in (mean, std)]
        expected = ((expected.float() - scaled[0]) / scaled[1]).to(dtype)
    if layout == "nchw":
        expected = expected.permute(0, 3, 1, 2)
    assert torch.equal(output[rows], expected)
    assert (output[[row for row in range(3) if row not in rows]] == 55).all()


def test_nearest_is_supported_by_the_cutter() -> None:
    assert CUTTER.cut(batch_of([JPEG], filter=Filter.NEAREST)).rows.tolist() == [0]


def test_the_fallback_writes_some_rows_of_a_16_bit_batch() -> None:
    """A device tensor gets the rows by index_copy_, which torch does not have for uint16."""
    image = np.random.default_rng(3).integers(0, 65536, (30, 40, 3), np.uint16)
    columns: dict[str, Any] = {
        "codec": Codec.RAW,
        "raw_w": 40,
        "raw_h": 30,
        "raw_channels": 3,
        "raw_bits": 16,
    }
    batch = batch_of([image.tobytes()] * 3, **columns)
    output = torch.zeros(3, 30, 40, 3, dtype=torch.uint16)
    batch = DecodeBatch(batch.sources, batch.requests, output, PixelFormat(bits=16))
    fallback = CpuFallback(threads=1)
    fallback.redo(batch, np.array([0, 2]), empty_result(batch))
    fallback.close()
    assert np.array_equal(output.numpy()[[0, 2]], [image, image])
    assert not output.numpy()[1].any()
