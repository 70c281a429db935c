"""The loader people have today: a torch DataLoader over image files, decoded by Pillow in worker processes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

Box = tuple[int, int, int, int]


class FolderImages(torch.utils.data.Dataset[torch.Tensor]):
    """Random resized crop, flip, normalise: the steps of torchvision's reference training, on the image file itself."""

    def __init__(self, paths: Sequence[Path], size: tuple[int, int], *, crop: bool = True) -> None:
        self.paths, self.size, self.crop = [str(path) for path in paths], size, crop

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        height, width = self.size
        with Image.open(self.paths[index]) as image:
            picture = image.convert("RGB")
            box = random_crop(picture.width, picture.height) if self.crop else None
            small = picture.resize((width, height), Image.Resampling.BILINEAR, box=box)
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)
        if self.crop and random.random() < 0.5:
            pixels = pixels.flip(2)
        return pixels.float().div_(255).sub_(0.45).div_(0.225)


def random_crop(width: int, height: int, *, scale: tuple[float, float] = (0.08, 1.0)) -> Box:
    """torchvision's RandomResizedCrop: left, top, right, bottom."""
    for _ in range(10):
        area = width * height * random.uniform(*scale)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = random.randint(0, width - w), random.randint(0, height - h)
            return x, y, x + w, y + h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, (width + side) // 2, (height + side) // 2
