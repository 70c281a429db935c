"""Small gray images in class folders: train/<class>/*.jpg and val/<class>/*.jpg, 128x128."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastload._tools.scenes import generate as run
from fastload._tools.scenes.photo import QUALITY, draw_bpp, render
from fastload._tools.scenes.scene import random_scene
from fastload._tools.scenes.subject import class_names, paint_subject

SIDE = 128
# Real photographs converted to gray and 128x128 have a median of 2.8 bits per pixel (p25 2.3, p75
# 3.4; n = 300, the corpus of photo.py). Shrinking increases the detail; dropping the colors saves
# about 0.3.
_SHRINK, _COLOR_BITS = 1.1, 0.45


@dataclass(frozen=True, slots=True)
class _Task:
    folder: Path
    classes: tuple[str, ...]
    stream: int
    seed: int
    index: int


def _one(task: _Task) -> None:
    rng = np.random.default_rng([task.seed, task.stream, task.index])
    label = task.index % len(task.classes)
    canvas = random_scene(rng, SIDE, SIDE)
    paint_subject(canvas, rng, label=label)
    image = render(canvas, rng, bpp=_SHRINK * draw_bpp(rng) + _COLOR_BITS).convert("L")
    image.save(task.folder / task.classes[label] / f"{task.index:06d}.jpg", quality=QUALITY)


def make(
    dest: Path,
    *,
    n: int,
    seed: int = 0,
    jobs: int = 1,
    n_classes: int = 10,
    on_progress: run.OnProgress = run.ignore_progress,
) -> run.Made:
    """Writes n training and max(1, n // 5) validation images of classes i % n_classes."""
    classes = tuple(class_names(n_classes))
    run.start(dest, n=n, seed=seed, jobs=jobs)
    tasks = []
    for split, count in (("train", n), ("val", max(1, n // 5))):
        for name in classes:
            (dest / split / name).mkdir(parents=True)
        tasks += [
            _Task(dest / split, classes, run.STREAMS[f"gray/{split}"], seed, i)
            for i in range(count)
        ]
    run.run(_one, tasks, jobs=jobs, on_progress=on_progress)
    return run.finish("gray", dest, n_samples=len(tasks))
