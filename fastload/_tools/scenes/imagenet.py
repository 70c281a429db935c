"""ImageNet-like class folders: train/<class>/*.jpg, val/<class>/*.jpg, of mixed sizes and JPEG kinds.

A file's name tells its kind: 000012_420.jpg (or 422, 444, gray); a `p` behind it means progressive, `_o6` means EXIF
orientation 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fastload._tools.scenes import generate as run
from fastload._tools.scenes.photo import QUALITY, render
from fastload._tools.scenes.scene import random_scene
from fastload._tools.scenes.subject import class_names, paint_subject

# In 300 photographs of ImageNet: 500x375 65 times, 500x333 30, 333x500 19, 375x500 18, 640x480 6, then a tail that a
# few more sizes stand for. Odd ones on purpose: 333 and 375 are no multiples of an MCU.
_SIZES = (
    (500, 375),
    (375, 500),
    (500, 333),
    (333, 500),
    (500, 400),
    (500, 500),
    (400, 300),
    (640, 480),
    (800, 600),
)
_SIZE_SHARE = (0.40, 0.12, 0.18, 0.12, 0.04, 0.04, 0.03, 0.04, 0.03)
_SUBSAMPLING = {"444": 0, "422": 1, "420": 2}
# What must be done to an upright image so that showing it by EXIF orientation o gives it back.
_UNDO = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
_ORIENTATION_TAG = 0x0112


@dataclass(frozen=True, slots=True)
class Shares:
    """How many of the images (0 to 1) are of a kind; the rest is 4:2:0, baseline, upright."""

    yuv444: float = 0.25
    yuv422: float = 0.08
    gray: float = 0.05
    progressive: float = 0.03
    oriented: float = 0.04


@dataclass(frozen=True, slots=True)
class _Task:
    folder: Path
    classes: tuple[str, ...]
    stream: int
    seed: int
    index: int
    shares: Shares


def _kind(u: float, shares: Shares) -> str:
    for name, share in (("444", shares.yuv444), ("422", shares.yuv422), ("gray", shares.gray)):
        if u < share:
            return name
        u -= share
    return "420"


def _one(task: _Task) -> None:
    rng = np.random.default_rng([task.seed, task.stream, task.index])
    label = task.index % len(task.classes)
    width, height = _SIZES[int(rng.choice(len(_SIZES), p=_SIZE_SHARE))]
    u_kind, u_progressive, u_oriented = rng.random(3)
    kind = _kind(float(u_kind), task.shares)
    progressive = bool(u_progressive < task.shares.progressive)
    turned = int(
        rng.integers(2, 9)
    )  # drawn always: the shares change how a file is written, not its picture
    orientation = turned if u_oriented < task.shares.oriented else 1
    canvas = random_scene(rng, width, height)
    paint_subject(canvas, rng, label=label)
    image = render(canvas, rng)
    if kind == "gray":
        image = image.convert("L")
    if orientation != 1:
        image = image.transpose(_UNDO[orientation])
    name = f"{task.index:06d}_{kind}{'p' * progressive}{f'_o{orientation}' if orientation != 1 else ''}.jpg"
    exif = Image.Exif()
    exif[_ORIENTATION_TAG] = orientation
    image.save(
        task.folder / task.classes[label] / name,
        quality=QUALITY,
        subsampling=_SUBSAMPLING.get(kind, 0),
        progressive=progressive,
        exif=exif.tobytes() if orientation != 1 else b"",
    )


def make(
    dest: Path,
    *,
    n: int,
    seed: int = 0,
    jobs: int = 1,
    n_classes: int = 10,
    shares: Shares | None = None,
    on_progress: run.OnProgress = run.ignore_progress,
) -> run.Made:
    """n images to train on and n // 5 (at least one) to validate with; image i is of class i % n_classes."""
    classes = tuple(class_names(n_classes))
    run.start(dest, n=n, seed=seed, jobs=jobs)
    tasks = []
    for split, count in (("train", n), ("val", max(1, n // 5))):
        for name in classes:
            (dest / split / name).mkdir(parents=True)
        stream = run.STREAMS[f"imagenet/{split}"]
        tasks += [
            _Task(dest / split, classes, stream, seed, i, shares or Shares()) for i in range(count)
        ]
    run.run(_one, tasks, jobs=jobs, on_progress=on_progress)
    return run.finish("imagenet", dest, n_samples=len(tasks))
