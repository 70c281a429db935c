"""Streets seen by cameras: projection, ground polygons, boxes (cars, houses), trees, the backdrop.

Ego frame: x forward, y left, z up, in meters, with z = 0 on the ground under the car. Camera frame:
x right, y down, z forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastload._tools.scenes.scene import Canvas, Region, blob, material, ridge

Array: TypeAlias = NDArray[np.float64]
NEAR_M = 1.0  # closer objects are clipped
# Columns: the camera axes (x right, y down, z forward) in a frame with x forward, y left, z up.
OPTICAL = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])


def rotation(*, yaw: float = 0.0, pitch: float = 0.0) -> Array:
    """Returns the rotation in the ego frame: pitch down, then yaw left (radians)."""
    cy, sy, cp, sp = np.cos(yaw), np.sin(yaw), np.cos(pitch), np.sin(pitch)
    yaw_matrix, pitch_matrix = (
        np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]]),
        np.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]]),
    )
    return np.asarray(yaw_matrix @ pitch_matrix)


@dataclass(frozen=True, slots=True)
class Camera:
    """A pinhole camera: intrinsic matrix (3, 3) and pose (4, 4) to the ego frame."""

    width: int
    height: int
    intrinsic: Array
    to_ego: Array

    @property
    def place(self) -> Array:
        return self.to_ego[:3, 3]

    def into(self, points: Array) -> Array:
        """Transforms ego points (n, 3) to the camera frame."""
        return (points - self.place) @ self.to_ego[:3, :3]

    def project(self, points: Array) -> Array:
        """Projects points (n, 3) of the camera frame with positive depth to pixels (n, 2)."""
        flat = points @ self.intrinsic.T
        return np.asarray(flat[:, :2] / flat[:, 2:])

    def outline(self, corners: Array) -> Array:
        """Projects a polygon of ego points, clipped at NEAR_M; empty if invisible."""
        seen = self.into(corners)
        out = []
        for a, b in zip(seen, np.roll(seen, -1, axis=0), strict=True):
            if a[2] >= NEAR_M:
                out.append(a)
            if (a[2] >= NEAR_M) != (b[2] >= NEAR_M):
                out.append(a + (b - a) * (NEAR_M - a[2]) / (b[2] - a[2]))
        return self.project(np.array(out)) if len(out) >= 3 else np.empty((0, 2))

    def horizon(self) -> float:
        """Returns the row of the horizon straight ahead, as a fraction of the height."""
        ahead = self.to_ego[:3, :3] @ np.array([0.0, 0.0, 1.0])
        ahead[2] = 0
        return float(self.project(self.into(self.place + ahead[None] * 1e4))[0, 1]) / self.height


@dataclass(frozen=True, slots=True)
class Box:
    """A car or a house on the ground; z is the height of its base."""

    x: float
    y: float
    z: float
    yaw: float
    length: float
    width: float
    height: float
    region: Region
    windows: Region

    def footprint(self) -> Array:
        """Returns the four corners (4, 2) on the ground, clockwise from above."""
        half = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]]) * [self.length / 2, self.width / 2]
        c, s = np.cos(self.yaw), np.sin(self.yaw)
        return np.asarray(half @ np.array([[c, s], [-s, c]]) + [self.x, self.y])


@dataclass(frozen=True, slots=True)
class Tree:
    """A trunk and a crown; `shape` seeds the outline, so that every camera sees the same tree."""

    x: float
    y: float
    z: float
    height: float
    trunk: Region
    crown: Region
    shape: int


def car(rng: np.random.Generator, *, x: float, y: float, z: float = 0.0, yaw: float = 0.0) -> Box:
    """Makes a car, or a van in one of six cases."""
    size = np.array((5.8, 2.1, 2.5) if rng.random() < 1 / 6 else (4.5, 1.85, 1.5))
    paint = material(str(rng.choice(("metal", "white", "black", "red", "denim", "metal"))), rng)
    paint = replace(paint, kind="stone", gain=2.5, shade=16.0)
    glass = replace(material("black", rng), kind="cloud", gain=4.0)
    length, width, height = (size * rng.uniform(0.93, 1.07, 3)).tolist()
    return Box(x, y, z, yaw, length, width, height, region=paint, windows=glass)


def house(rng: np.random.Generator, *, x: float, y: float) -> Box:
    """Makes a house with a length of 8 to 20 meters."""
    wall = material(str(rng.choice(("brick", "concrete", "wall", "concrete"))), rng)
    length, width, height = (float(v) for v in rng.uniform((8, 6, 5), (20, 12, 16)))
    return Box(
        x,
        y,
        0.0,
        float(rng.normal(0, 0.1)),
        length,
        width,
        height,
        region=wall,
        windows=material("shade", rng),
    )


def tree(rng: np.random.Generator, *, x: float, y: float) -> Tree:
    """Makes a tree with a height of 4 to 9 meters."""
    trunk, crown = material("wood", rng), material("foliage", rng)
    return Tree(x, y, 0.0, float(rng.uniform(4, 9)), trunk, crown, shape=int(rng.integers(2**31)))


def draw_ground(canvas: Canvas, camera: Camera, corners: Array, label: int) -> None:
    """Draws a polygon of ego points (n, 3)."""
    outline = camera.outline(corners)
    if len(outline):
        canvas.polygon(outline, label)


def _side(a: Array, b: Array, low: float, high: float) -> Array:
    """Returns the vertical rectangle over the ground line a-b."""
    return np.array([[*a, low], [*b, low], [*b, high], [*a, high]])


def _draw_box(canvas: Canvas, camera: Camera, box: Box, *, depth: float) -> None:
    """Draws the visible sides with different brightness, a dark base and a band of windows."""
    foot = box.footprint()
    eye = camera.place
    body = replace(box.region, depth=depth)
    light = [
        canvas.add(replace(body, y=float(np.clip(body.y * f, 8, 245))))
        for f in (1.0, 0.8, 0.66, 0.9)
    ]
    glass = canvas.add(replace(box.windows, depth=depth))
    dark = canvas.add(replace(body, y=22.0, cb=128.0, cr=128.0))
    low, high = box.z + min(0.3, 0.15 * box.height), box.z + box.height
    for i, (a, b) in enumerate(zip(foot, np.roll(foot, -1, axis=0), strict=True)):
        outward = np.array([a[1] - b[1], b[0] - a[0]])
        if outward @ (eye[:2] - a) <= 0:  # faces away from the camera
            continue
        draw_ground(canvas, camera, _side(a, b, box.z, low), dark)
        draw_ground(canvas, camera, _side(a, b, low, high), light[i])
        c, d = a + (b - a) * 0.07, b - (b - a) * 0.07
        draw_ground(
            canvas, camera, _side(c, d, box.z + 0.6 * box.height, box.z + 0.92 * box.height), glass
        )
    if eye[2] > high:
        draw_ground(canvas, camera, np.column_stack([foot, np.full(4, high)]), light[0])


def _draw_tree(canvas: Canvas, camera: Camera, tree: Tree, *, depth: float) -> None:
    seen = camera.into(np.array([[tree.x, tree.y, tree.z]]))
    (u, v), scale = camera.project(seen)[0], float(camera.intrinsic[0, 0] / seen[0, 2])
    top = v - tree.height * scale
    trunk = [
        [u - 0.16 * scale, v],
        [u + 0.16 * scale, v],
        [u + 0.1 * scale, top],
        [u - 0.1 * scale, top],
    ]
    canvas.polygon(np.array(trunk), canvas.add(replace(tree.trunk, depth=depth)))
    crown = canvas.add(replace(tree.crown, depth=depth))
    rng = np.random.default_rng(tree.shape)
    for dx, dy, radius in rng.normal((0, 0, 2.0), (0.7, 0.7, 0.3), (4, 3)).tolist():
        center = (u + dx * scale, top + (dy + 0.6) * scale)
        canvas.polygon(
            blob(rng, center=center, radius=max(radius, 0.8) * scale, wobble=0.3, n=60), crown
        )


def draw_things(canvas: Canvas, camera: Camera, things: Sequence[Box | Tree]) -> None:
    """Draws visible objects, the farthest first, so that near ones cover far ones."""
    ahead = [(float(camera.into(np.array([[t.x, t.y, t.z]]))[0, 2]), t) for t in things]
    for distance, thing in sorted(ahead, key=lambda pair: -pair[0]):
        if distance < 2 * NEAR_M:
            continue
        depth = float(np.clip(8 / distance, 0.06, 0.8))
        if isinstance(thing, Box):
            _draw_box(canvas, camera, thing, depth=depth)
        else:
            _draw_tree(canvas, camera, thing, depth=depth)


def backdrop(camera: Camera, rng: np.random.Generator, *, sky: Region, ground: Region) -> Canvas:
    """Draws sky, one or two distant rows of trees, and the ground up to the horizon."""
    canvas = Canvas(camera.width, camera.height, sky)
    level = camera.horizon()
    for step in range(int(rng.integers(1, 3))):
        far = material(str(rng.choice(("foliage", "blur"))), rng, depth=0.02)
        ridge(canvas, rng, level=level - 0.05 + 0.03 * step, rough=0.03, region=far)
    ridge(canvas, rng, level=level, rough=0.0, region=ground)
    return canvas
