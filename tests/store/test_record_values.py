"""Values of every field kind round-trip; wrong values and hostile bytes are rejected."""

from __future__ import annotations

import io
import math
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from fastload._store.fields import Field, decode_value, encode_value, source_part
from fastload._store.kinds import DTYPES, decode_array, encode_array
from fastload._store.pixels import decode_image, decode_mask, upright
from fastload._store.record import (
    ARRAY,
    DEFLATED,
    JPEG,
    PLAIN,
    PNG,
    RAW,
    Part,
    encode_record,
    parse_record,
)
from fastload.errors import BadImage, ConfigError, RecordError
from tests.corpus import photos
from tests.small_dataset import Array, jpeg, jpeg_part, same


def round_trip(field: Field, value: object) -> Any:
    """Encodes and decodes a value as part of a whole record."""
    record = encode_record(5, [Part(9, b"another field"), *encode_value(3, field, value)])
    return decode_value(
        field, [part for part in parse_record(memoryview(record), 5) if part.field == 3]
    )


def assert_refused(kind: str, value: object, match: str = "field 'x'", **options: Any) -> None:
    with pytest.raises(ConfigError, match=match):
        encode_value(0, Field("x", kind, **options), value)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.floats(), st.text(), st.binary())
def test_scalars(number: int, real: float, text: str, data: bytes) -> None:
    assert round_trip(Field("x", "int"), number) == number
    assert same(np.array(round_trip(Field("x", "float"), real)), np.array(real))
    assert round_trip(Field("x", "str"), text) == text
    assert round_trip(Field("x", "bytes"), data) == data


def test_numpy_scalars_and_bools_are_numbers() -> None:
    found = [
        round_trip(Field("x", "int"), value)
        for value in (np.uint8(3), np.int64(-4), True, np.bool_(False))
    ]
    assert found == [3, -4, 1, 0]
    assert round_trip(Field("x", "float"), np.float32(0.5)) == 0.5
    assert type(round_trip(Field("x", "float"), 3)) is float


def test_values_that_are_not_scalars_are_rejected() -> None:
    no_int: list[object] = [1 << 63, -(1 << 63) - 1, 1.0, "1", b"1", [1], np.float64(1)]
    for value in no_int:
        assert_refused("int", value)
    no_float: list[object] = ["1", 1j, 10**400]
    for value in no_float:
        assert_refused("float", value)
    assert_refused("str", "\ud800", "expected valid Unicode")
    assert_refused("str", b"a")
    assert_refused("bytes", "a")
    assert_refused("int", 3, "class 3, expected 0 to 2", classes=("a", "b", "c"))
    assert_refused("int", -1, "class -1", classes=("a",))
    assert round_trip(Field("x", "int", classes=("a",)), 0) == 0


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
).filter(lambda value: value is not None)


@given(json_values)
def test_json(value: Any) -> None:
    assert round_trip(Field("x", "json"), value) == value


def test_values_that_are_not_json_are_rejected() -> None:
    for value in (float("nan"), [float("inf")], {1: 2}, {"a": b"x"}, object(), {"a": {2, 3}}):
        assert_refused("json", value, "expected valid JSON")
    deep: Any = 0
    for _ in range(64):
        deep = [deep]
    assert round_trip(Field("x", "json"), deep) == deep
    assert_refused("json", [deep], "deeper than 64")


@given(
    hnp.arrays(
        st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=3)
    )
)
def test_arrays(array: Array) -> None:
    found = round_trip(Field("x", "array"), array)
    assert same(found, array)
    assert found.shape == array.shape
    assert found.flags.writeable
    view = decode_array(encode_array(array))
    assert not view.flags.writeable


def test_arrays_of_any_byte_and_memory_order() -> None:
    array = np.arange(24, dtype=">f4").reshape(2, 3, 4).swapaxes(0, 2)[:, ::-1]
    found = round_trip(Field("x", "array"), array)
    assert np.array_equal(found, array)
    assert found.dtype == np.float32
    for wrong in (
        np.array(["a"]),
        np.array([object()]),
        np.zeros((1,) * 9),
        np.zeros(3, "c8"),
        np.zeros(1, "M8[s]"),
    ):
        assert_refused("array", wrong)
    assert round_trip(Field("x", "array"), [[1, 2], [3, 4]]).shape == (2, 2)


def test_boxes_points_and_matrices_have_their_shapes() -> None:
    assert same(
        round_trip(Field("x", "boxes"), [[1, 2, 3, 4.5]]), np.array([[1, 2, 3, 4.5]], np.float32)
    )
    assert round_trip(Field("x", "boxes"), []).shape == (0, 4)
    assert round_trip(Field("x", "points"), []).shape == (0, 2)
    assert round_trip(Field("x", "points"), np.zeros((0, 3))).shape == (0, 3)
    assert same(
        round_trip(Field("x", "points"), [[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]], np.float32)
    )
    assert same(round_trip(Field("x", "matrix"), np.eye(3, dtype=np.float32)), np.eye(3))
    for kind, value in (
        ("boxes", [1, 2, 3, 4]),
        ("boxes", [[1, 2]]),
        ("points", [[1]]),
        ("points", [[1, 2, 3, 4]]),
        ("matrix", [1, 2]),
        ("boxes", [["a"] * 4]),
        ("matrix", [[1], [2, 3]]),
    ):
        assert_refused(kind, value)


def test_lists_and_missing_values() -> None:
    assert round_trip(Field("x", "str", list=True), ["a", "", "b"]) == ["a", "", "b"]
    assert round_trip(Field("x", "str", list=True), []) == []
    assert round_trip(Field("x", "str"), None) is None
    assert round_trip(Field("x", "int", list=True), None) == []
    assert_refused("int", 5, "expected a list of int", list=True)
    images = [np.full((2, 3, 3), i, np.uint8) for i in range(6)]
    assert same(round_trip(Field("x", "image", list=True), images), images)


def test_a_path_that_is_not_utf8_is_escaped() -> None:
    assert source_part("a/ü.jpg").data == "a/ü.jpg".encode()
    assert source_part("caf\udce9.jpg").data == b"caf\\xe9.jpg"


@pytest.mark.parametrize("dtype", ["u1", "u2"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_raw_images(dtype: str, channels: int) -> None:
    pixels = np.random.default_rng(0).integers(
        0, np.iinfo(dtype).max, (5, 7, channels), dtype=dtype
    )
    assert same(round_trip(Field("x", "image"), pixels), pixels)
    assert round_trip(Field("x", "image"), pixels[:, :, 0]).shape == (5, 7, 1)
    assert round_trip(Field("x", "image"), pixels[::-1, ::2]).shape == (5, 4, channels)
    assert round_trip(Field("x", "image"), pixels).flags.writeable


def test_values_that_are_not_images_are_rejected() -> None:
    shapes = ((3, 3, 3, 3), (9,), (0, 3, 3), (1, 16385), (3, 3, 256))
    for wrong in (
        np.zeros((3, 3), np.float32),
        "a.jpg",
        *(np.zeros(shape, np.uint8) for shape in shapes),
    ):
        assert_refused("image", wrong)
    for no_mask in (
        np.zeros((3, 3, 1), np.uint8),
        np.zeros((3, 3)),
        np.array([[-1]]),
        np.array([[1 << 40]]),
    ):
        assert_refused("mask", no_mask)


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("u1", "u1"),
        ("?", "u1"),
        ("i1", "u1"),
        ("u2", "u2"),
        ("i2", "u2"),
        ("i4", "u4"),
        ("i8", "u4"),
    ],
)
def test_masks_are_lossless(dtype: str, stored: str) -> None:
    top = min(2 if dtype == "?" else np.iinfo(dtype).max, (1 << 32) - 1)
    pixels = np.random.default_rng(0).integers(0, top, (50, 70)).astype(dtype)
    found = round_trip(Field("x", "mask"), pixels)
    assert same(found, pixels.astype(stored))
    assert len(encode_value(0, Field("x", "mask"), np.zeros((500, 500), dtype))[0].data) < 2000


def png(array: Array, mode: str | None = None) -> bytes:
    out = io.BytesIO()
    image = Image.fromarray(array)
    if mode:
        image = image.convert(mode)
    image.save(out, "PNG")
    return out.getvalue()


def test_png_images_of_every_mode() -> None:
    rng = np.random.default_rng(0)
    for channels, dtype in ((1, "u1"), (3, "u1"), (4, "u1"), (1, "<u2")):
        pixels = rng.integers(0, np.iinfo(dtype).max, (6, 9, channels), dtype=dtype)
        part = Part(
            0,
            png(pixels[:, :, 0] if channels == 1 else pixels),
            0,
            PNG,
            channels=channels,
            bits=8 * pixels.itemsize,
            width=9,
            height=6,
            orientation=1,
        )
        assert same(decode_image(part), pixels)
    gray = rng.integers(0, 255, (6, 9), dtype=np.uint8)
    palette = Part(0, png(gray, "P"), 0, PNG, channels=3, bits=8, width=9, height=6)
    assert same(decode_image(palette), np.repeat(gray[:, :, None], 3, axis=2))


def test_a_palette_png_is_a_mask_of_its_indices() -> None:
    indices = np.arange(54, dtype=np.uint8).reshape(6, 9)
    image = Image.fromarray(indices).convert("P")
    image.putpalette([(i * 37) % 256 for i in range(768)])
    out = io.BytesIO()
    image.save(out, "PNG")
    part = Part(0, out.getvalue(), 0, PNG, channels=1, bits=8, width=9, height=6)
    assert same(decode_mask(part), np.asarray(image))
    one_bit = Part(0, png(np.eye(6, 9) > 0), 0, PNG, channels=1, bits=8, width=9, height=6)
    assert same(decode_mask(one_bit), np.eye(6, 9, dtype=np.uint8))


def test_jpegs_decode_like_pillow() -> None:
    for path in photos(8):
        data = path.read_bytes()
        with Image.open(io.BytesIO(data)) as image:
            if image.mode not in ("L", "RGB"):
                continue
            expected = np.asarray(image)
        found = decode_image(jpeg_part(0, data))
        assert found.shape == (expected.shape if expected.ndim == 3 else (*expected.shape, 1))
        # Pillow and simplejpeg bundle different versions of libjpeg-turbo. With the slow, exact DCT
        # they agree bit for bit.
        assert np.array_equal(found.reshape(expected.shape), expected), path.name


def test_grayscale_images_keep_one_channel() -> None:
    assert decode_image(jpeg_part(0, jpeg(20, 10, gray=True))).shape == (10, 20, 1)


@pytest.mark.parametrize("orientation", range(9))
@pytest.mark.parametrize("gray", [False, True])
def test_orientation_is_applied_like_pillow(orientation: int, gray: bool) -> None:
    from PIL import ImageOps

    data = jpeg(37, 21, seed=orientation, gray=gray, exif_orientation=orientation)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    found = decode_image(jpeg_part(0, data, orientation=orientation))
    assert same(found.reshape(expected.shape), expected)
    assert found.flags.c_contiguous
    mask = np.arange(12, dtype=np.uint8).reshape(3, 4)
    part = encode_value(0, Field("x", "mask"), mask)[0]._replace(orientation=orientation)
    assert same(decode_mask(part), np.ascontiguousarray(upright(mask, orientation)))


def assert_bad_image(part: Part, *, mask: bool = False) -> None:
    with pytest.raises((BadImage, RecordError)):
        (decode_mask if mask else decode_image)(part)


def test_damaged_and_hostile_images_are_rejected() -> None:
    good = jpeg_part(0, jpeg(40, 30))
    data = bytes(good.data)
    assert_bad_image(good._replace(data=data[: len(data) // 2]))
    assert_bad_image(good._replace(data=b""))
    assert_bad_image(good._replace(width=41))
    assert_bad_image(good._replace(channels=1))
    bomb = bytearray(data)
    frame = bomb.index(b"\xff\xc0") + 5
    bomb[frame : frame + 4] = struct.pack(">HH", 16000, 16000)
    with pytest.raises(BadImage, match="at most 64 megapixels"):  # by its header, before decoding
        decode_image(good._replace(data=bytes(bomb), width=16000, height=16000))
    assert_bad_image(good._replace(codec=PLAIN))
    raw = Part(0, bytes(12), 0, RAW, channels=3, bits=8, width=2, height=2)
    for change in (
        {"bits": 9},
        {"channels": 4},
        {"channels": 0},
        {"width": 0},
        {"width": 16385, "height": 1},
        {"data": bytes(13)},
        {"width": 60000, "height": 60000},
    ):
        assert_bad_image(raw._replace(**change))
    assert decode_image(raw).shape == (2, 2, 3)
    assert decode_image(good).shape == (30, 40, 3)


def test_a_deflate_bomb_is_not_inflated() -> None:
    import tracemalloc

    bomb = zlib.compress(bytes(200_000_000), 9)
    part = Part(0, bomb, 0, DEFLATED, channels=1, bits=8, width=10, height=10)
    tracemalloc.start()
    assert_bad_image(part, mask=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    good = zlib.compress(bytes(100))
    for wrong in (good[:-1], good[:-6], good + b"x", b"rubbish", zlib.compress(bytes(99)), b""):
        assert_bad_image(part._replace(data=wrong), mask=True)
    assert decode_mask(part._replace(data=good)).shape == (10, 10)


def test_a_png_of_another_size_is_rejected_before_decoding() -> None:
    part = Part(
        0, png(np.zeros((600, 500), np.uint8)), 0, PNG, channels=1, bits=8, width=50, height=60
    )
    with pytest.raises(BadImage, match="a PNG of 500x600, expected 50x60"):
        decode_image(part)
    for wrong in (b"", b"\x89PNG\r\n\x1a\n", bytes(part.data)[:80], jpeg(50, 60)):
        assert_bad_image(part._replace(data=wrong, width=500, height=600))
    assert decode_image(part._replace(width=500, height=600)).shape == (600, 500, 1)


@settings(max_examples=500)
@given(
    st.integers(0, 255), st.lists(st.integers(0, (1 << 64) - 1), max_size=9), st.binary(max_size=64)
)
def test_hostile_array_shapes_raise_only_record_error(
    code: int, shape: list[int], payload: bytes
) -> None:
    data = struct.pack(f"<BB6x{len(shape)}Q", code, len(shape), *shape) + payload
    try:
        found = decode_array(data)
    except RecordError:
        return
    assert found.nbytes == len(payload)


@pytest.mark.parametrize(
    "shape",
    [
        (1 << 32, 1 << 32),
        (0, 1 << 63),
        (1 << 63, 0, 2),
        ((1 << 64) - 1,),
        (1 << 61, 8),
        (0,) + (1 << 26,) * 7,
        (3, 0, (1 << 64) - 1),
    ],
)
def test_overflowing_shapes_are_rejected(shape: tuple[int, ...]) -> None:
    size = 0 if math.prod(shape) % (1 << 61) == 0 else 8
    with pytest.raises(RecordError, match="array shape"):
        decode_array(struct.pack(f"<BB6x{len(shape)}Q", 7, len(shape), *shape) + bytes(size))


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("int", Part(0, bytes(7))),
        ("float", Part(0, bytes(9))),
        ("int", Part(0, bytes(8), codec=ARRAY)),
        ("str", Part(0, b"\xff")),
        ("json", Part(0, b"NaN")),
        ("json", Part(0, b"[" * 100_000)),
        ("json", Part(0, b"")),
        ("array", Part(0, encode_array(np.zeros(3)))),
        ("array", Part(0, b"", codec=ARRAY)),
        ("array", Part(0, b"\xff" + bytes(15), codec=ARRAY)),
        ("mask", Part(0, bytes(4), codec=JPEG)),
    ],
)
def test_parts_of_another_kind_are_rejected(kind: str, part: Part) -> None:
    with pytest.raises(RecordError):
        decode_value(Field("x", kind), [part])


def test_two_parts_for_one_value_are_rejected() -> None:
    with pytest.raises(RecordError, match="the field is not a list"):
        decode_value(Field("x", "int"), [Part(0, bytes(8)), Part(0, bytes(8), 1)])
