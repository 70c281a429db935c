"""Scenes: a label map (one region number per pixel) and a list of regions.

Scenes draw labels instead of colors. `photo.render` then computes material, light and shadow of
all pixels at once in NumPy, and generators can query which region is visible at a pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

MAX_REGIONS = 255  # the label map has 8 bits


@dataclass(frozen=True, slots=True)
class Region:
    """The material of a part of the scene, in units of 8-bit YCbCr."""

    y: float
    cb: float
    cr: float
    kind: str  # texture, see textures.KINDS
    gain: float  # strength of the texture
    shade: float  # strength of the change of light
    depth: float = 0.0  # 0 = far, 1 = near; near objects cast a soft shadow on farther ones


@dataclass(frozen=True, slots=True)
class _Material:
    rgb: tuple[int, int, int]
    jitter: float  # standard deviation of the brightness
    kind: str
    gain: float
    shade: float


# Colors chosen by eye. The resulting spread of Cb and Cr is close to that of photographs: the
# median standard deviation is 12.5, and 10.3 and 9.7 in 300 real ones.
_MATERIALS = {
    "sky": _Material((150, 185, 225), 22, "cloud", 2.0, 10),
    "overcast": _Material((208, 212, 216), 18, "cloud", 3.0, 10),
    "wall": _Material((196, 186, 170), 30, "stone", 4.0, 16),
    "shade": _Material((52, 50, 54), 16, "stone", 5.0, 16),
    "blur": _Material((108, 122, 92), 30, "cloud", 4.0, 26),
    "water": _Material((84, 112, 124), 22, "wood", 9.0, 12),
    "grass": _Material((104, 124, 62), 20, "fur", 17.0, 14),
    "foliage": _Material((66, 88, 44), 20, "leaves", 21.0, 14),
    "soil": _Material((116, 92, 68), 22, "sand", 13.0, 14),
    "sand": _Material((200, 176, 138), 20, "sand", 9.0, 12),
    "rock": _Material((136, 132, 126), 28, "stone", 18.0, 18),
    "brick": _Material((146, 88, 66), 20, "stone", 13.0, 14),
    "wood": _Material((134, 98, 62), 26, "wood", 15.0, 14),
    "skin": _Material((206, 160, 132), 24, "stone", 4.0, 20),
    "snow": _Material((232, 234, 240), 8, "stone", 4.0, 9),
    "asphalt": _Material((112, 112, 114), 16, "sand", 8.0, 9),
    "concrete": _Material((166, 162, 154), 20, "stone", 8.0, 12),
    "paint": _Material((226, 226, 220), 6, "stone", 8.0, 5),
    "yellow": _Material((216, 172, 64), 10, "stone", 8.0, 6),
    "denim": _Material((70, 88, 128), 20, "cloth", 11.0, 14),
    "red": _Material((168, 48, 46), 18, "cloth", 9.0, 14),
    "white": _Material((224, 220, 212), 12, "cloth", 7.0, 12),
    "fur": _Material((96, 76, 58), 34, "fur", 21.0, 20),
    "black": _Material((36, 34, 36), 10, "fur", 8.0, 10),
    "metal": _Material((148, 152, 158), 34, "wood", 5.0, 30),
}
_FAR = ("sky", "overcast", "wall", "shade", "blur", "water")
_GROUND = ("grass", "soil", "sand", "rock", "asphalt", "water", "snow", "wood")
_THINGS = (
    "foliage",
    "rock",
    "brick",
    "wood",
    "skin",
    "white",
    "denim",
    "red",
    "fur",
    "black",
    "metal",
    "yellow",
    "wall",
)
_SMALL = ("foliage", "foliage", "rock", "soil", "white", "red", "yellow", "wood")


def ycc(rgb: Sequence[float]) -> tuple[float, float, float]:
    """JPEG's (BT.601, full range) Y, Cb, Cr of a color."""
    r, g, b = rgb
    y = 0.299 * r + 0.587 * g + 0.114 * b
    return y, 128 + 0.564 * (b - y), 128 + 0.713 * (r - y)


def material(name: str, rng: np.random.Generator, *, depth: float = 0.0) -> Region:
    """A region of the named material with random variations of brightness and color."""
    m = _MATERIALS[name]
    y, cb, cr = ycc(m.rgb)
    bright, warm, tint, rough = rng.standard_normal(4)
    y = float(np.clip(y + m.jitter * bright, 16, 242))
    cb, cr = 128 + 0.85 * (cb - 128) + 3.5 * warm, 128 + 0.85 * (cr - 128) - 2.5 * warm + 2.0 * tint
    return Region(
        y=y,
        cb=cb,
        cr=cr,
        kind=m.kind,
        gain=m.gain * float(np.exp(0.3 * rough)) * (0.35 + 0.65 * y / 128),
        shade=m.shade,
        depth=depth,
    )


class Canvas:
    """A label map being painted, back to front."""

    def __init__(self, width: int, height: int, background: Region) -> None:
        self.labels = Image.new("L", (width, height))
        self.draw = ImageDraw.Draw(self.labels)
        self.regions = [background]

    @property
    def width(self) -> int:
        return self.labels.width

    @property
    def height(self) -> int:
        return self.labels.height

    @property
    def unit(self) -> int:
        """The shorter side, the unit of object sizes."""
        return min(self.labels.size)

    def add(self, region: Region) -> int:
        """Adds a region and returns its number in the label map."""
        if len(self.regions) > MAX_REGIONS:
            raise ValueError(
                f"painting a scene: more than {MAX_REGIONS + 1} regions; let small things share one"
            )
        self.regions.append(region)
        return len(self.regions) - 1

    def polygon(self, points: NDArray[np.floating], label: int) -> None:
        """Fills the outline (n, 2)."""
        self.draw.polygon(whole_pixels(points), fill=label)


def whole_pixels(points: NDArray[np.floating]) -> list[tuple[int, int]]:
    """Rounds points, because Pillow truncates them, which would shift shapes by half a pixel."""
    return [(int(x), int(y)) for x, y in np.rint(points).tolist()]


def blob(
    rng: np.random.Generator,
    *,
    center: tuple[float, float],
    radius: float,
    wobble: float = 0.22,
    n: int = 48,
) -> NDArray[np.float64]:
    """A closed smooth outline (n, 2); `wobble` 0 gives an ellipse."""
    t = np.linspace(0, 2 * np.pi, n, endpoint=False)
    r = np.ones(n)
    for k, phase, size in zip(
        (2, 3, 5), rng.uniform(0, 2 * np.pi, 3), rng.normal(0, 1, 3), strict=True
    ):
        r += wobble * size / k * np.cos(k * t + phase)
    flat, turn = rng.uniform(0.45, 1.0), rng.uniform(0, np.pi)
    x, y = radius * r * np.cos(t), radius * flat * r * np.sin(t)
    c, s = np.cos(turn), np.sin(turn)
    return np.stack([center[0] + c * x - s * y, center[1] + s * x + c * y], axis=1)


def box(
    rng: np.random.Generator, *, center: tuple[float, float], radius: float
) -> NDArray[np.float64]:
    """A four-sided outline (4, 2), typical of man-made objects."""
    t = (
        np.array([0.25, 0.75, 1.25, 1.75]) * np.pi
        + rng.normal(0, 0.12, 4)
        + rng.choice([0.0, rng.uniform(0, np.pi)])
    )
    flat = rng.uniform(0.35, 1.0)
    return np.stack([center[0] + radius * np.cos(t), center[1] + radius * flat * np.sin(t)], axis=1)


def scatter(canvas: Canvas, rng: np.random.Generator, *, region: Region, n: int) -> None:
    """Draws n small ellipses of one material around a random point: leaves, stones, crowds."""
    shades = [
        canvas.add(replace(region, y=float(np.clip(region.y + d, 8, 248))))
        for d in rng.normal(0, 18, 6)
    ]
    u = canvas.unit
    cx, cy = rng.uniform(0, canvas.width), rng.uniform(0.55, 1.0) * canvas.height
    x = rng.normal(cx, 0.20 * u, n)
    y = rng.normal(cy, 0.07 * u, n)
    r = np.maximum(u * 0.008 * (1 + rng.pareto(2.5, n).clip(0, 4)), 1.2)
    flat = rng.uniform(0.3, 1.0, n)
    pick = rng.integers(0, len(shades), n)
    for i in range(n):
        ends = (x[i] - r[i], y[i] - r[i] * flat[i], x[i] + r[i], y[i] + r[i] * flat[i])
        canvas.draw.ellipse(ends, fill=shades[pick[i]])


def ridge(
    canvas: Canvas, rng: np.random.Generator, *, level: float, rough: float, region: Region
) -> None:
    """Fills everything below an uneven line at `level` (0 top, 1 bottom): hills, table, ground."""
    n = 33
    walk = np.cumsum(rng.normal(0, 1, n))
    walk -= np.linspace(walk[0], walk[-1], n)
    x = np.linspace(-2, canvas.width + 2, n)
    y = canvas.height * level + rough * canvas.unit * walk / 4
    corners = [[canvas.width + 2, canvas.height + 2], [-2, canvas.height + 2]]
    canvas.polygon(np.concatenate([np.stack([x, y], axis=1), corners]), canvas.add(region))


def things(canvas: Canvas, rng: np.random.Generator, *, n: int, largest: float = 0.5) -> None:
    """Draws n overlapping objects, largest first, some with parts of another material."""
    sizes = np.sort(rng.uniform(0.12, largest, n))[::-1]
    for i, size in enumerate(sizes):
        depth = 0.25 + 0.75 * (i + 1) / n
        center = (rng.uniform(0, canvas.width), canvas.height * rng.uniform(0.25, 1.0))
        outline = blob if rng.random() < 0.6 else box
        radius = float(size) * canvas.unit
        main = canvas.add(material(str(rng.choice(_THINGS)), rng, depth=depth))
        canvas.polygon(outline(rng, center=center, radius=radius), main)
        for _ in range(int(rng.integers(0, 4))):
            part = canvas.add(material(str(rng.choice(_THINGS)), rng, depth=depth))
            at = (center[0] + rng.normal(0, 0.3) * radius, center[1] + rng.normal(0, 0.3) * radius)
            canvas.polygon(outline(rng, center=at, radius=radius * rng.uniform(0.1, 0.35)), part)


def random_scene(rng: np.random.Generator, width: int, height: int) -> Canvas:
    """An outdoor or indoor scene: background, ground, objects and small details."""
    canvas = Canvas(width, height, material(str(rng.choice(_FAR)), rng))
    outdoors = rng.random() < 0.65
    if outdoors:
        level = rng.uniform(0.2, 0.6)
        for step in range(int(rng.integers(0, 3))):
            hill = material(str(rng.choice(("foliage", "rock", "blur", "grass"))), rng, depth=0.02)
            ridge(canvas, rng, level=level - 0.12 + 0.08 * step, rough=0.12, region=hill)
        ridge(
            canvas,
            rng,
            level=level + 0.08,
            rough=0.02,
            region=material(str(rng.choice(_GROUND)), rng, depth=0.05),
        )
    else:
        floor = material(str(rng.choice(_GROUND)), rng, depth=0.1)
        ridge(canvas, rng, level=rng.uniform(0.55, 1.0), rough=0.0, region=floor)
    things(canvas, rng, n=int(rng.integers(2, 8)), largest=0.5 if outdoors else 0.7)
    for _ in range(int(rng.integers(0, 4))):
        small = material(str(rng.choice(_SMALL)), rng, depth=0.6)
        scatter(canvas, rng, region=small, n=int(rng.integers(40, 240)))
    return canvas
