"""Generated streets: matrices, lane lines and the mask agree with each other and the pixels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fastload._tools.scenes.scene import material
from tools.makedata import nuscenes, openlane
from tools.makedata.street import NEAR_M, OPTICAL, Box, Camera, rotation

Array = NDArray[np.float64]


class Lane(TypedDict):
    category: int
    visibility: list[float]
    uv: list[list[float]]
    xyz: list[list[float]]
    attribute: int
    track_id: int


class Note(TypedDict):
    extrinsic: list[list[float]]
    intrinsic: list[list[float]]
    lane_lines: list[Lane]
    file_path: str


class Cam(TypedDict):
    filename: str
    camera_intrinsic: list[list[float]]
    sensor2ego: list[list[float]]


class Sample(TypedDict):
    token: str
    timestamp: int
    scene: str
    cams: dict[str, Cam]
    bev_mask: str


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Note]]:
    dest = tmp_path_factory.mktemp("openlane")
    assert openlane.make(dest, n=5, seed=8).n_images == 5
    return dest, [
        json.loads(path.read_text()) for path in sorted((dest / "annotations").rglob("*.json"))
    ]


@pytest.fixture(scope="module")
def cameras(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Sample]]:
    dest = tmp_path_factory.mktemp("nuscenes")
    assert nuscenes.make(dest, n=2, seed=3).n_images == 12
    return dest, json.loads((dest / "samples.json").read_text())["samples"]


def is_pose(matrix: Array) -> bool:
    turn = matrix[:3, :3]
    return bool(
        np.allclose(turn @ turn.T, np.eye(3))
        and np.linalg.det(turn) > 0
        and (matrix[3] == [0, 0, 0, 1]).all()
    )


def test_openlane_layout(lanes: tuple[Path, list[Note]]) -> None:
    dest, notes = lanes
    images = sorted(
        path.relative_to(dest / "images").as_posix() for path in (dest / "images").rglob("*.jpg")
    )
    assert sorted(note["file_path"] for note in notes) == images
    assert {name.split("/")[1] for name in images} == {"segment-00000", "segment-00001"}
    for name in images:
        path = dest / "images" / name
        assert (dest / "annotations" / name).with_suffix(".json").is_file()
        with Image.open(path) as image:
            assert (image.mode, image.size) == ("RGB", (1920, 1280))
        assert 1.5 <= 8 * path.stat().st_size / (1920 * 1280) <= 5


def test_openlane_uv_is_the_projection_of_xyz(lanes: tuple[Path, list[Note]]) -> None:
    for note in lanes[1]:
        intrinsic = np.array(note["intrinsic"])
        assert len(note["lane_lines"]) >= 5
        for lane in note["lane_lines"]:
            x, y, z = np.array(lane["xyz"])
            assert len(x) == len(lane["visibility"]) > 50
            u, v, w = intrinsic @ np.stack([-y, -z, x])
            assert np.abs(np.stack([u / w, v / w]) - np.array(lane["uv"])).max() < 0.5


def test_openlane_extrinsic_puts_the_lanes_on_the_road(lanes: tuple[Path, list[Note]]) -> None:
    for note in lanes[1]:
        extrinsic = np.array(note["extrinsic"])
        assert is_pose(extrinsic)
        left_to_right = []
        for lane in note["lane_lines"]:
            xyz = np.array(lane["xyz"])
            ego = extrinsic @ np.vstack([xyz, np.ones(xyz.shape[1])])
            near = ego[0] < 20
            assert np.abs(ego[2, near]).max() < 0.05
            left_to_right.append(float(ego[1, near].mean()))
        assert left_to_right == sorted(left_to_right, reverse=True)
        attributes = [lane["attribute"] for lane in note["lane_lines"]]
        assert [a for a in attributes if a] == sorted({1, 2, 3, 4} & set(attributes))
        assert left_to_right[attributes.index(2)] > 0 > left_to_right[attributes.index(3)]


def test_openlane_lines_are_painted_where_uv_says(lanes: tuple[Path, list[Note]]) -> None:
    dest, notes = lanes
    for note in notes:
        gray = np.asarray(Image.open(dest / "images" / note["file_path"]).convert("L"), np.float64)
        solid = [lane for lane in note["lane_lines"] if lane["category"] == openlane.WHITE_SOLID]
        assert solid
        for lane in solid:
            u, v = np.array(lane["uv"])
            x = np.array(lane["xyz"])[0]
            use = (np.array(lane["visibility"]) > 0) & (x < 45) & (u > 60) & (u < 1860)
            assert use.sum() > 5
            col, row = u[use].round().astype(int), v[use].round().astype(int)
            aside = (np.array(note["intrinsic"])[0, 0] * 0.5 / x[use]).astype(
                int
            )  # half a meter into the lane
            assert gray[row, col].mean() > gray[row, (col - aside).clip(0)].mean() + 30


def test_openlane_covered_points_are_not_visible(tmp_path: Path) -> None:
    """A car covers a line in some frame: its points are marked invisible and show no road."""
    openlane.make(tmp_path / "d", n=4, seed=1)
    notes = [
        json.loads(path.read_text())
        for path in sorted((tmp_path / "d" / "annotations").rglob("*.json"))
    ]
    inside_hidden = 0
    for note in notes:
        for lane in note["lane_lines"]:
            u, v = np.array(lane["uv"])
            hidden = np.array(lane["visibility"]) == 0
            outside = (u < -0.5) | (u > 1919.5) | (v < -0.5) | (v > 1279.5)
            assert hidden[outside].all()
            inside_hidden += int((hidden & ~outside).sum())
    assert inside_hidden > 0


def test_nuscenes_layout(cameras: tuple[Path, list[Sample]]) -> None:
    dest, samples = cameras
    index = json.loads((dest / "samples.json").read_text())
    assert index["classes"] == ["background", "drivable_area", "ped_crossing", "divider", "vehicle"]
    assert len({sample["token"] for sample in samples}) == 2
    for sample in samples:
        assert len(sample["token"]) == 32
        assert set(sample["cams"]) == set(nuscenes.CAMERAS)
        for name, cam in sample["cams"].items():
            assert cam["filename"].startswith(f"samples/{name}/")
            path = dest / cam["filename"]
            with Image.open(path) as image:
                assert (image.mode, image.size) == ("RGB", (1600, 900))
            assert 1.5 <= 8 * path.stat().st_size / (1600 * 900) <= 5
            assert np.shape(cam["camera_intrinsic"]) == (3, 3)
            assert is_pose(np.array(cam["sensor2ego"]))
        with Image.open(dest / sample["bev_mask"]) as mask:
            assert (mask.format, mask.mode, mask.size) == ("PNG", "L", (200, 200))
            assert set(np.unique(np.asarray(mask))) == {0, 1, 2, 3, 4}


def test_nuscenes_cameras_cover_all_directions(cameras: tuple[Path, list[Sample]]) -> None:
    ahead = {
        name: np.array(cam["sensor2ego"])[:3, 2] for name, cam in cameras[1][0]["cams"].items()
    }
    yaw = {name: float(np.rad2deg(np.arctan2(v[1], v[0]))) for name, v in ahead.items()}
    assert abs(yaw["CAM_FRONT"]) < 3
    assert abs(yaw["CAM_BACK"]) > 177
    assert 50 < yaw["CAM_FRONT_LEFT"] < 60
    assert 100 < yaw["CAM_BACK_LEFT"] < 115
    assert -60 < yaw["CAM_FRONT_RIGHT"] < -50
    assert -115 < yaw["CAM_BACK_RIGHT"] < -100


def luma_at_cells(dest: Path, sample: Sample, class_id: int) -> Array:
    """Brightness of all pixels that show the middle of a mask cell of a class within 25 m."""
    mask = np.asarray(Image.open(dest / sample["bev_mask"]))
    row, col = np.nonzero(mask == class_id)
    ego = np.stack([49.75 - row / 2, 49.75 - col / 2, np.zeros(len(row)), np.ones(len(row))])
    ego = ego[:, np.hypot(ego[0], ego[1]) < 25]
    found = []
    for cam in sample["cams"].values():
        gray = np.asarray(Image.open(dest / cam["filename"]).convert("L"), np.float64)
        seen = (np.linalg.inv(np.array(cam["sensor2ego"])) @ ego)[:3]
        u, v, w = np.array(cam["camera_intrinsic"]) @ seen[:, seen[2] > 2]
        u, v = (u / w).round().astype(int), (v / w).round().astype(int)
        inside = (u >= 0) & (u < 1600) & (v >= 0) & (v < 900)
        found.append(gray[v[inside], u[inside]])
    return np.concatenate(found)


def test_nuscenes_mask_agrees_with_the_images(cameras: tuple[Path, list[Sample]]) -> None:
    """The mask, projected with the matrices, marks paint where pixels are brighter."""
    dest, samples = cameras
    for sample in samples:
        road = luma_at_cells(dest, sample, 1)
        divider = luma_at_cells(dest, sample, 3)
        assert min(len(road), len(divider)) > 20
        assert divider.mean() > road.mean() + 15


def test_fewer_frames_are_a_prefix_of_more(tmp_path: Path, lanes: tuple[Path, list[Note]]) -> None:
    openlane.make(tmp_path / "d", n=1, seed=8)
    files = [path for path in (tmp_path / "d").rglob("*") if path.is_file()]
    assert len(files) == 2
    for path in files:
        assert path.read_bytes() == (lanes[0] / path.relative_to(tmp_path / "d")).read_bytes()


def test_fewer_samples_are_a_prefix_of_more(
    tmp_path: Path, cameras: tuple[Path, list[Sample]]
) -> None:
    nuscenes.make(tmp_path / "d", n=1, seed=3)
    assert json.loads((tmp_path / "d" / "samples.json").read_text())["samples"] == cameras[1][:1]
    files = [path for path in (tmp_path / "d").rglob("*") if path.suffix in (".jpg", ".png")]
    assert len(files) == 7
    for path in files:
        assert path.read_bytes() == (cameras[0] / path.relative_to(tmp_path / "d")).read_bytes()


def test_box_footprint_rotates_counterclockwise() -> None:
    region = material("metal", np.random.default_rng(0))
    box = Box(10.0, 5.0, 0.0, np.pi / 2, 4.0, 2.0, 1.5, region=region, windows=region)
    np.testing.assert_allclose(sorted(box.footprint().tolist()), [[9, 3], [9, 7], [11, 3], [11, 7]])


def test_polygons_are_clipped_at_the_near_plane() -> None:
    pose = np.eye(4)
    pose[:3, :3] = rotation() @ OPTICAL
    pose[2, 3] = 1.5
    camera = Camera(100, 80, np.array([[100.0, 0, 50], [0, 100, 40], [0, 0, 1]]), pose)
    across = camera.outline(np.array([[-5.0, -1, 0], [-5, 1, 0], [11, 1, 0], [11, -1, 0]]))
    assert len(across) == 4
    np.testing.assert_allclose(across[:, 1].max(), 40 + 100 * 1.5 / NEAR_M)  # the cut edge
    assert len(camera.outline(np.array([[-5.0, -1, 0], [-5, 1, 0], [-2, 1, 0]]))) == 0
    assert camera.horizon() == pytest.approx(0.5)
