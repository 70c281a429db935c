"""Decodes one image with Pillow or OpenCV, for loaders that leave decoding to the user."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.peers.job import Work, module
from fastload._tools.bench.load import random_crop


def by_pillow(
    source: bytes | Path | Image.Image, work: Work
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns (H, W, C) uint8."""
    image = (
        source
        if isinstance(source, Image.Image)
        else Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
    )
    converted = image.convert("L" if work.gray else "RGB")
    box = random_crop(converted.width, converted.height) if work.crop else None
    height, width = work.size
    if box is not None or converted.size != (width, height):
        converted = converted.resize((width, height), Image.Resampling.BILINEAR, box=box)
    pixels = np.array(converted)
    return pixels[:, :, None] if work.gray else pixels


def by_opencv(source: bytes | memoryview | Path, work: Work) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns (H, W, C) uint8, RGB. EXIF orientation is ignored, as in most repositories."""
    cv2 = module("cv2")
    data = source.read_bytes() if isinstance(source, Path) else source
    flags = (
        cv2.IMREAD_GRAYSCALE
        if work.gray
        else cv2.IMREAD_COLOR_RGB
        if hasattr(cv2, "IMREAD_COLOR_RGB")
        else cv2.IMREAD_COLOR
    )
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    if not work.gray and not hasattr(cv2, "IMREAD_COLOR_RGB"):
        pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    height, width = work.size
    if work.crop:
        left, top, right, bottom = random_crop(pixels.shape[1], pixels.shape[0])
        pixels = pixels[top:bottom, left:right]
    if pixels.shape[:2] != (height, width):
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)
    found: np.ndarray[Any, np.dtype[np.uint8]] = pixels[:, :, None] if work.gray else pixels
    return found


def stacked(images: list[np.ndarray[Any, np.dtype[np.uint8]]]) -> Any:
    """A sample as a tensor: one image, or its cameras stacked."""
    import torch

    return torch.from_numpy(images[0] if len(images) == 1 else np.stack(images))
