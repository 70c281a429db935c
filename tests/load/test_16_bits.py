"""Images of 16 bits per channel arrive as uint16, or as float with all their bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fastload
from fastload import transforms as T
from fastload._decode.registry import BACKENDS
from fastload._store.fields import Field
from fastload.errors import ConfigError
from tests.decode.conftest import needs_backend
from tests.packed_datasets import encoded, pack_samples, photo

HEIGHT, WIDTH = 48, 60
COUNT = 6
IMAGE = (Field("image", "image"),)
Images = NDArray[np.uint16]


def smooth(seed: int, channels: int = 3) -> Images:
    """Returns a gradient whose lower bytes matter, with a little noise."""
    random = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(0, 1, WIDTH), np.linspace(0, 1, HEIGHT))
    planes = [20_000 * x + (9000 + 7000 * seed % 25_000) * y + 3000 * c for c in range(channels)]
    noise = random.integers(0, 700, (HEIGHT, WIDTH, channels))
    return (np.stack(planes, axis=2) + noise).astype(np.uint16)


COLOR = [smooth(i) for i in range(COUNT)]
GRAY = [smooth(i, 1) for i in range(COUNT)]


def dataset_of(
    dest: Path, images: Sequence[Any], fields: Sequence[Field] = IMAGE, **options: Any
) -> Path:
    return pack_samples(dest, fields, [{"image": each} for each in images], **options)


@pytest.fixture(scope="module")
def color(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dataset_of(tmp_path_factory.mktemp("color") / "packed", COLOR)


@pytest.fixture(scope="module")
def gray(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dataset_of(tmp_path_factory.mktemp("gray") / "packed", GRAY)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two JPEGs, then images of 16 bits."""
    jpegs = [encoded(photo(WIDTH, HEIGHT, seed=i)) for i in range(2)]
    return dataset_of(tmp_path_factory.mktemp("mixed") / "packed", [*jpegs, *COLOR[2:]])


def batch_of(path: Path, transform: Any = None, **options: Any) -> torch.Tensor:
    """Returns the images of all samples in one batch, in the order of the dataset."""
    options = {"batch_size": COUNT, "shuffle": False, "seed": 0, **options}
    batch = next(iter(fastload.DataLoader(path, transform=transform, **options)))
    images = batch["image"] if isinstance(batch, Mapping) else batch
    assert isinstance(images, torch.Tensor)
    return images


def values(batch: torch.Tensor) -> NDArray[Any]:
    """Returns the batch as (n, height, width, channels) numbers."""
    return batch.double().permute(0, 2, 3, 1).numpy()


backends = pytest.mark.parametrize("backend", list(BACKENDS))


@backends
@pytest.mark.parametrize("kind", ["gray", "color"])
def test_images_arrive_as_uint16(request: Any, backend: str, kind: str) -> None:
    needs_backend(backend)
    batch = batch_of(request.getfixturevalue(kind), backend=backend)
    images = GRAY if kind == "gray" else COLOR
    assert batch.dtype == torch.uint16
    assert np.array_equal(values(batch), np.stack(images))


GEOMETRY = {
    "resize": [T.Resize(30, 44)],
    "bilinear": [T.Resize(30, 44, filter="bilinear")],
    "nearest": [T.Resize(30, 44, filter="nearest")],
    "random crop": [T.RandomResizedCrop(40), T.HorizontalFlip(), T.VerticalFlip()],
    "letterbox": [T.Letterbox(64, 64, fill=40_000)],
}


@backends
@pytest.mark.parametrize("name", GEOMETRY)
def test_every_backend_delivers_the_same_values(color: Path, backend: str, name: str) -> None:
    needs_backend(backend)
    found = values(batch_of(color, GEOMETRY[name], backend=backend))
    wanted = values(batch_of(color, GEOMETRY[name], backend="reference"))
    assert abs(found - wanted).max() <= 1
    if name == "letterbox":
        assert (found[:, :6] == 40_000).all()


def test_letterbox_pads_with_the_same_gray(color: Path) -> None:
    assert (values(batch_of(color, [T.Letterbox(64, 64)]))[:, :6] == 114 * 257).all()
    narrow = batch_of(color, [T.Letterbox(64, 64), T.ToDtype("uint8")])
    assert (values(narrow)[:, :6] == 114).all()


def test_flips_and_crops_move_exact_values(gray: Path) -> None:
    transform = [T.CenterCrop((20, 30)), T.HorizontalFlip(1.0), T.VerticalFlip(1.0)]
    wanted = np.stack(GRAY)[:, 14:34, 15:45][:, ::-1, ::-1]
    for layout in ("NCHW", "channels_last"):
        assert np.array_equal(values(batch_of(gray, [*transform, T.Layout(layout)])), wanted)
    assert np.array_equal(batch_of(gray, [*transform, T.Layout("NHWC")]).numpy(), wanted)


@backends
def test_normalize_refers_to_0_to_1(color: Path, backend: str) -> None:
    needs_backend(backend)
    mean, std = (0.1, 0.2, 0.3), (0.2, 0.3, 0.4)
    found = batch_of(color, [T.Normalize(mean, std)], backend=backend)
    assert found.dtype == torch.float32
    wanted = (np.stack(COLOR) / 65535 - mean) / std
    np.testing.assert_allclose(values(found), wanted, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_to_dtype_scales_by_65535(color: Path, dtype: str) -> None:
    found = batch_of(color, [T.ToDtype(dtype)])
    wanted = torch.from_numpy(np.stack(COLOR) / np.float32(65535)).permute(0, 3, 1, 2)
    assert torch.equal(found, wanted.to(found.dtype))
    if dtype != "float16":
        unscaled = batch_of(color, [T.ToDtype(dtype, scale=False)])
        pixels = torch.from_numpy(np.stack(COLOR).astype(np.float32)).permute(0, 3, 1, 2)
        assert torch.equal(unscaled, pixels.to(unscaled.dtype))


def test_uint8_is_the_upper_byte(color: Path) -> None:
    found = batch_of(color, [T.ToDtype("uint8")])
    assert found.dtype == torch.uint8
    assert np.array_equal(values(found), np.stack(COLOR) >> 8)


def test_uint16_of_8_bit_images_keeps_white(tmp_path: Path) -> None:
    images = [(each >> 8).astype(np.uint8) for each in COLOR]
    path = dataset_of(tmp_path / "packed", images)
    found = batch_of(path, [T.ToDtype("uint16")])
    assert found.dtype == torch.uint16
    assert np.array_equal(values(found), np.stack(images) * 257.0)


COLORS = {
    "brightness": T.Brightness((1.7, 1.7)),
    "contrast": T.Contrast((1.9, 1.9)),
    "saturation": T.Saturation((1.8, 1.8)),
    "hue": T.Hue((0.2, 0.2)),
    "jitter": T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "grayscale": T.Grayscale(1.0),
    "blur": T.GaussianBlur(5, 1.5),
    "affine": T.RandomAffine(20, scale=(0.8, 1.2), fill=0),
    "erase": T.RandomErasing(1.0),
    "vertical flip": T.VerticalFlip(1.0),
}


@pytest.mark.parametrize("name", COLORS)
def test_color_transforms_work_on_16_bits(color: Path, name: str) -> None:
    """In the range 0 to 1, the result is that of the 8-bit image, but with finer values."""
    transform = [T.Resize(40, 40), COLORS[name]]
    wide = batch_of(color, transform)
    assert wide.dtype == torch.uint16
    narrow = batch_of(color, [*transform, T.ToDtype("uint8")])
    assert narrow.dtype == torch.uint8
    difference = abs(values(wide) / 65535 - values(narrow) / 255)
    # The hue of dark pixels depends on the last bit of 8.
    assert np.quantile(difference, 0.99) < 0.02
    assert (values(wide) % 257 != 0).mean() > 0.5
    floats = batch_of(color, [*transform, T.ToDtype("float32")])
    np.testing.assert_allclose(values(floats), values(wide) / 65535, atol=0.6 / 65535)


def test_colors_are_clipped_at_65535(color: Path) -> None:
    found = values(batch_of(color, [T.Brightness((3.0, 3.0))]))
    assert found.max() == 65535
    assert np.array_equal(found, (np.stack(COLOR) * 3.0).clip(0, 65535))


def test_pixel_values_of_fills_have_16_bits(color: Path) -> None:
    found = values(batch_of(color, [T.RandomErasing(1.0, value=(1, 300, 65_535))]))
    assert ((found == (1, 300, 65_535)).all(axis=3).sum(axis=(1, 2)) > 20).all()
    warped = values(batch_of(color, [T.RandomAffine((45, 45), fill=65_535)]))
    assert (warped[:, 0, 0] == 65_535).all()


def test_gray_becomes_color_and_back(gray: Path, color: Path) -> None:
    assert np.array_equal(values(batch_of(gray, color="rgb")), np.stack(GRAY).repeat(3, axis=3))
    assert np.array_equal(values(batch_of(color, color="bgr")), np.stack(COLOR)[..., ::-1])
    luma = (np.stack(COLOR).astype(np.int64) @ [19595, 38470, 7471] + 32768) // 65536
    assert np.array_equal(values(batch_of(color, color="gray"))[..., 0], luma)


def test_labels_and_masks_follow(tmp_path: Path) -> None:
    fields = (*IMAGE, Field("mask", "mask"), Field("depth", "image"))
    masks = [(each[:, :, 0] > 25_000).astype(np.uint16) * 40_000 for each in COLOR]
    samples = [
        {"image": (color >> 8).astype(np.uint8), "mask": mask, "depth": depth}
        for color, mask, depth in zip(COLOR, masks, GRAY, strict=True)
    ]
    path = pack_samples(tmp_path / "packed", fields, samples)
    crop = [T.CenterCrop((20, 30))]
    batch = next(iter(fastload.DataLoader(path, batch_size=COUNT, shuffle=False, transform=crop)))
    dtypes = {name: batch[name].dtype for name in ("image", "mask", "depth")}
    assert dtypes == {"image": torch.uint8, "mask": torch.uint16, "depth": torch.uint16}
    assert np.array_equal(batch["mask"].numpy(), np.stack(masks)[:, 14:34, 15:45])
    assert np.array_equal(values(batch["depth"]), np.stack(GRAY)[:, 14:34, 15:45])


def test_a_map_style_sample_is_uint16(color: Path) -> None:
    loader = fastload.DataLoader(color, batch_size=2)
    sample = loader.dataset[3]
    assert sample["image"].dtype == torch.uint16
    assert np.array_equal(sample["image"].permute(1, 2, 0).numpy(), COLOR[3])
    stacked = torch.utils.data.default_collate([sample, loader.dataset[4]])
    assert stacked["image"].dtype == torch.uint16


# ---- 8 and 16 bits in one field


def test_mixed_depths_need_a_dtype(mixed: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        batch_of(mixed, [T.CenterCrop(40)])
    message = str(caught.value)
    assert "field 'image' has images of 8 bits per channel (sample 0, samples/000)" in message
    assert "and 16 bits per channel (sample 2, samples/002)" in message
    assert "ToDtype('uint8')" in message
    batch_of(mixed, [T.CenterCrop(40), T.ToDtype("uint8")])


@backends
def test_mixed_depths_with_a_dtype(mixed: Path, backend: str) -> None:
    needs_backend(backend)
    pixels = [fastload.open(mixed)[i]["image"] for i in range(COUNT)]
    narrow = np.stack([*pixels[:2], *((each >> 8).astype(np.uint8) for each in pixels[2:])])
    wide = np.stack([*(each * np.uint16(257) for each in pixels[:2]), *pixels[2:]])
    options = {"backend": backend, "exact": True}
    for dtype, wanted in (("uint8", narrow), ("uint16", wide)):
        found = values(batch_of(mixed, [T.ToDtype(dtype)], **options))
        assert np.array_equal(found, wanted), dtype
    floats = batch_of(mixed, [T.Normalize(0.5, 0.25)], **options)
    np.testing.assert_allclose(values(floats), (wide / 65535 - 0.5) / 0.25, atol=1e-6)


def test_a_single_16_bit_image_is_enough(tmp_path: Path) -> None:
    """The manifest has the depths of all images, so that a batch cannot surprise."""
    images: list[Any] = [(each >> 8).astype(np.uint8) for each in COLOR] * 22
    images[131] = COLOR[5]
    path = dataset_of(tmp_path / "packed", images)
    with pytest.raises(ConfigError, match=r"16 bits per channel \(sample 131, samples/131\)"):
        batch_of(path, batch_size=8)
    assert batch_of(path, [T.ToDtype("uint8")], batch_size=8).dtype == torch.uint8


# ---- options that do not fit


@pytest.mark.parametrize("transform", [T.Letterbox(64, 64, fill=256), T.RandomAffine(9, fill=256)])
def test_a_fill_above_255_needs_16_bits(tmp_path: Path, color: Path, transform: Any) -> None:
    path = dataset_of(tmp_path / "packed", [(each >> 8).astype(np.uint8) for each in COLOR])
    with pytest.raises(ConfigError, match="'image': fill=256: expected at most 255, because"):
        batch_of(path, [transform])
    batch_of(color, [transform])


def test_erasing_above_255_needs_16_bits(tmp_path: Path, color: Path) -> None:
    path = dataset_of(tmp_path / "packed", [(each >> 8).astype(np.uint8) for each in COLOR])
    with pytest.raises(ConfigError, match="expected value to be a pixel value, 0 to 255"):
        batch_of(path, [T.RandomErasing(value=256)])
    batch_of(color, [T.RandomErasing(value=256)])


def test_float16_has_no_room_for_65535(color: Path) -> None:
    with pytest.raises(ConfigError, match=r"ToDtype\('float16', scale=False\): float16 ends at"):
        batch_of(color, [T.ToDtype("float16", scale=False)])
    batch_of(color, [T.ToDtype("float16")])


def test_normalize_and_an_integer_dtype_are_refused(color: Path) -> None:
    with pytest.raises(ConfigError, match=r"ToDtype\('uint16'\) requests uint16"):
        batch_of(color, [T.Normalize(0.5, 0.5), T.ToDtype("uint16")])


def test_compile_has_the_units_of_its_depth() -> None:
    plan = T.compile([T.Normalize(0.5, 0.25)], bits=16)
    assert plan.output == T.OutputFormat("float32", "NCHW", (32767.5,), (16383.75,), 16)
    assert T.compile(None, bits=16).output.dtype == "uint16"
    plans = T.compile_fields([T.ToDtype("float32")], ["image", "depth"], bits={"depth": 16})
    assert [plans[name].output.std for name in plans] == [(255.0,), (65535.0,)]
    with pytest.raises(ConfigError, match="bits=12: expected 8 or 16"):
        T.compile(None, bits=12)
