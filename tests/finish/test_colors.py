"""Batched color operations with parameters per sample equal plain formulas on one sample."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from fastload import transforms as T
from fastload._finish import color
from fastload._finish.batch import Finish
from fastload._plan.color import (
    BRIGHTNESS,
    CONTRAST,
    GRAYSCALE,
    HUE,
    SATURATION,
)
from fastload.transforms import PlanRows, compile
from tests.finish.images import WIDTH, N, batch

Floats = NDArray[np.float64]
WEIGHTS = np.array([0.2989, 0.587, 0.114])


def finished(
    *transforms: T.Transform, images: torch.Tensor | None = None
) -> tuple[Floats, PlanRows, torch.Tensor]:
    """Returns pixel values (n, height, width, channels)."""
    images = batch() if images is None else images
    plan = compile([*transforms, T.ToDtype("float32", scale=False), T.Layout("NHWC")])
    rows = plan.rows(
        np.arange(len(images)), np.full((len(images), 2), images.shape[1:3]), seed=2, epoch=0
    )
    return Finish(plan)(images, rows.parameters).numpy().astype(np.float64), rows, images


def luma(image: Floats) -> Floats:
    return (
        image if image.shape[2] == 1 else np.asarray((image * WEIGHTS).sum(axis=2, keepdims=True))
    )


def reference(kind: str, image: Floats, value: float) -> Floats:
    """Computes one image in float64 with the formulas of torchvision."""
    if kind == "brightness":
        return np.clip(image * value, 0, 255)
    if kind == "contrast":
        return np.clip(image * value + float(luma(image).mean()) * (1 - value), 0, 255)
    if kind == "saturation":
        return np.clip(image * value + luma(image) * (1 - value), 0, 255)
    if kind == "grayscale":
        return np.broadcast_to(luma(image), image.shape) if value else image
    hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in image.reshape(-1, 3) / 255]
    rotated = [colorsys.hsv_to_rgb((h + value) % 1.0, s, v) for h, s, v in hsv]
    return np.array(rotated).reshape(image.shape) * 255


CASES = [
    ("brightness", T.Brightness(0.6)),
    ("contrast", T.Contrast(0.6)),
    ("saturation", T.Saturation(0.6)),
    ("hue", T.Hue(0.5)),
    ("grayscale", T.Grayscale(0.5)),
    ("brightness", T.Brightness((0.0, 3.0), p=0.5)),
    ("hue", T.Hue((0.2, 0.3), p=0.4)),
    ("contrast", T.Contrast(0.6, p=0.3)),
    ("saturation", T.Saturation(1.0, p=0.9)),
]


@pytest.mark.parametrize(
    ("kind", "transform"), CASES, ids=[str(transform) for _, transform in CASES]
)
def test_each_sample_is_changed_by_its_own_amount(kind: str, transform: T.Transform) -> None:
    result, rows, images = finished(transform, images=batch(16))
    values = rows.parameters[:, 0].tolist()
    assert len(set(values)) > (1 if kind == "grayscale" else 3)
    for slot, value in enumerate(values):
        expected = reference(kind, images[slot].numpy().astype(np.float64), value)
        assert np.abs(result[slot] - expected).max() < 0.01  # pixel values; float32 against float64
    assert np.abs(result - images.numpy()).max() > 1


@pytest.mark.parametrize(
    ("enhance", "transform"),
    [
        (ImageEnhance.Brightness, T.Brightness((0.3, 1.7))),
        (ImageEnhance.Contrast, T.Contrast((0.3, 1.7))),
        (ImageEnhance.Color, T.Saturation((0.3, 1.7))),
    ],
)
def test_pillow_agrees_within_rounding(
    enhance: type[ImageEnhance.Brightness], transform: T.Transform
) -> None:
    """Pillow rounds the mean and each luma and truncates: up to 2, with factors up to 1.7."""
    result, rows, images = finished(transform)
    for slot, value in enumerate(rows.parameters[:, 0].tolist()):
        expected = np.asarray(
            enhance(Image.fromarray(images[slot].numpy())).enhance(value), np.float64
        )
        assert np.abs(result[slot] - expected).max() < 2.1


def test_color_jitter_equals_its_parts_in_order() -> None:
    result, rows, images = finished(T.ColorJitter(0.5, 0.5, 0.5, 0.2))
    assert rows.parameters.shape == (N, 4)
    for slot in range(N):
        expected = images[slot].numpy().astype(np.float64)
        for kind, value in zip(
            ("brightness", "contrast", "saturation", "hue"),
            rows.parameters[slot].tolist(),
            strict=True,
        ):
            expected = reference(kind, expected, value)
        assert np.abs(result[slot] - expected).max() < 0.05


def test_the_order_of_transforms_matters() -> None:
    first, *_ = finished(T.Brightness((2.0, 2.0)), T.Contrast((0.2, 0.2)))
    second, *_ = finished(T.Contrast((0.2, 0.2)), T.Brightness((2.0, 2.0)))
    images = batch().numpy().astype(np.float64)
    for slot in range(N):
        assert (
            np.abs(
                first[slot] - reference("contrast", reference("brightness", images[slot], 2.0), 0.2)
            ).max()
            < 0.01
        )
        assert (
            np.abs(
                second[slot]
                - reference("brightness", reference("contrast", images[slot], 0.2), 2.0)
            ).max()
            < 0.01
        )
    assert np.abs(first - second).max() > 10


def test_one_p_applies_to_the_whole_jitter() -> None:
    _, rows, _ = finished(T.ColorJitter(0.5, 0.5, 0.5, 0.2, p=0.5), images=batch(200))
    changed = rows.parameters != np.array([1, 1, 1, 0], np.float32)
    assert (changed.all(axis=1) | ~changed.any(axis=1)).all()
    assert 0.35 < changed[:, 0].mean() < 0.65


def gaussian(image: Floats, sigma: float, kernel: int) -> Floats:
    reach = kernel // 2
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights /= weights.sum()
    padded = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    rows = sum(weight * padded[i : i + image.shape[0]] for i, weight in enumerate(weights))
    return np.asarray(
        sum(weight * rows[:, i : i + image.shape[1]] for i, weight in enumerate(weights))
    )


@pytest.mark.parametrize(
    "transform",
    [T.GaussianBlur(5), T.GaussianBlur(9, (0.5, 4.0), p=0.5), T.GaussianBlur(3, 1.0)],
    ids=str,
)
def test_blur_is_the_gaussian_of_each_sample(transform: T.GaussianBlur) -> None:
    result, rows, images = finished(transform, images=batch(12))
    for slot, sigma in enumerate(rows.parameters[:, 0].tolist()):
        image = images[slot].numpy().astype(np.float64)
        expected = gaussian(image, sigma, transform.kernel) if sigma else image
        assert np.abs(result[slot] - expected).max() < 0.01
    assert (rows.parameters[:, 0] == 0).any() == (transform.p < 1)


@pytest.mark.parametrize("value", [0, (10.0, 200.0, 30.0)], ids=str)
def test_erasing_overwrites_only_the_drawn_box(value: float | tuple[float, ...]) -> None:
    result, rows, images = finished(T.RandomErasing(0.6, value=value), images=batch(40))
    erased = 0
    for slot, box in enumerate(rows.parameters.astype(int).tolist()):
        x0, y0, x1, y1 = box
        expected = images[slot].numpy().astype(np.float64)
        expected[y0:y1, x0:x1] = value
        erased += x1 > x0
        assert result[slot].tolist() == expected.tolist()
        assert x1 < WIDTH or x0 > 0
    assert 12 < erased < 36


def test_erased_boxes_have_the_requested_area_and_ratio() -> None:
    plan = compile([T.RandomErasing(1.0, scale=(0.1, 0.2), ratio=(0.5, 1.0))])
    rows = plan.rows(np.arange(2000), np.full((2000, 2), (200, 300)), seed=0, epoch=0)
    x0, y0, x1, y1 = rows.parameters.T.astype(np.float64)
    area, ratio = (x1 - x0) * (y1 - y0) / 60_000, (y1 - y0) / (x1 - x0)
    assert 0.098 < area.min() < 0.102
    assert 0.198 < area.max() < 0.202
    assert 0.48 < ratio.min() < 0.52
    assert 0.97 < ratio.max() < 1.03
    assert abs(x0.mean() - (300 - (x1 - x0)).mean() / 2) < 5


def test_the_erased_box_does_not_depend_on_p() -> None:
    plan = compile([T.RandomErasing(0.1, scale=(0.1, 0.2))])
    x0, y0, x1, y1 = plan.rows(
        np.arange(5000), np.full((5000, 2), 100), seed=0, epoch=0
    ).parameters.T
    area = ((x1 - x0) * (y1 - y0))[x1 > x0] / 10_000
    assert 400 < len(area) < 600
    assert area.mean() == pytest.approx(0.15, abs=0.006)  # uniform: 4 sigma


def test_an_erased_box_is_smaller_than_the_image() -> None:
    """As in torchvision, the box must be smaller than the image in both directions."""
    plan = compile([T.RandomErasing(1.0, scale=(0.85, 1.0), ratio=(1.0, 1.0))])
    boxes = plan.rows(np.arange(200), np.full((200, 2), 10), seed=0, epoch=0).parameters
    assert set((boxes[:, 2] - boxes[:, 0]).tolist()) == {
        0.0,
        9.0,
    }  # 0: none of ten boxes was small enough


def test_grayscale_images_work_with_all_transforms() -> None:
    images = batch(4, channels=1)
    result, rows, _ = finished(
        T.Saturation(0.5), T.Hue(0.2), T.Grayscale(1.0), T.Contrast((0.5, 0.5)), images=images
    )
    for slot in range(4):
        assert (
            np.abs(
                result[slot] - reference("contrast", images[slot].numpy().astype(np.float64), 0.5)
            ).max()
            < 0.01
        )
    assert rows.parameters.shape == (4, 4)


def test_amounts_are_uniform_in_their_range() -> None:
    rows = compile(
        [T.Brightness(0.4), T.Hue(0.1), T.GaussianBlur(3, (1.0, 3.0)), T.Grayscale(0.25)]
    ).rows(np.arange(10_000), np.full((10_000, 2), 8), seed=0, epoch=0)
    for column, (low, high) in zip(
        rows.parameters.T, ((0.6, 1.4), (-0.1, 0.1), (1.0, 3.0)), strict=False
    ):
        counts = np.histogram(column, bins=20, range=(low, high))[0]
        assert counts.sum() == 10_000
        assert (
            (counts - 500) ** 2 / 500
        ).sum() < 52  # 19 degrees of freedom: 99.99th percentile 51.6
    assert rows.parameters[:, 3].mean() == pytest.approx(0.25, abs=0.02)


def test_kernels_do_not_change_neutral_samples() -> None:
    x = batch().permute(0, 3, 1, 2).to(torch.float32)
    one = torch.ones(N, 1)
    zero = torch.zeros(N, 1)
    for result in (
        color.adjust_brightness(BRIGHTNESS, x.clone(), one),
        color.adjust_contrast(CONTRAST, x.clone(), one),
        color.adjust_saturation(SATURATION, x.clone(), one),
        color.adjust_hue(HUE, x.clone(), zero),
        color.to_grayscale(GRAYSCALE, x.clone(), zero),
        color.erase(compile([T.RandomErasing()]).ops[0], x.clone(), torch.zeros(N, 4)),
    ):
        assert (result - x).abs().max() < 1e-3
