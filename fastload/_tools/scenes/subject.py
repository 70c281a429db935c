"""Draws the subject of a class into a scene. Its color, outline and stripes can be learned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw

from fastload._tools.scenes.scene import Canvas, Region, whole_pixels, ycc

SHAPES = ("disc", "triangle", "square", "star", "ring", "spark")
_COLORS = {
    "red": (196, 44, 40),
    "green": (60, 150, 60),
    "blue": (44, 84, 190),
    "yellow": (222, 186, 40),
    "violet": (150, 60, 170),
}
# 6 and 5 have no common divisor, so (k % 6, k % 5) reaches every pair once.
MAX_CLASSES = len(SHAPES) * len(_COLORS)


def class_names(n: int) -> list[str]:
    """Names of the first n classes, sorted in the order of their labels."""
    if not 2 <= n <= MAX_CLASSES:
        raise ValueError(f"n={n}: expected 2 to {MAX_CLASSES} classes")
    colors = tuple(_COLORS)
    return [f"c{k:02d}_{colors[k % len(colors)]}_{SHAPES[k % len(SHAPES)]}" for k in range(n)]


def outline(
    shape: str, *, center: tuple[float, float], radius: float, turn: float = 0.0
) -> NDArray[np.float64]:
    """Corners (n, 2) of a shape with this center of mass; discs and rings have 64 corners."""
    n, inner = {
        "disc": (64, 1.0),
        "ring": (64, 1.0),
        "triangle": (3, 1.0),
        "square": (4, 1.0),
        "star": (10, 0.45),
        "spark": (8, 0.4),
    }[shape]
    t = np.arange(n) * 2 * np.pi / n + turn - np.pi / 2
    r = np.where(np.arange(n) % 2 == 1, inner, 1.0) * radius
    return np.stack([center[0] + r * np.cos(t), center[1] + r * np.sin(t)], axis=1)


def shape_mask(
    size: tuple[int, int],
    shape: str,
    *,
    center: tuple[float, float],
    radius: float,
    turn: float = 0.0,
) -> Image.Image:
    """A mask that is 255 inside the shape."""
    mask = Image.new("L", size)
    draw = ImageDraw.Draw(mask)
    draw.polygon(whole_pixels(outline(shape, center=center, radius=radius, turn=turn)), fill=255)
    if shape == "ring":
        draw.polygon(whole_pixels(outline("disc", center=center, radius=radius * 0.55)), fill=0)
    return mask


def _stripes(size: tuple[int, int], *, angle: float, period: float) -> Image.Image:
    y, x = np.ogrid[0 : size[1], 0 : size[0]]
    wave = (np.cos(angle) * x + np.sin(angle) * y) / period % 1.0 < 0.4
    return Image.fromarray(wave.astype(np.uint8) * np.uint8(255))


def paint_subject(canvas: Canvas, rng: np.random.Generator, *, label: int) -> None:
    """Paints the subject of class `label`, which decides outline, color and stripe direction."""
    shape = SHAPES[label % len(SHAPES)]
    y, cb, cr = ycc(list(_COLORS.values())[label % len(_COLORS)])
    region = Region(
        y=y + float(rng.normal(0, 8)), cb=cb, cr=cr, kind="cloth", gain=7.0, shade=12.0, depth=1.0
    )
    u = canvas.unit
    center = (
        canvas.width / 2 + float(rng.normal(0, 0.08)) * u,
        canvas.height / 2 + float(rng.normal(0, 0.06)) * u,
    )
    radius = float(rng.uniform(0.27, 0.42)) * u
    mask = shape_mask(
        canvas.labels.size, shape, center=center, radius=radius, turn=float(rng.normal(0, 0.12))
    )
    canvas.labels.paste(canvas.add(region), mask=mask)
    angle = np.pi * (label % len(_COLORS)) / len(_COLORS) + float(rng.normal(0, 0.06))
    stripes = _stripes(canvas.labels.size, angle=angle, period=0.09 * u)
    light = canvas.add(replace(region, y=min(y + 70, 240.0), cb=(cb + 128) / 2, cr=(cr + 128) / 2))
    canvas.labels.paste(light, mask=ImageChops.multiply(mask, stripes))
