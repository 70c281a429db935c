"""Every pixel operation has a kernel, and the properties that it states hold for the kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastload import transforms as T
from fastload._finish.batch import Finish
from fastload._finish.kernels import KERNELS, MASK_KERNELS, run_op
from fastload._plan.transform import PixelOp, PixelTransform, op_columns
from fastload.transforms import compile
from tests.finish.images import HEIGHT, WIDTH, batch

# Each transform that has pixel operations, with about half of the samples unmodified.
TRANSFORMS: list[T.Transform] = [
    T.Brightness(0.5, p=0.5),
    T.Contrast(0.5, p=0.5),
    T.Saturation(0.5, p=0.5),
    T.Hue(0.3, p=0.5),
    T.Grayscale(0.5),
    T.GaussianBlur(5, p=0.5),
    T.RandomErasing(0.5),
    T.VerticalFlip(0.5),
    T.RandomAffine(30, p=0.5),
]


def ops_of(transforms: list[T.Transform]) -> set[PixelOp]:
    return {op for each in transforms for op in compile([each]).ops}


def test_every_operation_has_a_kernel() -> None:
    assert set(KERNELS) == {op.name for op in ops_of(TRANSFORMS)}
    assert set(MASK_KERNELS) == {op.name for op in ops_of(TRANSFORMS) if op.moves_pixels}


def test_the_cases_below_cover_every_operation() -> None:
    """ColorJitter combines operations of other transforms."""
    public = [each for each in vars(T).values() if isinstance(each, type)]
    changing_pixels = {each for each in public if issubclass(each, PixelTransform)}
    assert {type(each) for each in TRANSFORMS} == changing_pixels - {T.ColorJitter}
    assert ops_of([T.ColorJitter(0.1, 0.1, 0.1, 0.1)]) <= ops_of(TRANSFORMS)


@pytest.mark.parametrize("n_changed", [0, 3, 9, 12])
@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda each: type(each).__name__)
def test_noops_stay_bit_identical_and_other_samples_change(
    transform: T.Transform, n_changed: int
) -> None:
    """A kernel runs on the whole batch or on changed samples only, depending on their number."""
    plan = compile([transform, T.ToDtype("float32", scale=False)])
    rows = plan.rows(np.arange(200), np.full((200, 2), (HEIGHT, WIDTH)), seed=3, epoch=0)
    (op,) = plan.ops
    noop = op.is_noop(rows.parameters)
    assert 60 < noop.sum() < 140
    slots = [*np.flatnonzero(~noop)[:n_changed], *np.flatnonzero(noop)[: 12 - n_changed]]
    images = batch(12)
    result = Finish(plan)(images, rows.parameters[slots])
    unmodified = (result == images.permute(0, 3, 1, 2)).flatten(1).all(1)
    assert unmodified.tolist() == [False] * n_changed + [True] * (12 - n_changed)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda each: type(each).__name__)
def test_a_batch_of_noops_is_returned_unchanged(transform: T.Transform) -> None:
    plan = compile([transform])
    rows = plan.rows(np.arange(200), np.full((200, 2), (HEIGHT, WIDTH)), seed=3, epoch=0)
    (op,) = plan.ops
    params = rows.parameters[op.is_noop(rows.parameters)][:12]
    x = batch(12).permute(0, 3, 1, 2).float()
    assert run_op(op, x, params, torch.from_numpy(params)) is x


def test_each_operation_gets_its_own_columns() -> None:
    ops = compile([T.Hue(0.1), T.RandomErasing(), T.VerticalFlip(), T.RandomAffine(3)]).ops
    assert [(op.name, columns.start, columns.stop) for op, columns in op_columns(ops)] == [
        ("hue", 0, 1),
        ("erase", 1, 5),
        ("vertical_flip", 5, 6),
        ("affine", 6, 12),
    ]
