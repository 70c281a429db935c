"""CAPTCHA-like images, 320x160 RGB: images/*.jpg and labels.csv with two keypoints each.

labels.csv has the columns path,x1,y1,x2,y2,label. (x, y) are the column and row of the center of an
icon; (0, 0) is the first pixel. The first keypoint is a magenta icon and the second a cyan one,
both of the shape subject.SHAPES[label]. Gray icons are decoys.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastload._tools.scenes import generate as run
from fastload._tools.scenes.photo import QUALITY, render
from fastload._tools.scenes.scene import Canvas, Region, random_scene, ycc
from fastload._tools.scenes.subject import SHAPES, shape_mask

WIDTH, HEIGHT = 320, 160
RADIUS = 11.0
# No material of a scene has these colors, so an icon cannot be confused with the background.
COLORS = ((228, 20, 196), (16, 214, 222))
_DECOY = (120, 120, 124)


@dataclass(frozen=True, slots=True)
class _Task:
    folder: Path
    seed: int
    index: int


def _icon(
    canvas: Canvas,
    rng: np.random.Generator,
    *,
    shape: str,
    at: tuple[float, float],
    rgb: tuple[int, int, int],
) -> None:
    y, cb, cr = ycc(rgb)
    label = canvas.add(Region(y=y, cb=cb, cr=cr, kind="stone", gain=3.0, shade=3.0, depth=1.0))
    mask = shape_mask(
        canvas.labels.size, shape, center=at, radius=RADIUS, turn=float(rng.uniform(-0.3, 0.3))
    )
    canvas.labels.paste(label, mask=mask)


def _positions(rng: np.random.Generator) -> list[tuple[float, float]]:
    """Returns a position in each half, in random order, fully inside the image."""
    margin = RADIUS + 5
    xs = [
        float(rng.uniform(margin, WIDTH / 2 - margin)),
        float(rng.uniform(WIDTH / 2 + margin, WIDTH - margin)),
    ]
    ys = rng.uniform(margin, HEIGHT - margin, 2).tolist()
    positions = [(round(x, 2), round(y, 2)) for x, y in zip(xs, ys, strict=True)]
    return positions if rng.random() < 0.5 else positions[::-1]


def _one(task: _Task) -> tuple[str | float | int, ...]:
    rng = np.random.default_rng([task.seed, run.STREAMS["captcha"], task.index])
    canvas = random_scene(rng, WIDTH, HEIGHT)
    for _ in range(int(rng.integers(1, 5))):
        at = (float(rng.uniform(0, WIDTH)), float(rng.uniform(0, HEIGHT)))
        _icon(canvas, rng, shape=str(rng.choice(SHAPES)), at=at, rgb=_DECOY)
    label = int(rng.integers(len(SHAPES)))
    positions = _positions(rng)
    for at, rgb in zip(positions, COLORS, strict=True):
        _icon(canvas, rng, shape=SHAPES[label], at=at, rgb=rgb)
    name = f"{task.index:06d}.jpg"
    render(canvas, rng).save(task.folder / name, quality=QUALITY)
    return f"images/{name}", *positions[0], *positions[1], label


def make(
    dest: Path,
    *,
    n: int,
    seed: int = 0,
    jobs: int = 1,
    on_progress: run.OnProgress = run.ignore_progress,
) -> run.Made:
    """Writes n images, then labels.csv."""
    run.start(dest, n=n, seed=seed, jobs=jobs)
    (dest / "images").mkdir()
    rows = run.run(
        _one,
        [_Task(dest / "images", seed, i) for i in range(n)],
        jobs=jobs,
        on_progress=on_progress,
    )
    with (dest / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("path", "x1", "y1", "x2", "y2", "label"))
        writer.writerows(rows)
    return run.finish("captcha", dest, n_samples=n)
