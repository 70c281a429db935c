"""The rewrite applies the EXIF orientation only if every pixel stays exact."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.corpus import corpus_dir
from tests.jpeg_samples import SAMPLINGS, Pixels, decode, encode, sample_image

core = pytest.importorskip("fastload._core", reason="not run: no native core")


def with_orientation(jpeg: bytes, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    body = b"Exif\0\0" + exif.tobytes().removeprefix(b"Exif\0\0")
    return jpeg[:2] + b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body + jpeg[2:]


def applied(pixels: Pixels, orientation: int) -> Pixels:
    """Applies the remaining orientation, as the loader does."""
    oriented = {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.swapaxes(0, 1),
        6: np.rot90(pixels, -1),
        7: pixels.swapaxes(0, 1)[::-1, ::-1],
        8: np.rot90(pixels),
    }
    return oriented[orientation]


def by_pillow(jpeg: bytes) -> Pixels:
    pixels = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(jpeg))))
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def assert_same_pixels(jpeg: bytes, *, both: bool = True) -> int:
    """Compares the pixels with Pillow; returns the remaining orientation."""
    expected = by_pillow(jpeg)
    for orient in (True, False) if both else (True,):
        rewritten = core.rewrite(jpeg, orient=orient)
        pixels = decode(rewritten.jpeg)
        assert pixels.shape[:2] == (rewritten.height, rewritten.width)
        np.testing.assert_array_equal(applied(pixels, rewritten.orientation), expected)
        # Without EXIF in the new file, no decoder applies the orientation twice.
        assert core.jpeg_header(rewritten.jpeg).orientation == 1
        if not orient:
            assert rewritten.orientation == core.jpeg_header(jpeg).orientation
    return int(core.rewrite(jpeg).orientation)


def test_orientation_corpus() -> None:
    for path in sorted((corpus_dir() / "orientation").glob("*.jpg")):
        assert_same_pixels(path.read_bytes(), both=False)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_and_sampling(sampling: str, orientation: int) -> None:
    for size in ((64, 32), (50, 32), (64, 29), (16, 16), (3, 5)):
        left = assert_same_pixels(
            with_orientation(encode(sample_image(*size, seed=orientation), sampling), orientation)
        )
        assert left in (orientation, 1)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_vertical_flip_is_applied_if_it_is_exact(sampling: str) -> None:
    assert assert_same_pixels(with_orientation(encode(sample_image(333, 64), sampling), 4)) == (
        4 if sampling == "440" else 1
    )
    assert assert_same_pixels(with_orientation(encode(sample_image(333, 65), sampling), 4)) == 4


def test_a_progressive_image_is_flipped() -> None:
    out = io.BytesIO()
    Image.fromarray(sample_image(70, 48)).save(out, "JPEG", progressive=True)
    assert assert_same_pixels(with_orientation(out.getvalue(), 4)) == 1


@pytest.mark.parametrize("value", [0, 9, 200])
def test_an_invalid_orientation_is_ignored(value: int) -> None:
    assert assert_same_pixels(with_orientation(encode(sample_image(64, 32), "444"), value)) == 1
