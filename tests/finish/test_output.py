"""Dtype, layout and normalization of finished batches, for any chunk size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

import fastload._finish.batch
from fastload import transforms as T
from fastload._finish.batch import Finish
from fastload.errors import ConfigError
from fastload.transforms import compile
from tests.finish.images import HEIGHT, WIDTH, batch

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DTYPES = {
    "uint8": torch.uint8,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
COLORS: list[T.Transform] = [
    T.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.7),
    T.Grayscale(0.3),
    T.GaussianBlur(5, p=0.5),
    T.RandomErasing(0.5),
]


def run(
    transforms: list[T.Transform], images: torch.Tensor, ids: ArrayLike | None = None
) -> torch.Tensor:
    plan = compile(transforms)
    numbers = np.arange(len(images)) if ids is None else ids
    sizes = np.full((len(images), 2), images.shape[1:3])
    rows = plan.rows(numbers, sizes, seed=0, epoch=0)
    return Finish(plan)(images, rows.parameters)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_normalizing_is_float32_arithmetic_rounded_once(dtype: str) -> None:
    """Bit-identical to the native core: (pixel value - mean) / std in float32, then rounded."""
    images = batch()
    found = run([T.Normalize(MEAN, STD), T.ToDtype(dtype)], images)
    mean, std = (np.array([255.0 * each for each in values], np.float32) for values in (MEAN, STD))
    expected = (
        torch.from_numpy((images.numpy().astype(np.float32) - mean) / std)
        .permute(0, 3, 1, 2)
        .to(DTYPES[dtype])
    )
    assert found.dtype == DTYPES[dtype]
    assert torch.equal(found, expected)


def test_units_are_0_to_1_as_in_torchvision() -> None:
    images = batch()
    planes = images.permute(0, 3, 1, 2).double() / 255
    expected = (planes - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    assert (run([T.Normalize(MEAN, STD)], images) - expected).abs().max() < 1e-5
    assert (run([T.ToDtype("float32")], images) - planes).abs().max() < 1e-6
    assert torch.equal(
        run([T.ToDtype("float32", scale=False)], images), images.permute(0, 3, 1, 2).float()
    )
    assert torch.equal(run([], images), images.permute(0, 3, 1, 2))


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("colors", [[], COLORS], ids=["plain", "colors"])
def test_layouts_hold_the_same_numbers(dtype: str, colors: list[T.Transform]) -> None:
    images = batch()
    planar, interleaved, last = (
        run([*colors, T.ToDtype(dtype), T.Layout(layout)], images)
        for layout in ("NCHW", "NHWC", "channels_last")
    )
    assert planar.shape == last.shape == (6, 3, HEIGHT, WIDTH)
    assert interleaved.shape == (6, HEIGHT, WIDTH, 3)
    assert planar.is_contiguous()
    assert interleaved.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(planar, last)
    assert torch.equal(planar, interleaved.permute(0, 3, 1, 2))
    assert {planar.dtype, interleaved.dtype, last.dtype} == {DTYPES[dtype]}


def test_uint8_is_rounded_once_at_the_end() -> None:
    images = batch()
    exact = run([*COLORS, T.ToDtype("float32", scale=False)], images)
    assert torch.equal(run(COLORS, images), exact.round().to(torch.uint8))


def test_unchanged_samples_keep_every_value() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).repeat(3, 1, 1, 3)
    result = run(
        [
            T.Brightness((1.0, 1.0)),
            T.Contrast(0.5, p=0.0),
            T.GaussianBlur(3, p=0.0),
            T.Hue((0.0, 0.0)),
        ],
        images,
    )
    assert torch.equal(result, images.permute(0, 3, 1, 2))


def test_a_sample_has_the_same_result_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    images = batch(10)
    whole = run([*COLORS, T.Normalize(MEAN, STD)], images)
    order = torch.tensor([3, 9, 0, 1, 7, 2])
    part = run([*COLORS, T.Normalize(MEAN, STD)], images[order], order.numpy())
    assert (part - whole[order]).abs().max() < 1e-4  # convolutions may sum in another order
    monkeypatch.setattr(fastload._finish.batch, "_CHUNK_CPU", 3 * images[0].numel())
    assert (run([*COLORS, T.Normalize(MEAN, STD)], images) - whole).abs().max() < 1e-4


def test_a_sample_with_unchanged_hue_is_bit_identical_in_a_mixed_batch() -> None:
    colors = [T.ColorJitter(0.4, 0.4, 0.4, 0.2, p=0.6), T.Grayscale(0.2), T.Normalize(MEAN, STD)]
    images = batch(10)
    whole = run(colors, images)
    for place in range(10):
        assert torch.equal(
            run(colors, images[place : place + 1], np.array([place])), whole[place : place + 1]
        ), place


def test_erasing_after_normalize_writes_normalized_values() -> None:
    images = batch(20)
    plan = compile([T.Normalize(MEAN, STD), T.RandomErasing(1.0, value=-7.5)])
    rows = plan.rows(np.arange(20), np.full((20, 2), (HEIGHT, WIDTH)), seed=0, epoch=0)
    result = Finish(plan)(images, rows.parameters)
    plain = run([T.Normalize(MEAN, STD)], images)
    for slot, (x0, y0, x1, y1) in enumerate(rows.parameters.astype(int).tolist()):
        expected = plain[slot].clone()
        expected[:, y0:y1, x0:x1] = -7.5
        assert torch.equal(result[slot], expected)


def test_results_are_written_to_the_given_memory() -> None:
    images = batch()
    for layout in ("NCHW", "NHWC", "channels_last"):
        plan = compile([T.Brightness(0.3), T.Normalize(MEAN, STD), T.Layout(layout)])
        finish = Finish(plan)
        rows = plan.rows(np.arange(6), np.full((6, 2), (HEIGHT, WIDTH)), seed=0, epoch=0)
        out = finish.empty(images.shape, lambda size, dtype: torch.empty(size, dtype=dtype))
        assert finish(images, rows.parameters, out=out) is out
        assert torch.equal(out, finish(images, rows.parameters))
    assert not finish.decoder_suffices
    assert Finish(compile([T.VerticalFlip(), T.Normalize(MEAN, STD)])).decoder_suffices


def test_input_images_are_not_modified() -> None:
    images = batch()
    before = images.clone()
    run(COLORS, images)
    run([T.Layout("NHWC"), *COLORS], images)
    assert torch.equal(images, before)


def test_finished_batches_can_be_trained_on() -> None:
    weight = torch.ones(1, 3, 1, 1, requires_grad=True)
    (run([T.Normalize(MEAN, STD)], batch()) * weight).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None


@pytest.mark.parametrize(
    ("transforms", "images", "message"),
    [
        (
            [],
            torch.zeros(2, 4, 4, 3),
            r"torch.float32 \(2, 4, 4, 3\): expected torch.uint8 \(n, height, width, channels\)",
        ),
        ([], torch.zeros(4, 4, 3, dtype=torch.uint8), r"images are torch.uint8 \(4, 4, 3\)"),
        (
            [T.Normalize(MEAN, STD)],
            torch.zeros(2, 4, 4, 1, dtype=torch.uint8),
            "Normalize has values for 3 channels, but the images have 1. Pass one value",
        ),
        (
            [T.RandomErasing(value=(1, 2))],
            torch.zeros(2, 4, 4, 3, dtype=torch.uint8),
            "RandomErasing: value has values for 2 channels",
        ),
        ([T.Brightness(0.1)], torch.zeros(2, 4, 4, 4, dtype=torch.uint8), "images have 4 channels"),
    ],
)
def test_invalid_batches_are_rejected(
    transforms: list[T.Transform], images: torch.Tensor, message: str
) -> None:
    finish = Finish(compile(transforms))
    width = sum(op.n_params for op in finish.ops)
    with pytest.raises(ConfigError, match=message):
        finish(images, np.zeros((len(images), width), np.float32))
    assert (
        run([T.Normalize(0.5, 0.5)], torch.zeros(2, 4, 4, 1, dtype=torch.uint8)).tolist()
        == (-torch.ones(2, 1, 4, 4)).tolist()
    )


def test_parameters_of_another_plan_are_rejected() -> None:
    finish = Finish(compile([T.Brightness(0.1)]))
    with pytest.raises(
        ConfigError, match=r"parameters have shape \(6, 0\): expected \(6, 1\) for 6 images"
    ):
        finish(batch(), np.zeros((6, 0), np.float32))
    assert finish(batch(), np.ones((6, 1), np.float32)).shape == (6, 3, HEIGHT, WIDTH)


def test_an_empty_batch_is_finished() -> None:
    assert run(COLORS, batch()[:0]).shape == (0, 3, HEIGHT, WIDTH)
