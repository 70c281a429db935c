"""A spot painted into an image lands where the matrix and the moved labels predict."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fastload import transforms as T
from fastload.transforms import compile, move_boxes, move_points
from tests.plan.oracle import (
    blob,
    centroid,
    execute,
    fixed_transforms,
    step_by_step,
    transform_lists,
)
from tests.plan.test_geometry import compiled

inside = st.floats(0.3, 0.7)


@given(
    transform_lists,
    st.tuples(st.integers(12, 300), st.integers(12, 300)),
    inside,
    inside,
    st.integers(0, 1000),
)
@settings(max_examples=200, deadline=None)
def test_the_spot_lands_at_the_moved_point(
    transforms: list[T.Transform], size: tuple[int, int], across: float, down: float, sample: int
) -> None:
    height, width = size
    rows = compiled(transforms).rows([sample], [size], seed=4, epoch=0)
    assume(not rows.bad)
    row = rows[0]
    assume(
        min(row.w, row.h) >= 12 and min(row.out_w, row.out_h) >= 4
    )  # in a smaller image the centroid is inaccurate
    x, y = row.x + across * row.w, row.y + down * row.h
    sigma = min(row.w, row.h) / 12
    found = centroid(execute(row, blob(width, height, x, y, sigma)))
    (point,), visible = move_points([[x, y]], row)
    assert visible.all()
    assert found == pytest.approx(tuple(point.tolist()), abs=0.5)
    assert row.matrix @ [x, y, 1] == pytest.approx([*point.tolist(), 1], abs=1e-3)
    (box,), kept = move_boxes([[x - sigma, y - sigma, x + sigma, y + sigma]], row)
    assert kept.tolist() == [0]
    assert found == pytest.approx((float(box[0] + box[2]) / 2, float(box[1] + box[3]) / 2), abs=0.5)


@given(
    st.lists(fixed_transforms, min_size=1, max_size=4),
    st.tuples(st.integers(40, 200), st.integers(40, 200)),
    inside,
    inside,
)
@settings(max_examples=200, deadline=None)
def test_the_spot_lands_where_the_transforms_one_by_one_put_it(
    transforms: list[T.Transform], size: tuple[int, int], across: float, down: float
) -> None:
    """The row does what the list of transforms says, up to rounding its edges to whole pixels."""
    height, width = size
    rows = compiled(transforms).rows([0], [size], seed=0, epoch=0)
    assume(not rows.bad)
    row = rows[0]
    assume(min(row.w, row.h) >= 8 and min(row.out_w, row.out_h) >= 8)
    x, y = row.x + across * row.w, row.y + down * row.h
    try:
        canvas = step_by_step(
            transforms, blob(width, height, x, y, min(row.w, row.h) / 12), smallest=12
        )
    except ValueError:
        assume(False)  # the plan never creates this small intermediate image
        raise
    assert canvas.shape == (row.canvas_h, row.canvas_w)
    slack_x, slack_y = 0.55 + 0.5 * row.out_w / row.w, 0.55 + 0.5 * row.out_h / row.h
    moved = row.matrix @ [x, y, 1]
    found = centroid(canvas)
    assert found[0] == pytest.approx(moved[0], abs=slack_x)
    assert found[1] == pytest.approx(moved[1], abs=slack_y)


def test_a_wrong_half_pixel_convention_is_detected() -> None:
    """Many loaders flip with x -> W - 1 - x, which misses the spot."""
    row = compile([T.Resize(20, 20), T.HorizontalFlip(1.0)]).rows([0], [[60, 60]], seed=0, epoch=0)[
        0
    ]
    found = centroid(execute(row, blob(60, 60, 18.0, 30.0, 4.0)))
    assert found == pytest.approx((20 - 6.0, 10.0), abs=0.05)
    assert abs(found[0] - (20 - 1 - 6.0)) > 0.5


def test_nearest_picks_source_pixels_that_map_into_their_output_pixel() -> None:
    row = compile([T.RandomResizedCrop(32), T.HorizontalFlip()]).rows(
        [3], [[100, 140]], seed=0, epoch=0
    )[0]
    # With 'nearest' the native core picks source pixel floor((i + 0.5) * scale) for output pixel i.
    picked = row.x + np.floor((np.arange(row.out_w) + 0.5) * row.w / row.out_w) + 0.5
    moved = row.matrix[0, 0] * picked + row.matrix[0, 2]
    expected = np.arange(row.out_w) + 0.5
    assert (
        np.abs(moved - (32 - expected if row.flip else expected)).max()
        <= 0.5 * max(1, row.out_w / row.w) + 1e-9
    )
