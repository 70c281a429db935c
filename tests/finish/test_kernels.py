"""Every pixel operation has a kernel, and the properties that it states hold for the kernel."""

from __future__ import annotations

import importlib
import pkgutil

import numpy as np
import pytest
import torch

import fastload._plan
from fastload import transforms as T
from fastload._finish.batch import Finish
from fastload._finish.kernels import KERNELS, MASK_KERNELS, run_op
from fastload._plan.transform import PixelOp, op_columns
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


def all_ops() -> set[type[PixelOp]]:
    """Returns all operations that modules of fastload._plan define."""
    modules = [
        importlib.import_module(f"fastload._plan.{each.name}")
        for each in pkgutil.iter_modules(fastload._plan.__path__)
    ]
    found = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    return {each for each in found if issubclass(each, PixelOp) and each is not PixelOp}


def test_every_operation_has_a_kernel() -> None:
    assert len(all_ops()) >= 9
    assert set(KERNELS) == all_ops()
    assert set(MASK_KERNELS) == {op for op in all_ops() if op.moves_pixels}


def test_the_cases_below_cover_every_operation() -> None:
    assert {type(op) for each in TRANSFORMS for op in compile([each]).ops} == all_ops()


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
