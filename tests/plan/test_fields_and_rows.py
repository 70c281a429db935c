"""Plans of image fields: shared random numbers, batch sizes, unusable images, decoder requests."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastload import transforms as T
from fastload.errors import ConfigError
from fastload.transforms import PlanRows, compile, compile_fields

CROP = [T.RandomResizedCrop(32), T.HorizontalFlip(), T.ColorJitter(0.4)]
SIZES = np.full((20, 2), (90, 120))


def plain(rows: PlanRows) -> list[list[int]]:
    return [
        [int(number) for number in row]
        for row in zip(rows.x, rows.y, rows.w, rows.h, rows.flip, strict=True)
    ]


def rows_of(
    transform: object, fields: tuple[str, ...] = ("left", "right", "rear")
) -> dict[str, PlanRows]:
    return {
        name: plan.rows(np.arange(20), SIZES, seed=0, epoch=0)
        for name, plan in compile_fields(transform, fields).items()
    }


def test_all_image_fields_share_a_list() -> None:
    rows = rows_of(CROP)
    assert list(rows) == ["left", "right", "rear"]
    assert plain(rows["left"]) == plain(rows["right"]) == plain(rows["rear"])
    assert rows["left"].parameters.tolist() == rows["rear"].parameters.tolist()


def test_shared_random_numbers_work_with_images_of_different_sizes() -> None:
    plan = compile_fields(
        [T.RandomResizedCrop(32, ratio=(1.0, 1.0)), T.HorizontalFlip()], ["a", "b"]
    )["a"]
    small = plan.rows(np.arange(50), np.full((50, 2), 100), seed=0, epoch=0)
    large = plan.rows(np.arange(50), np.full((50, 2), 1000), seed=0, epoch=0)
    assert small.flip.tolist() == large.flip.tolist()
    assert np.abs(large.w / 10 - small.w).max() <= 0.55
    assert np.abs(large.x / 10 - small.x).max() <= 1.1


def test_dict_entries_draw_their_own_numbers_and_tuples_share_them() -> None:
    rows = rows_of({"left": CROP, ("right", "rear"): CROP})
    assert plain(rows["right"]) == plain(rows["rear"])
    assert plain(rows["left"]) != plain(rows["right"])
    assert plain(rows["left"]) == plain(
        rows_of(CROP)["left"]
    )  # the first group draws the same numbers as a list


def test_fields_missing_from_a_dict_stay_unmodified() -> None:
    rows = rows_of({"rear": [T.CenterCrop(16)]})
    assert (rows["left"].canvas_h, rows["left"].canvas_w) == (90, 120)
    assert rows["left"].w.tolist() == [120] * 20
    assert rows["rear"].canvas_h == 16
    assert rows_of(None)["left"].canvas_w == 120


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            {"front": CROP},
            "'front' is not an image field; the image fields are 'left', 'right', 'rear'",
        ),
        ({"left": CROP, ("left", "right"): CROP}, "'left' is named twice"),
    ],
)
def test_unknown_and_repeated_fields_raise(transform: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rows_of(transform)
    assert rows_of(CROP)


def test_different_output_sizes_in_a_batch_raise() -> None:
    plan = compile([T.Resize(shorter=50)])
    assert plan.size is None
    with pytest.raises(
        ConfigError, match=r"sample 7 is 50x66 and sample 9 is 66x50 .* Resize\(50, 66\)"
    ):
        plan.rows([7, 8, 9], [[90, 120], [90, 120], [120, 90]], seed=0, epoch=0)
    rows = plan.rows([7, 8], [[90, 120], [180, 240]], seed=0, epoch=0)
    assert (rows.canvas_h, rows.canvas_w) == (50, 66)


@pytest.mark.parametrize(
    ("transforms", "known", "canvas"),
    [
        ([], False, (90, 120)),
        ([T.HorizontalFlip()], False, (90, 120)),
        ([T.Crop(top=0.5)], False, (45, 120)),
        ([T.Resize(longer=64)], False, (48, 64)),
        ([T.Resize(20, 30)], True, (20, 30)),
        ([T.Resize(20, 30), T.Crop(top=0.25, left=1)], True, (15, 29)),
        ([T.Resize(20, 30), T.Resize(shorter=10)], True, (10, 15)),
        ([T.Crop(top=2), T.Letterbox(8)], True, (8, 8)),
        ([T.RandomCrop((5, 6))], True, (5, 6)),
        ([T.Resize(20, 30), T.CenterCrop(40)], True, (40, 40)),
    ],
)
def test_output_size_is_known_before_the_first_batch(
    transforms: list[T.Transform], known: bool, canvas: tuple[int, int]
) -> None:
    plan = compile(transforms)
    assert plan.size == (canvas if known else None)
    rows = plan.rows([1], [[90, 120]], seed=0, epoch=0)
    assert (rows.canvas_h, rows.canvas_w) == canvas


def test_an_empty_crop_is_reported_and_does_not_affect_other_samples() -> None:
    plan = compile([T.Crop(top=100), T.Resize(10, 10)])
    rows = plan.rows([1, 2, 3], [[200, 50], [100, 50], [101, 50]], seed=0, epoch=0)
    assert list(rows.bad) == [1]
    assert "Crop(top=100" in rows.bad[1]
    assert "50x100 (width x height)" in rows.bad[1]
    assert np.isfinite(rows.matrices).all()
    assert rows.y.tolist() == [100, 0, 100]
    assert rows.h.tolist() == [100, 1, 1]
    assert rows[1].describe().startswith("sample 2: Crop")
    own_size = compile([T.Crop(top=100)])
    assert own_size.rows([1, 2], [[100, 50], [120, 50]], seed=0, epoch=0).canvas_h == 20
    assert "leaves nothing" in own_size.rows([0], [[100, 50]], seed=0, epoch=0).bad[0]
    good = own_size.rows([0], [[102, 50]], seed=0, epoch=0)
    assert (good.canvas_h, good.canvas_w, good.bad) == (2, 50, {})


def test_a_crop_of_padding_only_is_reported() -> None:
    """The first crop pads images below 50 pixels; the second crop can then miss the image."""
    plan = compile([T.RandomCrop(50), T.CenterCrop(10)])
    rows = plan.rows(np.arange(60), np.full((60, 2), 4), seed=0, epoch=0)
    assert 0 < len(rows.bad) < 60
    assert "CenterCrop leaves nothing of an image of 4x4" in next(iter(rows.bad.values()))
    assert not plan.rows(np.arange(60), np.full((60, 2), 50), seed=0, epoch=0).bad


def test_fill_writes_the_requests_of_the_decoder() -> None:
    names = ("x", "y", "w", "h", "out_w", "out_h", "pad_left", "pad_top", "flip", "filter")
    requests = np.zeros(
        20,
        np.dtype(
            [(name, "<i4") for name in names[:-2]]
            + [("flip", "u1"), ("filter", "u1"), ("codec", "u1")]
        ),
    )
    requests["codec"] = 7
    rows = compile([T.Letterbox(50, 40, filter="bilinear"), T.HorizontalFlip()]).rows(
        np.arange(20), SIZES, seed=0, epoch=0
    )
    rows.fill(requests)
    for name in names[:-1]:
        assert requests[name].tolist() == getattr(rows, name).tolist()
    assert set(requests["filter"].tolist()) == {1}
    assert set(requests["codec"].tolist()) == {7}
    rows.fill(requests, mask=True)
    assert set(requests["filter"].tolist()) == {2}


@pytest.mark.parametrize("which", [slice(1, 3), np.array([3, 3, 0])], ids=["slice", "slots"])
def test_take_returns_the_rows_of_the_selected_samples(which: Any) -> None:
    plan = compile([T.RandomResizedCrop(40), T.VerticalFlip(), T.Brightness(0.5)])
    sizes = np.array([[40, 90], [90, 90], [30, 90], [90, 70]])
    rows = plan.rows([4, 5, 6, 7], sizes, seed=0, epoch=0)
    expected = plan.rows(np.array([4, 5, 6, 7])[which], sizes[which], seed=0, epoch=0)
    taken = rows.take(which)
    for each in fields(PlanRows):
        found, wanted = getattr(taken, each.name), getattr(expected, each.name)
        assert np.array_equal(found, wanted) if isinstance(found, np.ndarray) else found == wanted
    assert str(taken[0]) == str(expected[0])
    assert rows.ids.tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([[10, 10]], r"expected shape \(2, 2\), height and width, found \(1, 2\)"),
        ([[10, 10], [0, 5]], "expected 1 to 16384 pixels, found 0 to 10"),
        ([[10, 10], [5, 20_000]], "found 5 to 20000"),
    ],
)
def test_invalid_image_sizes_raise(sizes: list[list[int]], message: str) -> None:
    plan = compile([])
    with pytest.raises(ConfigError, match=message):
        plan.rows([1, 2], sizes, seed=0, epoch=0)
    assert len(plan.rows([1, 2], [[10, 10], [10, 10]], seed=0, epoch=0)) == 2


def test_an_empty_batch_is_valid() -> None:
    rows = compile(CROP).rows(np.empty(0, np.int64), np.empty((0, 2), np.int64), seed=0, epoch=0)
    assert len(rows) == 0
    assert rows.matrices.shape == (0, 3, 3)
    assert rows.parameters.shape == (0, 1)
    assert len(compile([]).rows([], np.empty((0, 2)), seed=0, epoch=0)) == 0


def test_a_plan_row_can_be_printed_and_drawn() -> None:
    image = Image.new("RGB", (120, 90), (200, 200, 200))
    plan = compile(
        [T.Crop(top=30), T.Letterbox(64, 64), T.HorizontalFlip(1.0), T.Hue((0.25, 0.25))]
    )
    row = plan.rows([5], [[90, 120]], seed=0, epoch=0)[0]
    assert (
        str(row)
        == "sample 5: 120x60 at (0, 30) of 120x90 -> 64x32 at (0, 16) of 64x64, mirrored, hue 0.25"
    )
    drawn = row.draw(image, boxes=[[10, 40, 40, 80]], points=[[100.0, 50.0]])
    assert drawn.size == (120 + 8 + 64, 90)
    pixels = np.asarray(drawn)
    assert pixels[5, 5].tolist() == [66, 66, 66]  # outside of the crop: dark
    assert pixels[60, 60].tolist() == [200, 200, 200]
    assert pixels[30, 60].tolist() == [255, 64, 64]  # edge of the crop
    assert pixels[40, 20].tolist() == [64, 220, 64]  # the box
    assert pixels[50, 100].tolist() == [
        255,
        220,
        0,
    ]  # the point; in the output at (120-100)*64/120, 16+20*32/60
    assert pixels[26, 128 + 10].tolist() == [255, 220, 0]
    with pytest.raises(ValueError, match="expected an image of 120x90 pixels, found 90x120"):
        row.draw(image.transpose(Image.Transpose.ROTATE_90))
    assert row.draw(image).size == drawn.size


def test_the_drawn_output_is_mirrored() -> None:
    image = Image.new("RGB", (40, 20))
    image.paste((250, 250, 250), (0, 0, 20, 20))  # the left half is bright
    for p, left, right in ((0.0, 250, 0), (1.0, 0, 250)):
        row = compile([T.Resize(10, 20), T.HorizontalFlip(p)]).rows(
            [0], [[20, 40]], seed=0, epoch=0
        )[0]
        output = np.asarray(row.draw(image))[:10, 48:, 0]
        assert (output[5, 3], output[5, 16]) == (left, right)
