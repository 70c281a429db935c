"""Exports the images of a packed dataset as files, and loads image files with Pillow."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fastload._store.dataset import Dataset
from fastload._store.pixels import decode_image
from fastload._store.record import DATA, JPEG, PNG
from fastload.errors import ConfigError

SUFFIXES = (".jpg", ".jpeg", ".png", ".JPEG", ".JPG", ".PNG", ".webp", ".bmp")
Box = tuple[int, int, int, int]


def image_field(dataset: Dataset, name: str | None) -> str:
    """Returns ``name`` or the first image field; raises ConfigError if there is no such field."""
    images = [field.name for field in dataset.fields if field.kind.is_image]
    if not images or (name is not None and name not in images):
        raise ConfigError(
            f"image field {name or ''!r:.40} does not exist in {dataset.path}: "
            f"its image fields are {', '.join(images) or '(none)'}"
        )
    return name or images[0]


def export_images(
    dataset: Dataset, folder: Path, *, field: str | None = None, limit: int | None = None
) -> int:
    """Writes the images of up to ``limit`` samples as files and returns the number of files.

    A stored JPEG or PNG is written unmodified. Raw pixels are written as PNG.
    """
    names = [each.name for each in dataset.fields]
    field_number = names.index(image_field(dataset, field))
    n_samples = min(limit or len(dataset), len(dataset))
    n_files = 0
    for sample_id in (np.arange(n_samples) * len(dataset) // n_samples).tolist():
        for part in dataset.record(sample_id).parts:
            if part.field != field_number or part.role != DATA:
                continue
            stem = folder / f"{sample_id:08}-{part.item}"
            if part.codec in (JPEG, PNG):
                stem.with_suffix(".jpg" if part.codec == JPEG else ".png").write_bytes(part.data)
            else:
                Image.fromarray(decode_image(part).squeeze()).save(stem.with_suffix(".png"))
            n_files += 1
    return n_files


def image_files(folder: Path) -> list[Path]:
    """All image files below a folder, sorted; raises ConfigError if there are none."""
    found = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    if not found:
        raise ConfigError(f"{folder} contains no image files ({', '.join(SUFFIXES[:4])} ...)")
    return found


class FolderImages(torch.utils.data.Dataset[torch.Tensor]):
    """Image files decoded by Pillow, augmented like torchvision's reference training.

    With ``crop``: random resized crop and horizontal flip. Without: resized only. Both normalize.
    """

    def __init__(self, paths: Sequence[Path], size: tuple[int, int], *, crop: bool = True) -> None:
        self.paths = [str(path) for path in paths]
        self.size = size
        self.crop = crop

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        height, width = self.size
        with Image.open(self.paths[index]) as file:
            image = file.convert("RGB")
            box = random_crop(image.width, image.height) if self.crop else None
            small = image.resize((width, height), Image.Resampling.BILINEAR, box=box)
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)
        if self.crop and random.random() < 0.5:
            pixels = pixels.flip(2)
        return pixels.float().div_(255).sub_(0.45).div_(0.225)


def random_crop(width: int, height: int, *, scale: tuple[float, float] = (0.08, 1.0)) -> Box:
    """Draws a box (left, top, right, bottom) like torchvision's RandomResizedCrop."""
    for _ in range(10):
        area = width * height * random.uniform(*scale)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w = round(math.sqrt(area * ratio))
        h = round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x = random.randint(0, width - w)
            y = random.randint(0, height - h)
            return x, y, x + w, y + h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, (width + side) // 2, (height + side) // 2
