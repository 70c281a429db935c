"""Rotation, shear, translation and vertical flips of finished images, and their labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from fastload import transforms as T
from fastload._common.native import core
from fastload._finish import warp
from fastload._finish.batch import Finish
from fastload._finish.kernels import warp_masks
from fastload._load.loader import DataLoader
from fastload._plan.warps import affine_op
from fastload.transforms import PlanRows, compile, move_boxes, move_points
from tests.loading import backends
from tests.plan.oracle import blob, centroid, execute

SIZE = (40, 60)
N = 24  # images of ``packed``


def canvas(channels: int = 3, seed: int = 0, size: tuple[int, int] = SIZE) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (*size, channels), dtype=np.uint8)


def planned(transforms: list[Any], ids: list[int], size: tuple[int, int] = SIZE) -> PlanRows:
    return compile(transforms).rows(ids, [size] * len(ids), seed=3, epoch=0)


def finished(transforms: list[Any], pixels: NDArray[np.uint8], ids: list[int]) -> NDArray[np.uint8]:
    """Returns the results (n, height, width, channels) of one image for several samples."""
    rows, plan = planned(transforms, ids, pixels.shape[:2]), compile(transforms)
    mirrored = [
        pixels[:, ::-1] if flip else pixels for flip in rows.flip
    ]  # the decoder has done that
    done = Finish(plan)(torch.from_numpy(np.stack(mirrored)), rows.parameters)
    return done.permute(0, 2, 3, 1).numpy()


def test_a_vertical_flip_reverses_the_rows_of_selected_samples_only() -> None:
    pixels, ids = canvas(), list(range(20))
    flipped = planned([T.VerticalFlip()], ids).parameters[:, 0] > 0
    assert 4 < flipped.sum() < 16
    for found, is_flipped in zip(finished([T.VerticalFlip()], pixels, ids), flipped, strict=True):
        assert np.array_equal(found, pixels[::-1] if is_flipped else pixels)


def test_a_rotation_by_90_degrees_is_clockwise_and_exact() -> None:
    pixels = canvas(size=(48, 48))
    assert np.array_equal(
        finished([T.RandomAffine((90, 90))], pixels, [0])[0], np.rot90(pixels, -1)
    )
    assert np.array_equal(
        finished([T.RandomAffine((180, 180))], canvas(), [0])[0], canvas()[::-1, ::-1]
    )


def test_translations_are_whole_pixels_and_the_rest_is_filled() -> None:
    pixels, ids, fill = canvas(), list(range(12)), (10, 20, 30)
    transforms = [T.RandomAffine(0, (0.2, 0.3), fill=fill)]
    rows = planned(transforms, ids)
    seen = set()
    for found, matrix in zip(finished(transforms, pixels, ids), rows.matrices, strict=True):
        across, down = matrix[:2, 2].astype(int).tolist()
        assert (across, down) == tuple(matrix[:2, 2])
        assert abs(across) <= 0.2 * SIZE[1]
        assert abs(down) <= 0.3 * SIZE[0]
        expected = np.full((3 * SIZE[0], 3 * SIZE[1], 3), fill, np.uint8)
        expected[SIZE[0] + down : 2 * SIZE[0] + down, SIZE[1] + across : 2 * SIZE[1] + across] = (
            pixels
        )
        assert np.array_equal(found, expected[SIZE[0] : 2 * SIZE[0], SIZE[1] : 2 * SIZE[1]])
        seen.add((across, down))
    assert len(seen) > 6


def test_samples_that_are_not_selected_do_not_change() -> None:
    pixels, ids = canvas(), list(range(30))
    transforms = [T.RandomAffine(30, p=0.4)]
    moved = [not np.allclose(matrix, np.eye(3)) for matrix in planned(transforms, ids).matrices]
    assert 5 < sum(moved) < 20
    for found, is_moved in zip(finished(transforms, pixels, ids), moved, strict=True):
        assert np.array_equal(found, pixels) != is_moved


def test_pillow_rotates_in_the_same_direction() -> None:
    """Pillow has the same convention: pixel centers at + 0.5, bilinear, zero outside the image."""
    pixels = np.asarray(
        Image.fromarray(canvas(size=(12, 18))).resize((60, 40), Image.Resampling.BICUBIC)
    )
    transforms = [T.RandomAffine(40, (0.1, 0.1), (0.7, 1.4), (-10, 10, -10, 10))]
    ids = list(range(8))
    for found, values in zip(
        finished(transforms, pixels, ids), planned(transforms, ids).parameters.tolist(), strict=True
    ):
        expected = np.asarray(
            Image.fromarray(pixels).transform(
                (60, 40), Image.Transform.AFFINE, values, Image.Resampling.BILINEAR
            )
        )
        difference = np.abs(found.astype(int) - expected.astype(int)).max(axis=2)
        assert (
            difference <= 1
        ).mean() > 0.9  # except for the edge, where Pillow does not blend with the fill


@pytest.mark.skipif(core() is None, reason="the native core is not here")
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from([1, 3]),
    st.lists(st.floats(-3, 3, width=32), min_size=6, max_size=6),
    st.integers(0, 255),
)
@settings(max_examples=300, deadline=None)
def test_the_native_core_warps_like_torch(
    height: int, width: int, channels: int, numbers: list[float], fill: int
) -> None:
    x = torch.from_numpy(
        np.random.default_rng(height)
        .uniform(0, 255, (2, channels, height, width))
        .astype(np.float32)
    )
    inverse = torch.tensor([numbers, [1, 0.25, -3e9, 0, 1, float(width)]], dtype=torch.float32)
    found = warp.warp_affine(affine_op((fill,)), x, inverse)
    expected = warp.sample_affine(x, inverse, torch.tensor([float(fill)]))
    assert torch.allclose(found, expected, atol=0.02)
    assert (found[1] == fill).all()  # everything is outside the source


@pytest.mark.skipif(core() is None, reason="the native core is not here")
def test_every_instruction_set_yields_the_same_bits() -> None:
    module: Any = core()
    x = torch.from_numpy(
        np.random.default_rng(1).uniform(0, 255, (3, 2, 29, 37)).astype(np.float32)
    )
    inverse = torch.from_numpy(
        planned([T.RandomAffine(90, (0.2, 0.2), (0.5, 2.0), 20)], [0, 1, 2], (29, 37)).parameters
    )
    try:
        found = []
        for level in ("portable", "avx2", "avx512"):
            module.set_simd(level)
            found.append(warp.warp_affine(affine_op((3,)), x, inverse))
    finally:
        module.set_simd("avx512")
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_flip_after_a_warp_mirrors_the_result() -> None:
    pixels, ids = canvas(), list(range(8))
    for each in (T.RandomAffine((10, 40), (0.1, 0.1), None, (0, 10, 0, 5)), T.VerticalFlip()):
        plain = finished([each], pixels, ids)
        flipped = finished([each, T.HorizontalFlip(1.0)], pixels, ids)
        assert np.abs(flipped.astype(int) - plain[:, :, ::-1].astype(int)).max() <= 1
        before, after = (
            planned(listed, ids).matrices for listed in ([each], [each, T.HorizontalFlip(1.0)])
        )
        mirror = np.array([[-1.0, 0, SIZE[1]], [0, 1, 0], [0, 0, 1]])
        assert np.allclose(mirror @ before, after)
        twice = planned([each, T.HorizontalFlip(1.0), T.HorizontalFlip(1.0)], ids)
        assert np.allclose(twice.matrices, before)


affine = st.builds(
    lambda degrees, share, scale, shear: T.RandomAffine(degrees, (share, share), scale, shear),
    st.floats(0, 180),
    st.floats(0, 0.2),
    st.sampled_from([None, (0.8, 1.25)]),
    st.sampled_from([None, 10, (-5, 5, -10, 10)]),
)
before = st.sampled_from(
    [
        [T.Resize(64, 80)],
        [T.RandomResizedCrop((64, 80), scale=(0.3, 1.0))],
        [T.Letterbox(64, 80, fill=0)],
        [T.CenterCrop((90, 70), fill=0)],
    ]
)
flips = st.lists(
    st.sampled_from(
        [T.HorizontalFlip(1.0), T.HorizontalFlip(), T.VerticalFlip(), T.VerticalFlip(1.0)]
    ),
    max_size=2,
)


@given(
    st.tuples(before, flips, affine.map(lambda each: [each]), flips),
    st.floats(0.3, 0.7),
    st.floats(0.3, 0.7),
    st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_a_painted_spot_matches_its_labels(
    transforms: tuple[list[Any], ...], across: float, down: float, sample: int
) -> None:
    plan = compile(transforms)
    rows = plan.rows([sample], [(100, 120)], seed=5, epoch=1)
    row = rows[0]
    x, y = row.x + across * row.w, row.y + down * row.h
    (point,), (visible,) = move_points([[x, y]], row)
    sigma = min(row.w, row.h) / 16
    reach = 4 * sigma * np.abs(row.matrix[:2, :2]).sum(axis=1) + 1
    inside = bool(
        (point - reach >= 0).all() and (point + reach <= (row.canvas_w, row.canvas_h)).all()
    )
    assume(inside)
    assert visible
    image = torch.from_numpy(execute(row, blob(120, 100, x, y, sigma)).astype(np.uint8))[
        None, :, :, None
    ]
    found = centroid(Finish(plan)(image, rows.parameters)[0, 0].numpy())
    assert found == pytest.approx(tuple(point.tolist()), abs=0.5)
    assert row.matrix @ [x, y, 1] == pytest.approx([*point.tolist(), 1], abs=1e-3)
    (box,), _ = move_boxes([[x - sigma, y - sigma, x + sigma, y + sigma]], row)
    assert found == pytest.approx((float(box[0] + box[2]) / 2, float(box[1] + box[3]) / 2), abs=0.5)


def test_labels_of_a_rotated_image() -> None:
    """A square rotated by 45 degrees: its corners leave the canvas, whose corners are filled."""
    row = compile([T.RandomAffine((45, 45))]).rows([0], [(100, 100)], seed=0, epoch=0)[0]
    points, visible = move_points(
        np.array([[50, 50], [0, 0], [0, 50], [-20, 50], [50, 99], [np.inf, 0]]), row
    )
    assert visible.tolist() == [True, False, True, False, True, False]
    assert points[1].tolist() == pytest.approx([50, 50 - 50 * 2**0.5], abs=1e-4)
    beside = [-20, 45, -10, 55]  # the source of the corner of the canvas
    assert ((row.matrix @ [-15, 50, 1])[:2] > 0).all()
    boxes, kept = move_boxes(
        np.array(
            [[40, 40, 60, 60], [0, 0, 10, 10], [0, 0, 100, 100], beside, [-np.inf, 40, 60, 60]]
        ),
        row,
    )
    assert kept.tolist() == [0, 2, 4]
    reach = 10 * 2**0.5
    assert boxes[0].tolist() == pytest.approx(
        [50 - reach, 50 - reach, 50 + reach, 50 + reach], abs=1e-4
    )
    assert boxes[1].tolist() == [0, 0, 100, 100]
    assert move_boxes([[-60, 40, 60, 60]], row, min_visible=0.5)[1].tolist() == []
    assert list(row.area) == [0, 0, 100, 100]
    flat = compile([T.CenterCrop(100, fill=0), T.VerticalFlip(1.0)]).rows(
        [0], [(60, 100)], seed=0, epoch=0
    )[0]
    assert list(flat.area) == [0, 20, 100, 80]
    assert move_boxes([[10, 0, 20, 30]], flat, min_visible=1.0)[0].tolist() == [[10, 50, 20, 80]]
    assert move_points([[5, 1], [5, -1]], flat)[1].tolist() == [True, False]


def test_masks_follow_the_warp_of_their_image() -> None:
    masks = np.random.default_rng(0).integers(0, 2**16, (6, *SIZE), dtype=np.uint16)
    transforms = [T.VerticalFlip(), T.Brightness(0.5), T.RandomAffine((180, 180), mask_fill=7)]
    rows = planned(transforms, list(range(6)))
    as_bytes = torch.from_numpy(masks[..., None].view(np.uint8))
    found = warp_masks(
        as_bytes,
        rows.ops,
        torch.from_numpy(rows.parameters),
        torch.tensor([7, 0], dtype=torch.uint8),
    )
    flipped = rows.parameters[:, 0] > 0
    assert len(set(flipped.tolist())) == 2
    for mask, moved, once in zip(
        masks, found.numpy().view(np.uint16)[..., 0], flipped, strict=True
    ):
        assert np.array_equal(moved, (mask[::-1] if once else mask)[::-1, ::-1])
    rows = planned([T.RandomAffine((20, 50), (0.3, 0.3))], list(range(6)))
    found = warp_masks(
        as_bytes,
        rows.ops,
        torch.from_numpy(rows.parameters),
        torch.tensor([7, 0], dtype=torch.uint8),
    )
    for mask, moved in zip(masks, found.numpy().view(np.uint16)[..., 0], strict=True):
        assert set(moved.ravel().tolist()) <= {7, *mask.ravel().tolist()}
        assert (moved == 7).mean() > 0.1


WARPED = [
    T.RandomResizedCrop(48),
    T.RandomAffine(30, (0.1, 0.1), (0.8, 1.2), 5, fill=9),
    T.VerticalFlip(),
    T.ColorJitter(0.3),
    T.Normalize(0.5, 0.25),
]


@pytest.mark.parametrize("backend", backends())
def test_batches_are_the_same_with_any_batch_size_and_after_a_resume(
    packed: Path, backend: str
) -> None:
    def loaded(batch_size: int, **options: Any) -> DataLoader:
        return DataLoader(
            packed,
            batch_size,
            shuffle=True,
            transform=WARPED,
            backend=backend,
            fields=("image", "id"),
            seed=4,
            **options,
        )

    whole = {
        i: image
        for batch in loaded(24)
        for i, image in zip(batch["id"].tolist(), batch["image"], strict=True)
    }
    some = loaded(5, num_workers=1)
    iterator = iter(some)
    parts = [next(iterator), next(iterator)]
    resumed = loaded(7)
    resumed.load_state_dict(some.state_dict())
    for batch in (*parts, *resumed):
        for i, image in zip(batch["id"].tolist(), batch["image"], strict=True):
            assert torch.equal(image, whole.pop(i))
    assert not whole


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "channels_last"])
@pytest.mark.parametrize(
    "form",
    [[], [T.Normalize((0.5, 0.4, 0.3), (0.25, 0.25, 0.3))], [T.ToDtype("bfloat16")]],
    ids=["uint8", "float32", "bfloat16"],
)
def test_a_vertical_flip_is_the_same_with_and_without_color_transforms(
    packed: Path, layout: str, form: list[Any]
) -> None:
    """Without color transforms the decode threads finish the images, which are then flipped."""
    flipped = [
        T.Resize(40, 50),
        T.VerticalFlip(),
        T.HorizontalFlip(),
        T.VerticalFlip(0.3),
        *form,
        T.Layout(layout),
    ]
    colored = [*flipped[:4], T.Brightness(0.1, p=0.0), *flipped[4:]]
    one, other = (
        next(iter(DataLoader(packed, 24, transform=each, return_matrix=True)))
        for each in (flipped, colored)
    )
    assert len(set(one["image.matrix"][:, 1, 1].sign().tolist())) == 2
    assert torch.equal(one["image"], other["image"])
    assert one["image"].stride() == other["image"].stride()


def test_channels_in_another_order_are_warped_as_well(packed: Path) -> None:
    transform = [T.Resize(40, 40), T.RandomAffine(30), T.VerticalFlip()]
    rgb, bgr = (
        next(iter(DataLoader(packed, 8, transform=transform, color=color)))[0]
        for color in ("rgb", "bgr")
    )
    assert torch.equal(rgb, bgr.flip(1))


def test_the_plan_shows_the_warp(packed: Path) -> None:
    transform = [T.Resize(60, 80), T.RandomAffine((30, 30)), T.VerticalFlip(1.0)]
    loader = DataLoader(packed, 1, transform=transform, fields=("image", "id"))
    row = loader.plan(3)
    assert "affine" in str(row)
    assert "vertical_flip 1" in str(row)
    image = Image.fromarray(loader.packed[3]["image"])
    drawn = np.asarray(row.draw(image).crop((image.width + 8, 0, image.width + 88, 60))).astype(int)
    delivered = (
        next(batch["image"][0] for batch in loader if batch["id"].item() == 3)
        .permute(1, 2, 0)
        .numpy()
        .astype(int)
    )
    assert (
        np.abs(drawn - delivered).max(axis=2) <= 6
    ).mean() > 0.7  # the fill of the corners differs
