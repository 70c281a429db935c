"""nuScenes-like data: six cameras around a car, their matrices, and a bird's-eye-view mask.

The images are 1600x900: samples/<CAMERA>/*.jpg, bev/<token>.png and samples.json, one simplified
index instead of the thirteen tables of nuScenes. The mask is 200x200 with 0.5 m per cell and one
channel of class ids (see CLASSES). Row 0 is 50 m ahead and column 0 is 50 m to the left, so cell
(r, c) has its center at x = 49.75 - r / 2, y = 49.75 - c / 2 of the ego frame (x forward, y left,
z up).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from fastload._tools.scenes import generate as run
from fastload._tools.scenes.photo import QUALITY, render
from fastload._tools.scenes.scene import Region, material, whole_pixels
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

WIDTH, HEIGHT = 1600, 900
CLASSES = ("background", "drivable_area", "ped_crossing", "divider", "vehicle")
_BACKGROUND, _DRIVABLE, _CROSSING, _DIVIDER, _VEHICLE = range(len(CLASSES))
CELLS, CELL_M = 200, 0.5
# name: yaw in degrees, focal length in pixels, position in meters (similar to the cars of nuScenes,
# whose back camera has a wider view)
_CAMERAS = {
    "CAM_FRONT": (0, 1266, (1.70, 0.0, 1.51)),
    "CAM_FRONT_RIGHT": (-56, 1260, (1.55, -0.49, 1.50)),
    "CAM_BACK_RIGHT": (-110, 1259, (1.01, -0.48, 1.56)),
    "CAM_BACK": (180, 809, (0.03, 0.0, 1.57)),
    "CAM_BACK_LEFT": (108, 1256, (1.04, 0.48, 1.56)),
    "CAM_FRONT_LEFT": (55, 1272, (1.52, 0.49, 1.51)),
}
CAMERAS = tuple(_CAMERAS)
_FIRST_TIMESTAMP, _SAMPLE_US = 1_533_151_603_500_000, 500_000
_SAMPLES_PER_SCENE = 8


@dataclass(frozen=True, slots=True)
class _Task:
    dest: Path
    seed: int
    index: int


@dataclass(frozen=True, slots=True)
class _Ground:
    """A polygon (n, 2) on the ground: its class in the mask and its paint in the images."""

    corners: Array
    class_id: int
    paint: str


@dataclass(frozen=True, slots=True)
class _World:
    """The surroundings of the car in one sample."""

    ground: tuple[_Ground, ...]
    cars: tuple[Box, ...]
    others: tuple[Box | Tree, ...]
    sky: Region
    soil: Region


def _strip(*, yaw: float, along: tuple[float, float], across: tuple[float, float]) -> Array:
    """Returns a rectangle (4, 2), in meters, in a frame rotated left by yaw."""
    (a0, a1), (b0, b1) = along, across
    corners = np.array([[a0, b0], [a1, b0], [a1, b1], [a0, b1]])
    return np.asarray(corners @ rotation(yaw=yaw)[:2, :2].T)


def _marks(
    rng: np.random.Generator, *, yaw: float, edges: tuple[float, float], crossing: float
) -> Iterator[_Ground]:
    """Yields dividers and a zebra crossing of a road with `edges` meters to the left."""
    right, left = edges
    zebra = (crossing, crossing + 3.5)
    lane = (left - right) / round((left - right) / 3.4)
    for k in range(1, round((left - right) / lane)):
        middle = right + k * lane
        for start in np.arange(-60.0, 60.0, 6.0) + rng.uniform(0, 2):
            if not zebra[0] - 5 < start < zebra[1] + 1:
                dash = _strip(
                    yaw=yaw, along=(start, start + 4), across=(middle - 0.12, middle + 0.12)
                )
                yield _Ground(dash, _DIVIDER, "paint")
    yield _Ground(
        _strip(yaw=yaw, along=zebra, across=(right + 0.4, left - 0.4)), _CROSSING, "asphalt"
    )
    for y in np.arange(right + 0.6, left - 0.8, 1.1):
        yield _Ground(_strip(yaw=yaw, along=zebra, across=(y, y + 0.55)), _CROSSING, "paint")


def _world(rng: np.random.Generator) -> _World:
    yaw = float(rng.normal(0, 0.06))
    edges = (-float(rng.uniform(3.0, 5.5)), float(rng.uniform(5.5, 9.0)))
    cross = float(rng.uniform(18, 38)) * (1 if rng.random() < 0.6 else -1)
    side_road = (cross, cross + float(rng.uniform(7, 10)))
    ground = [
        _Ground(_strip(yaw=yaw, along=side_road, across=(-70, 70)), _DRIVABLE, "asphalt"),
        _Ground(_strip(yaw=yaw, along=(-70, 70), across=edges), _DRIVABLE, "asphalt"),
        *_marks(rng, yaw=yaw, edges=edges, crossing=side_road[0] - 5.5),
    ]
    turn = rotation(yaw=yaw)[:2, :2]
    cars = []
    for slot in rng.choice(10, int(rng.integers(3, 8)), replace=False):
        along = -46.0 + 8 * float(slot) + (14 if slot >= 5 else 0)  # no car at the cameras
        x, y = turn @ (along + rng.uniform(0, 2), rng.uniform(edges[0] + 1.2, edges[1] - 1.2))
        cars.append(car(rng, x=float(x), y=float(y), yaw=yaw + float(rng.normal(0, 0.03))))
    others: list[Box | Tree] = []
    for slot in rng.choice(16, int(rng.integers(8, 14)), replace=False):
        left = slot % 2 == 0
        along = -52.0 + 14 * float(slot // 2)
        if side_road[0] - 8 < along < side_road[1] + 8:
            continue
        away = float(rng.uniform(4, 8))
        x, y = turn @ (along, edges[1] + away if left else edges[0] - away)
        others.append(tree(rng, x=float(x), y=float(y)))
        x, y = turn @ (along + 5, edges[1] + away + 12 if left else edges[0] - away - 12)
        if rng.random() < 0.7:
            others.append(house(rng, x=float(x), y=float(y)))
    soil = material(str(rng.choice(("concrete", "grass", "concrete"))), rng, depth=0.03)
    return _World(
        tuple(ground),
        tuple(cars),
        tuple(others),
        material(str(rng.choice(("sky", "overcast"))), rng),
        soil,
    )


def _camera(name: str, rng: np.random.Generator) -> Camera:
    yaw, focal, place = _CAMERAS[name]
    f = focal + float(rng.normal(0, 3))
    pose = np.eye(4)
    yaw_off, pitch = rng.normal((0, 0.01), 0.005)
    pose[:3, :3] = rotation(yaw=np.deg2rad(yaw) + float(yaw_off), pitch=float(pitch)) @ OPTICAL
    pose[:3, 3] = place
    u, v = rng.normal((808, 470), 8)
    return Camera(WIDTH, HEIGHT, np.array([[f, 0, u], [0, f, v], [0, 0, 1.0]]), pose)


def _bev(world: _World) -> Image.Image:
    mask = Image.new("L", (CELLS, CELLS), _BACKGROUND)
    draw = ImageDraw.Draw(mask)
    shapes = [(g.corners, g.class_id) for g in world.ground] + [
        (c.footprint(), _VEHICLE) for c in world.cars
    ]
    for corners, class_id in shapes:
        cells = (CELLS * CELL_M / 2 - corners[:, ::-1]) / CELL_M - 0.5
        draw.polygon(whole_pixels(cells), fill=class_id)
    return mask


def _shoot(
    camera: Camera, world: _World, rng: np.random.Generator, *, paints: dict[str, Region]
) -> Image.Image:
    canvas = backdrop(camera, rng, sky=world.sky, ground=world.soil)
    labels = {name: canvas.add(region) for name, region in paints.items()}
    for patch in world.ground:
        draw_ground(
            canvas,
            camera,
            np.column_stack([patch.corners, np.zeros(len(patch.corners))]),
            labels[patch.paint],
        )
    draw_things(canvas, camera, [*world.cars, *world.others])
    return render(canvas, rng)


def _one(task: _Task) -> dict[str, object]:
    rng = np.random.default_rng([task.seed, run.STREAMS["nuscenes"], task.index])
    token, timestamp = rng.bytes(16).hex(), _FIRST_TIMESTAMP + task.index * _SAMPLE_US
    world = _world(rng)
    paints = {name: material(name, rng, depth=0.03) for name in ("asphalt", "paint")}
    cams: dict[str, object] = {}
    for name in CAMERAS:
        camera = _camera(name, rng)
        shot_us = timestamp + 1000 * CAMERAS.index(name)
        filename = f"samples/{name}/n008-2018-08-01-15-16-36-0400__{name}__{shot_us}.jpg"
        _shoot(camera, world, rng, paints=paints).save(task.dest / filename, quality=QUALITY)
        matrices = {
            "camera_intrinsic": camera.intrinsic.tolist(),
            "sensor2ego": camera.to_ego.tolist(),
        }
        cams[name] = {"filename": filename, **matrices}
    bev = f"bev/{token}.png"
    _bev(world).save(task.dest / bev)
    scene = f"scene-{task.index // _SAMPLES_PER_SCENE:04d}"
    return {"token": token, "timestamp": timestamp, "scene": scene, "cams": cams, "bev_mask": bev}


def make(
    dest: Path,
    *,
    n: int,
    seed: int = 0,
    jobs: int = 1,
    on_progress: run.OnProgress = run.ignore_progress,
) -> run.Made:
    """Writes n samples of six images and one mask, then samples.json."""
    run.start(dest, n=n, seed=seed, jobs=jobs)
    for folder in (*(f"samples/{name}" for name in CAMERAS), "bev"):
        (dest / folder).mkdir(parents=True)
    samples = run.run(
        _one, [_Task(dest, seed, i) for i in range(n)], jobs=jobs, on_progress=on_progress
    )
    index = {"version": "makedata-1", "classes": CLASSES, "bev_cell_m": CELL_M, "samples": samples}
    (dest / "samples.json").write_text(
        json.dumps(index, indent=1, allow_nan=False), encoding="utf-8"
    )
    return run.finish("nuscenes", dest, n_samples=n)
