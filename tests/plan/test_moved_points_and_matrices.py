"""Points, polylines and camera matrices move with their image."""

from __future__ import annotations

import numpy as np
import pytest

from fastload import PlanRow
from fastload import transforms as T
from fastload.errors import ConfigError
from fastload.transforms import (
    compile,
    move_from_image,
    move_points,
    move_points_batch,
    move_polylines,
    move_to_image,
)

CAMERA = np.array([[1266.4, 0.0, 816.3], [0.0, 1266.4, 491.5], [0.0, 0.0, 1.0]])


def row(*transforms: T.Transform, size: tuple[int, int] = (100, 200)) -> PlanRow:
    return compile(transforms).rows([0], [size], seed=0, epoch=0)[0]


def camera_row() -> PlanRow:
    return row(
        T.Crop(top=0.3, left=100),
        T.RandomCrop((600, 1200)),
        T.Resize(256, 704),
        T.HorizontalFlip(1.0),
        size=(900, 1600),
    )


def test_points_are_moved_and_flagged_not_dropped() -> None:
    points = [[50.0, 50.0], [39.0, 50.0], [40.0, 0.0], [200.0, 100.0], [200.1, 50.0]]
    moved, visible = move_points(points, row(T.Crop(left=40), T.HorizontalFlip(1.0)))
    assert moved == pytest.approx(
        np.array([[150, 50], [161, 50], [160, 0], [0, 100], [-0.1, 50]]), abs=1e-5
    )
    assert visible.tolist() == [True, False, True, True, False]  # edges count as visible
    assert moved.dtype == np.float32


def test_corners_stay_visible_at_any_scale() -> None:
    for target in range(60, 140):
        assert move_points(
            [[0, 0], [211, 307]],
            row(T.Resize(target, target + 3), T.HorizontalFlip(1.0), size=(307, 211)),
        )[1].all()


def test_points_in_the_padding_are_not_visible() -> None:
    moved, visible = move_points([[100, 50], [100, -2], [100, 102]], row(T.Letterbox(100, 100)))
    assert moved.tolist() == [[50, 50], [50, 24], [50, 76]]
    assert visible.tolist() == [True, False, False]


def test_a_third_number_stays_unmodified() -> None:
    moved, _ = move_points([[10, 10, 2], [20, 20, 0]], row(T.Resize(50, 50)))
    assert moved.tolist() == [[2.5, 5, 2], [5, 10, 0]]


def test_polylines_move_like_points() -> None:
    lines = move_polylines(
        [[[10, 10], [20, 20], [300, 30]], np.empty((0, 2))], row(T.Resize(50, 50))
    )
    assert [line.tolist() for line, _ in lines] == [[[2.5, 5], [5, 10], [75, 15]], []]
    assert [visible.tolist() for _, visible in lines] == [[True, True, False], []]


def test_a_batch_of_points_equals_its_samples() -> None:
    rng = np.random.default_rng(0)
    points = [rng.uniform(-10, 210, (n, 3)) if n else np.empty(0) for n in (3, 0, 1, 7, 0)]
    rows = compile([T.RandomResizedCrop(64), T.HorizontalFlip()]).rows(
        np.arange(5), np.full((5, 2), (100, 200)), seed=0, epoch=0
    )
    together = move_points_batch(points, rows)
    for slot, (moved, visible) in enumerate(together):
        alone, visible_alone = move_points(points[slot], rows[slot])
        assert moved.tolist() == alone.tolist()
        assert visible.tolist() == visible_alone.tolist()
    assert len(together) == 5
    assert 0 < sum(visible.sum() for _, visible in together) < 11
    assert move_points_batch([], compile([]).rows([], np.empty((0, 2)), seed=0, epoch=0)) == []
    with pytest.raises(
        ConfigError, match=r"same number of columns in all samples of a batch, found \[2, 3\]"
    ):
        move_points_batch(
            [[[1, 2]], [[1, 2, 3]]], compile([]).rows([1, 2], [[9, 9]] * 2, seed=0, epoch=0)
        )


def test_a_batch_without_points_keeps_the_number_of_columns() -> None:
    """Code that reads the third column must also work on a batch without points."""
    rows = compile([]).rows([1, 2], [[9, 9]] * 2, seed=0, epoch=0)
    assert [moved.shape for moved, _ in move_points_batch([np.empty((0, 3))] * 2, rows)] == [
        (0, 3)
    ] * 2
    assert [
        moved.shape for moved, _ in move_points_batch([np.empty((0, 2)), np.empty((0, 3))], rows)
    ] == [(0, 3)] * 2
    assert [moved.shape for moved, _ in move_points_batch([[], []], rows)] == [(0, 2)] * 2


def test_a_projected_3d_point_matches_its_moved_pixel() -> None:
    plan_row, rng = camera_row(), np.random.default_rng(1)
    space = np.concatenate(
        [rng.uniform(-5, 5, (20, 2)), rng.uniform(8, 60, (20, 1)), np.ones((20, 1))], axis=1
    )
    pose = np.concatenate(
        [np.linalg.qr(rng.normal(size=(3, 3)))[0] * 0.1 + np.eye(3), [[0.5], [0.2], [1.0]]], axis=1
    )
    projection = CAMERA @ pose
    seen = (projection @ space.T).T
    moved, _ = move_points(seen[:, :2] / seen[:, 2:], plan_row)
    for matrix in (move_to_image(projection, plan_row), move_to_image(CAMERA, plan_row) @ pose):
        again = (matrix.astype(np.float64) @ space.T).T
        assert again[:, :2] / again[:, 2:] == pytest.approx(moved, abs=0.01)
    assert move_to_image(CAMERA, plan_row).dtype == np.float32
    assert (
        move_to_image(CAMERA, plan_row)[0, 0] < 0
    )  # mirrored: the focal length along x is negative


def test_homographies_to_and_from_the_image() -> None:
    plan_row = camera_row()
    to_image = CAMERA @ np.array(
        [[1.0, 0.02, 0.1], [0.01, 0.9, 1.5], [0.0, 0.03, 9.0]]
    )  # a road plane seen by the camera
    from_image = np.linalg.inv(to_image)
    pixel = plan_row.matrix @ to_image @ [1.0, 2.0, 1.0]
    ground = move_from_image(from_image, plan_row).astype(np.float64) @ pixel
    assert ground / ground[2] == pytest.approx([1.0, 2.0, 1.0], abs=1e-3)
    both = move_from_image(from_image, plan_row).astype(np.float64) @ move_to_image(
        to_image, plan_row
    ).astype(np.float64)
    assert both / both[2, 2] == pytest.approx(np.eye(3), abs=1e-2)


def test_stacks_of_matrices() -> None:
    stack = np.stack([CAMERA, 2 * CAMERA])
    moved = move_to_image(stack, camera_row())
    assert moved[1].tolist() == move_to_image(2 * CAMERA, camera_row()).tolist()


@pytest.mark.parametrize(
    "matrix", [np.eye(4), np.eye(2), np.zeros(3), np.zeros((4, 3))], ids=lambda m: str(m.shape)
)
def test_matrices_of_other_shapes_raise(
    matrix: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"matrix: expected shape \(3, 3\) or \(3, 4\), or a stack of such matrices",
    ):
        move_to_image(matrix, row())
    assert move_to_image(np.eye(3), row()).tolist() == np.eye(3).tolist()


def test_points_of_other_shapes_raise() -> None:
    with pytest.raises(ConfigError, match=r"points: expected shape \(n, 2 or 3\), found \(1, 4\)"):
        move_points([[1, 2, 3, 4]], row())
    with pytest.raises(ConfigError, match=r"matrix: expected shape \(n, 3\)"):
        move_from_image(np.eye(4), row())
    assert move_points([[1, 2]], row())[1].tolist() == [True]
