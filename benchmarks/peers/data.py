"""The image files that all loaders read: photographs of the corpus and generated streets."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from PIL import Image

from benchmarks.machine import photo_paths
from benchmarks.peers.job import WORKS
from fastload._common.cpus import available_cpus
from fastload._tools.scenes import imagenet
from tools.makedata import gray, nuscenes, openlane

DONE = "done"
# Images per dataset. Copies under different names fill it up, so that small caches do not help.
COUNTS = {"photos": 400, "gray": 2000, "large": 32, "cameras": 12}
QUICK = {"photos": 16, "gray": 32, "large": 2, "cameras": 1}


def prepare(folder: Path, works: list[str], *, quick: bool = False) -> None:
    """Creates missing datasets; a folder with the file ``done`` is complete."""
    for kind in dict.fromkeys(WORKS[work].data for work in works):
        target = folder / kind
        if (target / DONE).exists():
            continue
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        count = (QUICK if quick else COUNTS)[kind]
        with tempfile.TemporaryDirectory() as name:
            _copy(
                _images(kind, count, Path(name)),
                target,
                count,
                cameras=6 if kind == "cameras" else 1,
            )
        (target / DONE).touch()


def _images(kind: str, count: int, scratch: Path) -> list[Path]:
    jobs = available_cpus()
    if kind == "photos":
        return _photos(scratch, count)
    if kind == "gray":
        return _gray(scratch, count)
    if kind == "large":
        openlane.make(scratch / "made", n=min(count, 12), jobs=jobs)
    else:
        nuscenes.make(scratch / "made", n=min(count, 4), jobs=jobs)
        return sorted(
            (scratch / "made").rglob("*.jpg"),
            key=lambda path: (path.name.rsplit("__", 1)[1][:13], path.parent.name),
        )
    return sorted((scratch / "made").rglob("*.jpg"))


def _photos(scratch: Path, count: int) -> list[Path]:
    """Color photographs of the corpus, or generated ones if there is no corpus."""
    try:
        paths = photo_paths()
    except SystemExit:
        imagenet.make(
            scratch / "made",
            n=min(count, 100),
            jobs=available_cpus(),
            shares=imagenet.Shares(gray=0, progressive=0, oriented=0),
        )
        return sorted((scratch / "made").rglob("*.jpg"))
    found = []
    for path in paths:
        with Image.open(path) as image:
            if image.mode == "RGB":
                found.append(path)
    return found


def _gray(scratch: Path, count: int) -> list[Path]:
    """Photographs in grayscale at 128x128, or generated ones if there is no corpus."""
    try:
        paths = photo_paths()
    except SystemExit:
        gray.make(scratch / "made", n=min(count, 200), jobs=available_cpus())
        return sorted((scratch / "made").rglob("*.jpg"))
    found = []
    for number, path in enumerate(paths[:count]):
        with Image.open(path) as image:
            small = image.convert("L").resize((128, 128), Image.Resampling.BILINEAR)
        target = scratch / f"{number:05}.jpg"
        small.save(target, quality=90)
        found.append(target)
    return found


def _copy(files: list[Path], target: Path, count: int, *, cameras: int) -> None:
    for number in range(count):
        for camera in range(cameras):
            shutil.copyfile(
                files[(number * cameras + camera) % len(files)],
                target / f"{number:06}-{camera}.jpg",
            )
