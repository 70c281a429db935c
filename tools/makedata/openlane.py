"""OpenLane-like data: 1920x1280 road images, each with a JSON of 3D lane lines and camera matrices.

images/<split>/<segment>/<timestamp>.jpg and annotations/<split>/<segment>/<timestamp>.json. As in
OpenLane (with the axes of Waymo), `xyz` is relative to the camera with x forward, y left, z up;
`extrinsic` transforms it to the car; and uv = K @ (-y, -z, x) / x. Points that are hidden or
outside the image have visibility 0.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastload._tools.scenes import generate as run
from fastload._tools.scenes.photo import QUALITY, render
from fastload._tools.scenes.scene import Canvas, material
from tools.makedata.street import (
    OPTICAL,
    Array,
    Box,
    Camera,
    Tree,
    backdrop,
    car,
    draw_ground,
    draw_things,
    house,
    rotation,
    tree,
)

WIDTH, HEIGHT = 1920, 1280
FRAMES_PER_SEGMENT = 4
_FIRST_TIMESTAMP, _FRAME_US = 150_723_473_000_000, 100_000
_FIRST_M, _LAST_M = 3.0, 110.0  # start and end of the lane lines ahead of the car
_LINE_M, _DASH_M, _PERIOD_M = 0.18, 3.5, 10.0
# Categories of OpenLane.
WHITE_DASH, WHITE_SOLID, YELLOW_SOLID, LEFT_CURB, RIGHT_CURB = 1, 2, 8, 20, 21


@dataclass(frozen=True, slots=True)
class Road:
    """The course of a road and its lane lines. Lengths are in meters, offsets to the left."""

    curve: float  # 1/m
    climb: float  # 1/m
    lines: tuple[tuple[float, int], ...]  # offset, category; from left to right

    def at(self, x: Array, offset: float, *, shift: float) -> Array:
        """Returns points (n, 3) of a line. Car and line are left of the middle."""
        y = offset - shift + self.curve * x**2 / 2
        return np.stack([x, y, self.climb * x**2 / 2], axis=1)


@dataclass(frozen=True, slots=True)
class _Task:
    dest: Path
    seed: int
    index: int


def _road(rng: np.random.Generator) -> Road:
    lane = float(rng.uniform(3.3, 3.8))
    n_left, n_right = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    lines = [(n_left * lane + 0.9, LEFT_CURB)]
    for k in range(n_left, -n_right - 1, -1):
        category = YELLOW_SOLID if k == n_left else WHITE_SOLID if k == -n_right else WHITE_DASH
        lines.append((k * lane, category))
    lines.append((-n_right * lane - 0.9, RIGHT_CURB))
    # climb stays below 2e-4: a steeper crest would hide the end of the road, which is drawn anyway
    return Road(
        curve=float(rng.normal(0, 1.2e-3)),
        climb=float(rng.uniform(-1.6e-4, 1.6e-4)),
        lines=tuple(lines),
    )


def _camera(rng: np.random.Generator) -> Camera:
    focal = float(rng.uniform(2040, 2080))
    u, v = rng.normal((WIDTH / 2, HEIGHT / 2), 8)
    intrinsic = np.array([[focal, 0, u], [0, focal, v], [0, 0, 1.0]])
    pose = np.eye(4)
    pose[:3, :3] = (
        rotation(yaw=float(rng.normal(0, 0.01)), pitch=float(rng.uniform(-0.01, 0.03))) @ OPTICAL
    )
    pose[:3, 3] = (1.54, float(rng.normal(0, 0.02)), float(rng.uniform(2.0, 2.2)))
    return Camera(WIDTH, HEIGHT, intrinsic, pose)


def _ribbon(road: Road, x: Array, left: float, right: float, shift: float) -> Array:
    return np.concatenate([road.at(x, left, shift=shift), road.at(x[::-1], right, shift=shift)])


def _draw_road(
    canvas: Canvas, camera: Camera, rng: np.random.Generator, *, road: Road, shift: float
) -> list[int]:
    """Draws asphalt and lines; returns the labels at which a lane line is visible."""
    x = np.geomspace(camera.place[0] + 1.2, _LAST_M, 80)
    names = ("asphalt", "paint", "yellow", "concrete")
    asphalt, white, yellow, curb = (canvas.add(material(name, rng, depth=0.03)) for name in names)
    draw_ground(
        canvas, camera, _ribbon(road, x, road.lines[0][0], road.lines[-1][0], shift), asphalt
    )
    start = float(rng.uniform(-_PERIOD_M, 0))
    for offset, category in road.lines:
        label = {YELLOW_SOLID: yellow, LEFT_CURB: curb, RIGHT_CURB: curb}.get(category, white)
        half = _LINE_M if label == curb else _LINE_M / 2
        pieces = [x]
        if category == WHITE_DASH:
            starts = np.arange(start, _LAST_M - _DASH_M, _PERIOD_M)
            pieces = [np.linspace(s, s + _DASH_M, 5) for s in starts if s > x[0]]
        for piece in pieces:
            draw_ground(
                canvas, camera, _ribbon(road, piece, offset + half, offset - half, shift), label
            )
    return [asphalt, white, yellow, curb]


def _things(rng: np.random.Generator, *, road: Road, shift: float) -> list[Box | Tree]:
    """Returns trees and houses next to the road and cars on its lanes."""

    def spot(x: float, offset: float) -> tuple[float, float, float]:
        x, y, z = road.at(np.array([x]), offset, shift=shift)[0].tolist()
        return x, y, z

    def beside(near: float, far: float) -> float:
        away = float(rng.uniform(near, far))
        return road.lines[0][0] + away if rng.random() < 0.5 else road.lines[-1][0] - away

    things: list[Box | Tree] = []
    for _ in range(int(rng.integers(3, 12))):
        x, y, _z = spot(float(rng.uniform(15, 90)), beside(4, 14))
        things.append(tree(rng, x=x, y=y))
    for _ in range(int(rng.integers(0, 5))):
        x, y, _z = spot(float(rng.uniform(30, 100)), beside(14, 26))
        things.append(house(rng, x=x, y=y))
    inner = [offset for offset, _ in road.lines[1:-1]]
    for slot in rng.choice(
        8, int(rng.integers(0, 5)), replace=False
    ):  # 9 meters per slot, so that cars do not overlap
        k = int(rng.integers(len(inner) - 1))
        x, y, z = spot(
            14 + 9 * float(slot) + float(rng.uniform(0, 2)), (inner[k] + inner[k + 1]) / 2
        )
        things.append(car(rng, x=x, y=y, z=z, yaw=road.curve * x))
    return things


def _attribute(rank: int) -> int:
    """Maps the rank of a line (0: the nearest on the left) to OpenLane's 1 to 4, or 0."""
    return {1: 1, 0: 2, -1: 3, -2: 4}.get(rank, 0)


def _lane_lines(
    camera: Camera, canvas: Canvas, *, road: Road, shift: float, seen: list[int]
) -> list[dict[str, object]]:
    labels = np.asarray(canvas.labels)
    offsets = [offset - shift for offset, _ in road.lines]
    n_left = sum(offset > 0 for offset in offsets)
    lanes: list[dict[str, object]] = []
    for i, (offset, category) in enumerate(road.lines):
        points = camera.into(road.at(np.arange(_FIRST_M, _LAST_M, 1.0), offset, shift=shift))
        points = points[points[:, 2] > 1.5]
        uv = camera.project(points)
        col, row = np.rint(uv).astype(int).T
        inside = (col >= 0) & (col < WIDTH) & (row >= 0) & (row < HEIGHT)
        visible = inside & np.isin(labels[row.clip(0, HEIGHT - 1), col.clip(0, WIDTH - 1)], seen)
        lanes.append(
            {
                "category": category,
                "visibility": visible.astype(float).tolist(),
                "uv": uv.T.round(3).tolist(),
                "xyz": (points @ OPTICAL.T).T.round(6).tolist(),
                "attribute": _attribute(n_left - 1 - i),
                "track_id": i + 1,
            }
        )
    return lanes


def _one(task: _Task) -> None:
    rng = np.random.default_rng([task.seed, run.STREAMS["openlane"], task.index])
    segment = task.index // FRAMES_PER_SEGMENT
    place = np.random.default_rng([task.seed, run.STREAMS["openlane/segment"], segment])
    road, camera = _road(place), _camera(place)
    sky, ground = material("sky", place), material("grass", place, depth=0.03)
    shift = float(place.normal(-1.8, 0.3)) + float(rng.normal(0, 0.1))
    canvas = backdrop(camera, rng, sky=sky, ground=ground)
    seen = _draw_road(canvas, camera, rng, road=road, shift=shift)
    draw_things(canvas, camera, _things(rng, road=road, shift=shift))
    split = "validation" if segment % 4 == 3 else "training"
    name = f"{split}/segment-{segment:05d}/{_FIRST_TIMESTAMP + task.index * _FRAME_US}"
    extrinsic = camera.to_ego.copy()
    extrinsic[:3, :3] = camera.to_ego[:3, :3] @ OPTICAL.T
    note = {
        "extrinsic": extrinsic.tolist(),
        "intrinsic": camera.intrinsic.tolist(),
        "lane_lines": _lane_lines(camera, canvas, road=road, shift=shift, seen=seen),
        "file_path": f"{name}.jpg",
    }
    image_path, note_path = (
        task.dest / "images" / f"{name}.jpg",
        task.dest / "annotations" / f"{name}.json",
    )
    for path in (image_path, note_path):
        path.parent.mkdir(parents=True, exist_ok=True)
    render(canvas, rng).save(image_path, quality=QUALITY)
    note_path.write_text(json.dumps(note, allow_nan=False), encoding="utf-8")


def make(
    dest: Path,
    *,
    n: int,
    seed: int = 0,
    jobs: int = 1,
    on_progress: run.OnProgress = run.ignore_progress,
) -> run.Made:
    """Writes n frames, four per segment; every fourth segment is for validation."""
    run.start(dest, n=n, seed=seed, jobs=jobs)
    run.run(_one, [_Task(dest, seed, i) for i in range(n)], jobs=jobs, on_progress=on_progress)
    return run.finish("openlane", dest, n_samples=n)
