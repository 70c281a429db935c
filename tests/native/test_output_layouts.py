"""Layouts, dtypes, strides, colors, borders and orientation of outputs equal NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fastload._decode.backend import Filter, PixelFormat
from tests.corpus import corpus_dir
from tests.decoding import FALLBACK_SIMD, at_most, native, pixels_of, raw_pixels, run
from tests.jpeg_samples import decode, encode, sample_image

DATA = encode(sample_image(90, 61), "444", 95)
WHOLE = decode(DATA)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def assert_paths_agree(**options: Any) -> Any:
    """Decodes with vector and portable code, which must write the same bytes."""
    found = pixels_of(native(), DATA, (90, 61), **options)
    for level in FALLBACK_SIMD:
        with at_most(level):
            again = pixels_of(native(), DATA, (90, 61), **options)
        assert np.array_equal(np.asarray(found), np.asarray(again)), level
    return found


def test_nhwc_equals_the_decoded_image() -> None:
    assert np.array_equal(assert_paths_agree(), WHOLE)


def test_nchw_is_the_transpose_of_nhwc() -> None:
    assert np.array_equal(assert_paths_agree(pixels=PixelFormat("nchw")), WHOLE.transpose(2, 0, 1))


def test_bgr_is_rgb_reversed() -> None:
    assert np.array_equal(assert_paths_agree(pixels=PixelFormat(color="bgr")), WHOLE[:, :, ::-1])
    assert np.array_equal(
        assert_paths_agree(pixels=PixelFormat("nchw", "bgr")), WHOLE[:, :, ::-1].transpose(2, 0, 1)
    )
    image = sample_image(31, 20)
    assert np.array_equal(
        raw_pixels(native(), image, (31, 20), pixels=PixelFormat(color="bgr")), image[:, :, ::-1]
    )


def test_gray_is_luma() -> None:
    luma = np.asarray(Image.fromarray(WHOLE).convert("L")).astype(int)
    found = assert_paths_agree(pixels=PixelFormat(color="gray"), channels=1)[:, :, 0].astype(int)
    assert abs(found - luma).max() <= 2  # Pillow computes luma from rounded RGB
    image = sample_image(31, 20)
    raw = raw_pixels(native(), image, (31, 20), pixels=PixelFormat(color="gray"), channels=1)
    assert np.array_equal(raw[:, :, 0], np.asarray(Image.fromarray(image).convert("L")))


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_a_gray_image_is_repeated_in_every_channel(layout: Any) -> None:
    data = encode(sample_image(40, 30), "gray")
    found = pixels_of(native(), data, (20, 25), pixels=PixelFormat(layout))
    planes = found if layout == "nchw" else found.transpose(2, 0, 1)
    single = pixels_of(native(), data, (20, 25), pixels=PixelFormat(color="gray"), channels=1)[
        :, :, 0
    ]
    assert all(np.array_equal(plane, single) for plane in planes)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("white", [1.0, 255.0])
def test_floats_are_normalized(layout: Any, dtype: torch.dtype, white: float) -> None:
    shape = (1, 3, 61, 90) if layout == "nchw" else (1, 61, 90, 3)
    mean, std = (tuple(white * value for value in values) for values in (MEAN, STD))
    output = torch.empty(shape, dtype=dtype)
    run(
        native(),
        [DATA],
        (90, 61),
        pixels=PixelFormat(layout, mean=mean, std=std, white=white),
        output=output,
    ).raise_first()
    channels = (3, 1, 1) if layout == "nchw" else (3,)
    values = (
        torch.from_numpy(WHOLE.copy()).permute(2, 0, 1)
        if layout == "nchw"
        else torch.from_numpy(WHOLE.copy())
    )
    pixel_mean, pixel_std = (
        torch.tensor([255 * value for value in values]).view(channels) for values in (MEAN, STD)
    )
    expected = ((values.float() - pixel_mean) / pixel_std).to(dtype)
    assert torch.equal(output[0], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("layout", "color", "n"),
    [
        ("nchw", "rgb", 3),
        ("nhwc", "rgb", 3),
        ("nchw", "bgr", 3),
        ("nhwc", "bgr", 3),
        ("nchw", "gray", 1),
        ("nhwc", "gray", 1),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_floats_are_equal_with_every_instruction_set(
    layout: Any, color: Any, n: int, dtype: torch.dtype, channels: int
) -> None:
    """Row lengths around whole registers: vector code equals the portable table."""
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    usual = PixelFormat(layout, color, mean=MEAN[:n], std=STD[:n], fill=(3, 200, 77)[:n])
    ties = PixelFormat(
        layout, color, mean=(-1 / 2, -1 / 16, -1 / 2)[:n], std=(1.0,) * n, white=255.0
    )  # halfway between two 16-bit numbers
    for width, pixels in itertools.product(
        (1, 7, 8, 9, 16, 23, 24, 25, 40, 47, 48, 49, 90), (usual, ties)
    ):
        image = np.random.default_rng(width).integers(0, 256, (5, width, channels), np.uint8)

        def found(
            image: NDArray[np.uint8] = image, width: int = width, pixels: PixelFormat = pixels
        ) -> torch.Tensor:
            output = torch.full(
                (1, n, 8, width + 6) if layout == "nchw" else (1, 8, width + 6, n),
                -1.0,
                dtype=dtype,
            )
            run(
                native(),
                [image.tobytes()],
                (width, 5),
                output=output,
                pixels=pixels,
                codec=1,
                raw_w=width,
                raw_h=5,
                raw_channels=channels,
                raw_bits=8,
                pad_left=4,
                pad_top=2,
            ).raise_first()
            return output.view(bits)

        best = found()
        for level in FALLBACK_SIMD:
            with at_most(level):
                assert torch.equal(best, found()), (width, level)


def test_floats_without_mean_range_from_zero_to_white() -> None:
    output = torch.empty(1, 61, 90, 3)
    run(native(), [DATA], (90, 61), output=output).raise_first()
    assert torch.allclose(output[0], torch.from_numpy(WHOLE / np.float32(255)), atol=1e-7)
    run(native(), [DATA], (90, 61), output=output, pixels=PixelFormat(white=255.0)).raise_first()
    assert torch.equal(output[0], torch.from_numpy(WHOLE.astype(np.float32)))


@pytest.mark.parametrize("value", [0.0, 1e-8, 6e-8, 6.1e-5, 1.0, 65504.0, 65519.9, 65520.0, 1e30])
def test_half_precision_rounds_like_torch(value: float) -> None:
    """With mean = -value and std = 1, pixel value 0 becomes the value itself."""
    for dtype in (torch.float16, torch.bfloat16):
        output = torch.empty(1, 2, 2, 1, dtype=dtype)
        run(
            native(),
            [bytes(4)],
            (2, 2),
            output=output,
            codec=1,
            raw_w=2,
            raw_h=2,
            raw_channels=1,
            raw_bits=8,
            pixels=PixelFormat(color="gray", mean=(-value,), std=(1.0,), white=255.0),
        ).raise_first()
        assert torch.equal(output, torch.full_like(output, 0).fill_(torch.tensor(value).to(dtype)))


def strided(memory: NDArray[np.uint8], kind: str) -> NDArray[np.uint8]:
    """Returns a (2, 61, 90, 3) view of larger memory."""
    if kind == "row gaps":
        return memory[:2, :122:2, :90, :3]
    if kind == "pixel gaps":
        return memory[:2, :61, :180:2, :3]
    if kind == "channel gaps":
        return memory[:2, :61, :90, ::2][:, :, :, :3]
    if kind == "reversed rows":
        return memory[1::-1, 60::-1, :90, :3]
    return memory.transpose(0, 2, 1, 3)[:2, :61, :90, :3]  # "transposed"


@pytest.mark.parametrize(
    "kind", ["row gaps", "pixel gaps", "channel gaps", "reversed rows", "transposed"]
)
def test_outputs_may_have_any_strides(kind: str) -> None:
    memory = np.full((3, 190, 200, 6), 77, np.uint8)
    output = strided(memory, kind)
    run(native(), [DATA, DATA], (90, 61), output=output, flip=[0, 1]).raise_first()
    assert np.array_equal(output[0], WHOLE)
    assert np.array_equal(output[1], WHOLE[:, ::-1])
    output[:] = 77
    assert (memory == 77).all(), "bytes outside the view were written"


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_letterbox_borders_have_the_fill_color(layout: Any, dtype: Any) -> None:
    pixels = PixelFormat(layout, fill=(114, 7, 255), white=255.0)
    found = pixels_of(
        native(),
        DATA,
        (45, 30),
        canvas=(70, 51),
        pad_left=11,
        pad_top=9,
        pixels=pixels,
        dtype=dtype,
    )
    found = found.transpose(1, 2, 0) if layout == "nchw" else found
    expected = np.empty((51, 70, 3), dtype)
    expected[:] = (114, 7, 255)
    expected[9:39, 11:56] = pixels_of(native(), DATA, (45, 30))
    assert np.array_equal(found, expected)


def test_other_slots_are_not_written() -> None:
    output = np.full((3, 61, 90, 3), 77, np.uint8)
    run(native(), [DATA], (90, 61), output=output[1:2]).raise_first()
    assert (output[0] == 77).all()
    assert (output[2] == 77).all()
    assert np.array_equal(output[1], WHOLE)


def oriented(image: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    return {
        1: image,
        2: image[:, ::-1],
        3: image[::-1, ::-1],
        4: image[::-1],
        5: image.transpose(1, 0, 2),
        6: np.rot90(image, -1),
        7: image[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(image),
    }[orientation]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_before_region_and_resize(orientation: int) -> None:
    upright = oriented(WHOLE, orientation)
    height, width = upright.shape[:2]
    assert np.array_equal(
        pixels_of(native(), DATA, (width, height), orientation=orientation), upright
    )
    part = np.ascontiguousarray(upright[7:47, 5:55])
    request = {"x": 5, "y": 7, "w": 50, "h": 40, "orientation": orientation, "flip": 1, "exact": 1}
    assert np.array_equal(
        pixels_of(native(), DATA, (20, 33), **request), raw_pixels(native(), part, (20, 33), flip=1)
    )
    assert np.array_equal(
        raw_pixels(native(), WHOLE, (20, 33), filter=Filter.NEAREST, **request),
        raw_pixels(native(), part, (20, 33), filter=Filter.NEAREST, flip=1),
    )
    scaled = pixels_of(native(), DATA, (20, 15), orientation=orientation).astype(int)
    assert (
        abs(
            scaled - raw_pixels(native(), np.ascontiguousarray(upright), (20, 15)).astype(int)
        ).mean()
        < 4
    )


def test_corpus_images_are_upright() -> None:
    for path in sorted((corpus_dir() / "orientation").glob("*_[1-8].jpg")):
        image = Image.open(path)
        upright = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        height, width = upright.shape[:2]
        orientation = image.getexif().get(0x0112, 1)
        assert np.array_equal(
            pixels_of(native(), path.read_bytes(), (width, height), orientation=orientation),
            upright,
        ), path.name


def test_masks_with_8_and_32_bits_share_a_batch() -> None:
    small, large = (
        np.arange(12, dtype=dtype).reshape(3, 4, 1) + 200 for dtype in (np.uint8, np.uint32)
    )
    large[0, 0, 0] = 123_456_789
    result = run(
        native(),
        [small.tobytes(), large.tobytes()],
        (4, 3),
        channels=4,
        pixels=PixelFormat(color="stored", fill=255),
        codec=1,
        raw_w=4,
        raw_h=3,
        raw_channels=1,
        raw_bits=[8, 32],
        filter=Filter.NEAREST,
    )
    result.raise_first()
    assert np.array_equal(
        np.asarray(result.output).view(np.uint32)[:, :, :, 0], np.stack([small, large])[..., 0]
    )
