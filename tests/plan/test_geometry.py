"""Lists of transforms become one crop, one resize, one position and one flip, with exact matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastload import transforms as T
from fastload.errors import ConfigError
from fastload.transforms import FieldPlan, PlanRows, compile
from tests.plan.oracle import image_sizes, transform_lists

NAMES = ("x", "y", "w", "h", "out_w", "out_h", "pad_left", "pad_top", "flip")
PINNED = [
    [6, 20, 337, 279, 0],
    [203, 107, 205, 265, 1],
    [45, 3, 446, 372, 0],
    [155, 11, 287, 331, 1],
]  # x, y, w, h, flip


def compiled(transforms: list[T.Transform]) -> FieldPlan:
    """Compiles a list. Hypothesis skips invalid lists (a crop after padding, two fills)."""
    try:
        return compile(transforms)
    except ConfigError:
        assume(False)
        raise


def integers(rows: PlanRows) -> NDArray[np.int64]:
    return np.stack([getattr(rows, name) for name in NAMES], axis=1).astype(np.int64)


def one(transforms: list[T.Transform], height: int, width: int) -> list[int]:
    rows = compile(transforms).rows([5], [[height, width]], seed=0, epoch=0)
    assert not rows.bad
    return [*integers(rows)[0].tolist(), rows.canvas_w, rows.canvas_h]


@given(transform_lists, st.lists(image_sizes, min_size=1, max_size=12), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_rows_fit_image_and_canvas_and_the_matrix_is_exact(
    transforms: list[T.Transform], sizes: list[tuple[int, int]], seed: int
) -> None:
    plan = compiled(transforms)
    if plan.size is None:
        sizes = sizes[:1] * len(sizes)
    rows = plan.rows(np.arange(len(sizes)), sizes, seed=seed, epoch=1)
    good = [slot for slot in range(len(rows)) if slot not in rows.bad]
    assert (rows.source_h.tolist(), rows.source_w.tolist()) == tuple(
        map(list, zip(*sizes, strict=True))
    )
    assert (rows.x >= 0).all()
    assert (rows.y >= 0).all()
    assert (rows.w >= 1).all()
    assert (rows.h >= 1).all()
    assert (rows.x + rows.w <= rows.source_w).all()
    assert (rows.y + rows.h <= rows.source_h).all()
    assert (rows.out_w >= 1).all()
    assert (rows.out_h >= 1).all()
    assert (rows.pad_left >= 0).all()
    assert (rows.pad_top >= 0).all()
    assert (rows.pad_left + rows.out_w <= rows.canvas_w).all()
    assert (rows.pad_top + rows.out_h <= rows.canvas_h).all()
    if plan.size is not None:
        assert (rows.canvas_h, rows.canvas_w) == plan.size
    for slot in good:
        row, matrix = rows[slot], rows.matrices[slot]
        x0, y0, x1, y1 = row.area
        left, right = (x1, x0) if row.flip else (x0, x1)
        corners = np.array([[row.x, row.x + row.w], [row.y, row.y + row.h], [1, 1]], float)
        assert matrix @ corners == pytest.approx(
            np.array([[left, right], [y0, y1], [1, 1]], float), abs=1e-9
        )
        assert matrix[0, 1] == matrix[1, 0] == 0
        assert matrix[2].tolist() == [0, 0, 1]


@given(transform_lists, st.lists(image_sizes, min_size=2, max_size=12), st.integers(0, 11))
@settings(max_examples=60, deadline=None)
def test_a_sample_has_the_same_plan_in_any_batch(
    transforms: list[T.Transform], sizes: list[tuple[int, int]], cut: int
) -> None:
    plan = compiled(transforms)
    if plan.size is None:
        sizes = sizes[:1] * len(sizes)
    ids = np.arange(len(sizes)) * 977
    whole = integers(plan.rows(ids, sizes, seed=3, epoch=2))
    order = np.random.default_rng(cut).permutation(len(sizes))
    cut = 1 + cut % (len(sizes) - 1)
    parts = [
        integers(plan.rows(ids[part], np.array(sizes)[part], seed=3, epoch=2))
        for part in (order[:cut], order[cut:])
    ]
    assert np.concatenate(parts).tolist() == whole[order].tolist()


def test_rows_depend_on_seed_epoch_and_id() -> None:
    plan = compile([T.RandomResizedCrop(224), T.HorizontalFlip()])
    sizes = np.full((64, 2), (375, 500))
    base = integers(plan.rows(np.arange(64), sizes, seed=0, epoch=0))
    for other in (
        plan.rows(np.arange(64), sizes, seed=1, epoch=0),
        plan.rows(np.arange(64), sizes, seed=0, epoch=1),
        plan.rows(np.arange(64) + 64, sizes, seed=0, epoch=0),
    ):
        assert (integers(other) != base).any(axis=1).mean() > 0.95


def test_crops_do_not_change_between_versions() -> None:
    """A run that resumes with another version must see the same crops."""
    rows = compile([T.RandomResizedCrop(224), T.HorizontalFlip()]).rows(
        [0, 1, 2, 10**12], [[375, 500]] * 4, seed=0, epoch=0
    )
    assert integers(rows)[:, [0, 1, 2, 3, 8]].tolist() == PINNED


@pytest.mark.parametrize(
    ("transforms", "size", "expected"),
    [
        ([], (375, 500), [0, 0, 500, 375, 500, 375, 0, 0, 0, 500, 375]),
        ([T.Resize(720, 960)], (1280, 1920), [0, 0, 1920, 1280, 960, 720, 0, 0, 0, 960, 720]),
        (
            [T.Crop(top=0.3), T.Resize(720, 960)],
            (1280, 1920),
            [0, 384, 1920, 896, 960, 720, 0, 0, 0, 960, 720],
        ),
        (
            [T.Crop(top=100, bottom=1, left=0.25, right=3)],
            (400, 200),
            [50, 100, 147, 299, 147, 299, 0, 0, 0, 147, 299],
        ),
        ([T.Resize(shorter=256)], (375, 500), [0, 0, 500, 375, 341, 256, 0, 0, 0, 341, 256]),
        ([T.Resize(longer=256)], (375, 500), [0, 0, 500, 375, 256, 192, 0, 0, 0, 256, 192]),
        # 500 x 375 -> 341 x 256. The window at (58, 16) is (85.04, 23.44)..(413.49, 351.56) of the
        # source, rounded to whole pixels.
        (
            [T.Resize(shorter=256), T.CenterCrop(224)],
            (375, 500),
            [85, 23, 328, 329, 224, 224, 0, 0, 0, 224, 224],
        ),
        ([T.CenterCrop((100, 101))], (200, 200), [50, 50, 101, 100, 101, 100, 0, 0, 0, 101, 100]),
        ([T.CenterCrop(100)], (50, 300), [100, 0, 100, 50, 100, 50, 0, 25, 0, 100, 100]),
        ([T.Letterbox(640, 640)], (375, 500), [0, 0, 500, 375, 640, 480, 0, 80, 0, 640, 640]),
        (
            [T.Letterbox((640, 640), align="top-left")],
            (375, 500),
            [0, 0, 500, 375, 640, 480, 0, 0, 0, 640, 640],
        ),
        (
            [T.Letterbox(640, upscale=False)],
            (376, 500),
            [0, 0, 500, 376, 500, 376, 70, 132, 0, 640, 640],
        ),
        (
            [T.Letterbox(100, 100), T.HorizontalFlip(1.0)],
            (100, 49),
            [0, 0, 49, 100, 49, 100, 26, 0, 1, 100, 100],
        ),
        (
            [T.Letterbox(100, 100), T.Resize(50, 200)],
            (100, 50),
            [0, 0, 50, 100, 100, 50, 50, 0, 0, 200, 50],
        ),
        (
            [T.HorizontalFlip(1.0), T.Crop(left=10)],
            (20, 30),
            [0, 0, 20, 20, 20, 20, 0, 0, 1, 20, 20],
        ),
        (
            [T.Crop(left=10), T.HorizontalFlip(1.0), T.HorizontalFlip(1.0)],
            (20, 30),
            [10, 0, 20, 20, 20, 20, 0, 0, 0, 20, 20],
        ),
        (
            [T.Resize(1000, 1000), T.CenterCrop(2)],
            (10, 10),
            [5, 5, 1, 1, 2, 2, 0, 0, 0, 2, 2],
        ),  # a tenth of a pixel becomes one pixel
    ],
)
def test_examples_computed_by_hand(
    transforms: list[T.Transform], size: tuple[int, int], expected: list[int]
) -> None:
    assert one(transforms, *size) == expected


def test_a_flip_after_a_random_crop_mirrors_the_crop() -> None:
    sizes = np.full((50, 2), (90, 120))
    plain = compile([T.RandomCrop(40, pad=10)]).rows(np.arange(50), sizes, seed=1, epoch=0)
    mirrored = compile([T.RandomCrop(40, pad=10), T.HorizontalFlip(1.0)]).rows(
        np.arange(50), sizes, seed=1, epoch=0
    )
    for name in ("x", "y", "w", "h", "out_w", "out_h", "pad_top"):
        assert getattr(plain, name).tolist() == getattr(mirrored, name).tolist()
    assert mirrored.flip.all()
    assert (mirrored.pad_left == 40 - plain.pad_left - plain.out_w).all()
    assert (plain.pad_left > 0).any()


def test_random_crop_positions_are_uniform() -> None:
    rows = compile([T.RandomCrop(32, pad=4)]).rows(
        np.arange(18_000), np.full((18_000, 2), (32, 32)), seed=0, epoch=0
    )
    offsets = (rows.x - rows.pad_left).astype(int)
    assert sorted(set(offsets.tolist())) == list(range(-4, 5))
    counts = np.bincount(offsets + 4)
    assert ((counts - 2000) ** 2 / 2000).sum() < 32  # 8 degrees of freedom: 99.99th percentile 31.8
    small = compile([T.RandomCrop(32)]).rows(
        np.arange(3000), np.full((3000, 2), (30, 40)), seed=0, epoch=0
    )
    assert sorted(set(small.pad_top.tolist())) == [
        0,
        1,
        2,
    ]  # a small image is anywhere in the padding
    assert sorted(set(small.x.tolist())) == list(range(9))
    assert (small.h == 30).all()


def test_flips_occur_with_probability_p() -> None:
    for p in (0.0, 0.2, 0.5, 1.0):
        rows = compile([T.HorizontalFlip(p)]).rows(
            np.arange(20_000), np.full((20_000, 2), 8), seed=5, epoch=0
        )
        assert rows.flip.mean() == pytest.approx(p, abs=4 * 0.5 / 20_000**0.5)


def reference_boxes(
    rng: np.random.Generator, n: int, width: int, height: int
) -> NDArray[np.float64]:
    """Draws torchvision's RandomResizedCrop n times: (n, 4) left, top, width, height."""
    found: list[tuple[int, int, int, int]] = []
    for _ in range(n):
        for _ in range(10):
            area = width * height * rng.uniform(0.08, 1.0)
            ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
            w, h = round(float(np.sqrt(area * ratio))), round(float(np.sqrt(area / ratio)))
            if 0 < w <= width and 0 < h <= height:
                found.append(
                    (
                        int(rng.integers(0, width - w + 1)),
                        int(rng.integers(0, height - h + 1)),
                        w,
                        h,
                    )
                )
                break
        else:
            w = min(width, round(height * 4 / 3))
            h = min(height, round(width * 4 / 3))
            found.append(((width - w) // 2, (height - h) // 2, w, h))
    return np.array(found, float)


@pytest.mark.parametrize("size", [(375, 500), (500, 500), (1000, 300)])
def test_random_resized_crops_are_distributed_like_torchvision(size: tuple[int, int]) -> None:
    height, width = size
    n = 6000
    rows = compile([T.RandomResizedCrop(224)]).rows(
        np.arange(n), np.full((n, 2), size), seed=9, epoch=0
    )
    ours = np.stack([rows.x, rows.y, rows.w, rows.h], axis=1).astype(float)
    theirs = reference_boxes(np.random.default_rng(1), n, width, height)
    facts = (
        [
            found[:, 0],
            found[:, 1],
            found[:, 2] * found[:, 3],
            found[:, 2] / found[:, 3],
            found[:, 2],
        ]
        for found in (ours, theirs)
    )
    for our_values, their_values in zip(*facts, strict=True):
        a, b = np.sort(our_values), np.sort(their_values)
        places = np.concatenate([a, b])
        distance = (
            np.abs(np.searchsorted(a, places, "right") - np.searchsorted(b, places, "right")).max()
            / n
        )
        assert (
            distance < 2.0 * (2 / n) ** 0.5
        )  # Kolmogorov-Smirnov: exceeded once in 1500 (one-sided tails of exp(-8) each)
    assert ours[:, 2:].min() >= 1
    area = ours[:, 2] * ours[:, 3] / (width * height)
    assert area.min() > 0.075
    assert area.max() <= 1


def test_the_center_is_used_if_no_try_fits() -> None:
    plan = compile([T.RandomResizedCrop(10, scale=(0.99, 1.0), ratio=(1.0, 1.0))])
    rows = plan.rows([1, 2], [[100, 1000], [300, 40]], seed=0, epoch=0)
    assert integers(rows)[:, :4].tolist() == [[450, 0, 100, 100], [0, 130, 40, 40]]


def test_a_crop_of_a_crop_is_inside_the_first() -> None:
    sizes = np.full((200, 2), (300, 400))
    outer = compile([T.RandomResizedCrop(100)]).rows(np.arange(200), sizes, seed=0, epoch=0)
    inner = compile([T.RandomResizedCrop(100), T.RandomResizedCrop(50)]).rows(
        np.arange(200), sizes, seed=0, epoch=0
    )
    assert (inner.x >= outer.x).all()
    assert (inner.x + inner.w <= outer.x + outer.w).all()
    assert (inner.y >= outer.y).all()
    assert (inner.y + inner.h <= outer.y + outer.h).all()
    assert (inner.w * inner.h < outer.w * outer.h).mean() > 0.9
