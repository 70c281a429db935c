"""Boxes move with their image, are clipped to it, and are dropped when they are not visible."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload import PlanRow
from fastload import transforms as T
from fastload.errors import ConfigError
from fastload.transforms import compile, move_boxes, move_boxes_batch


def row(*transforms: T.Transform, size: tuple[int, int] = (100, 200)) -> PlanRow:
    return compile(transforms).rows([0], [size], seed=0, epoch=0)[0]


@pytest.mark.parametrize(
    ("transforms", "box", "expected"),
    [
        ([], [10, 20, 30, 40], [10, 20, 30, 40]),
        ([T.HorizontalFlip(1.0)], [10, 20, 30, 40], [170, 20, 190, 40]),
        ([T.Resize(50, 50)], [10, 20, 30, 40], [2.5, 10, 7.5, 20]),
        ([T.Crop(left=20, top=30)], [10, 20, 30, 40], [0, 0, 10, 10]),
        (
            [T.Letterbox(100, 100)],
            [-5, 20, 205, 40],
            [0, 35, 100, 45],
        ),  # clipped to the image, not to the padding
        ([T.Letterbox(100, 100), T.HorizontalFlip(1.0)], [0, 0, 20, 100], [90, 25, 100, 75]),
    ],
)
def test_boxes_are_moved_and_clipped(
    transforms: list[T.Transform], box: list[float], expected: list[float]
) -> None:
    moved, kept = move_boxes([box], row(*transforms))
    assert moved.dtype == np.float32
    assert kept.tolist() == [0]
    assert moved.tolist() == [pytest.approx(expected)]


def test_boxes_are_kept_by_their_visible_area() -> None:
    boxes = np.array(
        [
            [0, 0, 100, 10],
            [0, 0, 40, 10],
            [0, 0, 41, 10],
            [40, 0, 40, 10],
            [60, 20, 50, 30],
            [np.nan, 0, 90, 10],
            [90, 0, 100, 10],
            [0, 0, 80, 10],
        ]
    )
    cut = row(T.Crop(left=40))
    assert move_boxes(boxes, cut)[1].tolist() == [
        0,
        2,
        6,
        7,
    ]  # dropped: touches the edge only, no area, inverted, NaN
    assert move_boxes(boxes, cut, min_visible=0.5)[1].tolist() == [
        0,
        6,
        7,
    ]  # visible: 60 of 100, all, 40 of 80 (exactly enough)
    assert move_boxes(boxes, cut, min_visible=0.51)[1].tolist() == [0, 6]
    assert move_boxes(boxes, cut, min_visible=1.0)[1].tolist() == [6]
    moved, kept = move_boxes(boxes, cut)
    assert np.array(["a", "b", "c", "d", "e", "f", "g", "h"])[kept].tolist() == ["a", "c", "g", "h"]
    assert moved.tolist() == [[0, 0, 60, 10], [0, 0, 1, 10], [50, 0, 60, 10], [0, 0, 40, 10]]


def test_an_infinite_box_is_clipped_to_the_image() -> None:
    with np.errstate(all="raise"):
        moved, kept = move_boxes([[-np.inf, 10, np.inf, np.inf]], row(T.Resize(50, 50)))
    assert (moved.tolist(), kept.tolist()) == ([[0, 5, 50, 50]], [0])


def test_empty_inputs_return_empty_boxes() -> None:
    empties: list[list[float] | np.ndarray[tuple[int, ...], np.dtype[np.floating]]] = [
        [],
        np.empty((0, 4)),
        np.empty(0, np.float32),
    ]
    for empty in empties:
        moved, kept = move_boxes(empty, row())
        assert moved.shape == (0, 4)
        assert kept.shape == (0,)
    assert move_boxes_batch([], compile([]).rows([], np.empty((0, 2)), seed=0, epoch=0)) == []


def test_min_side_counts_pixels_of_the_output() -> None:
    half = row(T.Crop(left=40), T.Resize(50, 80))
    boxes = [[30, 0, 60, 40], [30, 0, 59, 40], [50, 0, 90, 20], [50, 0, 90, 19]]
    assert move_boxes(boxes, half, min_side=10)[1].tolist() == [0, 2]
    assert move_boxes(boxes, half)[1].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("boxes", "options", "message"),
    [
        ([[1, 2, 3]], {}, r"boxes: expected shape \(n, 4\), found \(1, 3\)"),
        ([1, 2, 3, 4], {}, r"found \(4,\)"),
        (
            [[1, 2, 3, 4]],
            {"min_visible": 1.5},
            "min_visible=1.5: expected a fraction from 0 to 1",
        ),
        ([[1, 2, 3, 4]], {"min_side": -1}, "min_side=-1: expected a number of pixels, 0 or more"),
    ],
)
def test_invalid_boxes_raise(
    boxes: list[list[float]], options: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        move_boxes(boxes, row(), **options)
    assert len(move_boxes([[1, 2, 3, 4]], row())[0]) == 1


coordinate = st.floats(-50, 250, width=32)


any_boxes = st.lists(st.tuples(coordinate, coordinate, coordinate, coordinate), max_size=4)


@given(st.lists(any_boxes, min_size=1, max_size=6), st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=60, deadline=None)
def test_a_batch_equals_its_samples(
    boxes: list[list[tuple[float, ...]]], min_visible: float
) -> None:
    plan = compile([T.RandomResizedCrop(64), T.HorizontalFlip()])
    rows = plan.rows(np.arange(len(boxes)), np.full((len(boxes), 2), (100, 200)), seed=0, epoch=0)
    together = move_boxes_batch(boxes, rows, min_visible=min_visible)
    assert len(together) == len(boxes)
    for slot, (moved, kept) in enumerate(together):
        alone, kept_alone = move_boxes(boxes[slot], rows[slot], min_visible=min_visible)
        assert moved.tolist() == alone.tolist()
        assert kept.tolist() == kept_alone.tolist()
        assert moved.dtype == np.float32
        assert (moved >= 0).all()
        assert (moved <= 64).all()
        assert (moved[:, 2:] >= moved[:, :2]).all()


@given(
    st.tuples(st.floats(0, 99), st.floats(0, 99), st.floats(0.01, 100), st.floats(0.01, 100)),
    st.integers(0, 10_000),
)
@settings(max_examples=100, deadline=None)
def test_a_box_inside_the_image_passes_min_visible_1(
    box: tuple[float, float, float, float], sample: int
) -> None:
    """Rounding of the matrix must not reduce the visible part of a box that is not clipped."""
    plan = compile([T.Resize(77, 133), T.HorizontalFlip()])
    rows = plan.rows([sample], [[211, 307]], seed=0, epoch=0)
    x, y, w, h = box
    assert move_boxes([[x, y, x + w, y + h]], rows[0], min_visible=1.0)[1].tolist() == [0]


def test_a_batch_requires_boxes_for_each_row() -> None:
    rows = compile([]).rows([1, 2], [[9, 9]] * 2, seed=0, epoch=0)
    with pytest.raises(ConfigError, match=r"boxes: expected one array per plan row \(2\), found 1"):
        move_boxes_batch([[[0, 0, 1, 1]]], rows)
    assert len(move_boxes_batch([[[0, 0, 1, 1]], []], rows)) == 2
