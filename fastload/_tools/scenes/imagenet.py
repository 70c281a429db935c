"""ImageNet-like class folders, train/<class>/*.jpg and val/<class>/*.jpg, with mixed JPEG kinds.

The file name contains the kind: 000012_420.jpg (or 422, 444, gray). A following `p` means
progressive, and `_o6` means EXIF orientation 6.
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

# 300 photographs of ImageNet: 65 of 500x375, 30 of 500x333, 19 of 333x500, 18 of 375x500, 6 of
# 640x480, and a tail, which a few more sizes represent. 333 and 375 are not multiples of an MCU.
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
    """The share (0 to 1) of each kind of image. The others are 4:2:0, baseline and upright."""

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
    # Drawn for every image, so that the shares change the file but not the content of the image.
    rotated = int(rng.integers(2, 9))
    orientation = rotated if u_oriented < task.shares.oriented else 1
    canvas = random_scene(rng, width, height)
    paint_subject(canvas, rng, label=label)
    image = render(canvas, rng)
    if kind == "gray":
        image = image.convert("L")
    if orientation != 1:
        image = image.transpose(_UNDO[orientation])
    suffix = "p" * progressive + (f"_o{orientation}" if orientation != 1 else "")
    name = f"{task.index:06d}_{kind}{suffix}.jpg"
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
    """Writes n training and n // 5 (at least one) validation images of class i % n_classes."""
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
