"""Generated photographs: size like real ones, natural spectrum, same bytes for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fastload._tools.scenes import photo, scene, textures

LEAST, MOST = 1.5, 5.0  # bits per pixel at quality 90


def draw(seed: int, width: int, height: int) -> Image.Image:
    return photo.photo(np.random.default_rng([seed, width, height]), width, height)


def bits_per_pixel(image: Image.Image) -> float:
    """Bits per pixel of the image as a JPEG of quality 90 (4:2:0 if it has colors)."""
    return 8 * len(photo.jpeg_bytes(image)) / (image.width * image.height)


@pytest.mark.parametrize(
    ("width", "height", "n_seeds"),
    [
        (128, 128, 12),
        (160, 320, 8),
        (320, 160, 8),
        (333, 500, 6),
        (500, 375, 6),
        (640, 481, 3),
        (1600, 900, 2),
        (1920, 1280, 2),
    ],
)
def test_bits_per_pixel_match_real_photographs(width: int, height: int, n_seeds: int) -> None:
    for seed in range(n_seeds):
        image = draw(seed, width, height)
        assert (image.mode, image.size) == ("RGB", (width, height))
        assert LEAST <= bits_per_pixel(image) <= MOST, f"4:2:0, {seed = }"
        assert LEAST <= bits_per_pixel(image.convert("L")) <= MOST, f"gray, {seed = }"
        full = 8 * len(photo.jpeg_bytes(image, subsampling=0)) / (width * height)
        assert LEAST <= full <= MOST, f"4:4:4, {seed = }"


@pytest.mark.parametrize("bpp", [2.0, 2.6, 3.4])
def test_requested_bits_per_pixel_are_met(bpp: float) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        image = photo.render(scene.random_scene(rng, 500, 375), rng, bpp=bpp)
        assert bits_per_pixel(image) == pytest.approx(bpp, rel=0.12), f"{seed = }"


def test_the_seed_decides_the_pixels() -> None:
    first = draw(3, 200, 150)
    again = draw(3, 200, 150)
    other = draw(4, 200, 150)
    assert first.tobytes() == again.tobytes()
    difference = np.asarray(first, np.int16) - np.asarray(other, np.int16)
    assert np.abs(difference).mean() > 10


def test_an_image_does_not_depend_on_earlier_images() -> None:
    alone = draw(5, 150, 100).tobytes()
    textures.tile.cache_clear()
    draw(6, 150, 100)
    assert draw(5, 150, 100).tobytes() == alone


def test_texture_tiles_repeat_without_a_seam() -> None:
    for kind in textures.KINDS:
        tile = textures.tile(kind, False)
        assert tile.mean() == pytest.approx(0, abs=0.02)
        assert tile.std() == pytest.approx(1, abs=0.05)
        seam = np.abs(tile[0] - tile[-1]).mean()
        inside = np.abs(np.diff(tile, axis=0)).mean()
        assert seam < 1.5 * inside, kind


def test_crop_wraps_around_the_tile() -> None:
    wide = textures.crop("stone", np.random.default_rng(0), width=2500, height=1100)
    assert wide.shape == (1100, 2500)
    np.testing.assert_array_equal(wide[:, : 2500 - textures.SIDE], wide[:, textures.SIDE :])
    np.testing.assert_array_equal(wide[: 1100 - textures.SIDE], wide[textures.SIDE :])


def test_images_have_smooth_parts_and_edges() -> None:
    """Noise of the same size would have neither, because all its blocks are similar."""
    spreads = []
    for seed in range(6):
        gray = np.asarray(draw(seed, 512, 384).convert("L"), np.float32)
        blocks = gray.reshape(48, 8, 64, 8).std(axis=(1, 3)).ravel()
        low, high = np.percentile(blocks, [5, 95])
        spreads.append(high / low)
    assert np.median(spreads) > 4


def test_too_many_regions_are_refused_and_the_canvas_still_works() -> None:
    rng = np.random.default_rng(0)
    region = scene.material("rock", rng)
    canvas = scene.Canvas(32, 32, region)
    for _ in range(scene.MAX_REGIONS):
        canvas.add(region)
    with pytest.raises(ValueError, match="more than 256 regions"):
        canvas.add(region)
    assert photo.render(canvas, rng).size == (32, 32)
