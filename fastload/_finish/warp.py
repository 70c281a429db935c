"""Kernels of the operations that move pixels, for images and for masks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastload._common.native import core
from fastload._finish.kernels import MASK_KERNELS, kernel
from fastload._plan.transform import PixelOp


@kernel("vertical_flip")
def flip_vertically(_: PixelOp, x: Tensor, _params: Tensor) -> Tensor:
    return x.flip(2)  # run_op passes only samples that are flipped


@kernel("vertical_flip", MASK_KERNELS)
def flip_masks(_: PixelOp, masks: Tensor, on: Tensor, _fill: Tensor) -> Tensor:
    """Flips the masks whose ``on`` is 1."""
    return torch.where(on.view(-1, 1, 1, 1) > 0, masks.flip(1), masks)


@kernel("affine")
def warp_affine(op: PixelOp, x: Tensor, inverse: Tensor) -> Tensor:
    """Bilinear interpolation; the native core computes it on the CPU."""
    fill = torch.tensor(op.channel_values, dtype=x.dtype, device=x.device)
    module = core()
    if module is None or x.device.type != "cpu":
        return sample_affine(x, inverse, fill)
    _, channels, height, width = x.shape
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    module.warp_affine(
        x.contiguous().numpy(),
        out.numpy(),
        inverse.contiguous().numpy(),
        fill.expand(channels).contiguous().numpy(),
        channels=channels,
        height=height,
        width=width,
    )
    return out


def sample_affine(x: Tensor, inverse: Tensor, fill: Tensor) -> Tensor:
    """Does the same as ``warp_affine`` of the native core, on any device.

    ``fill`` has one value, or one per channel.
    """
    height, width = x.shape[2:]
    across, down = _origins(inverse, height, width)
    grid = torch.stack([across * (2 / width) - 1, down * (2 / height) - 1], dim=-1)
    fill = fill.view(1, -1, 1, 1)
    # grid_sample pads with zeros, so the fill value is subtracted first.
    return F.grid_sample(x - fill, grid, align_corners=False).add_(fill)


@kernel("affine", MASK_KERNELS)
def warp_masks_affine(_: PixelOp, masks: Tensor, inverse: Tensor, fill: Tensor) -> Tensor:
    """Selects the nearest pixel."""
    n, height, width, n_bytes = masks.shape
    across, down = (each.floor().long() for each in _origins(inverse, height, width))
    inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)
    index = down.clamp_(0, height - 1) * width + across.clamp_(0, width - 1)
    index = index.view(n, -1, 1).expand(-1, -1, n_bytes)
    picked = masks.reshape(n, -1, n_bytes).gather(1, index).view(masks.shape)
    return torch.where(inside[..., None], picked, fill)


def _origins(inverse: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Returns the source x and y of every pixel center, (n, height, width) each."""
    x = torch.arange(width, dtype=torch.float32, device=inverse.device).add_(0.5).view(1, 1, -1)
    y = torch.arange(height, dtype=torch.float32, device=inverse.device).add_(0.5).view(1, -1, 1)
    a, b, c, d, e, f = (column.view(-1, 1, 1) for column in inverse.unbind(1))
    return a * x + b * y + c, d * x + e * y + f
