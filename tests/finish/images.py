"""Images for the tests of pixel operations."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

N, HEIGHT, WIDTH = 6, 21, 34


def batch(n: int = N, channels: int = 3, seed: int = 0) -> torch.Tensor:
    """Returns smooth images with dark, bright and gray areas, so that some pixels are clipped."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (n, 4, 5, channels), dtype=np.uint8)
    images = np.stack(
        [
            np.asarray(Image.fromarray(each.squeeze()).resize((WIDTH, HEIGHT))).reshape(
                HEIGHT, WIDTH, channels
            )
            for each in small
        ]
    )
    images[:, :4, :6] = 0
    images[:, -4:, :6] = 255
    images[:, :4, -6:] = 77
    return torch.from_numpy(images.copy())
