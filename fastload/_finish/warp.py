"""Canvases moved in torch, with numbers of its own for each sample: see fastload._plan.warps.

An affine step's numbers say where a pixel of the result comes from: the upper two rows of a matrix from result to canvas, in continuous
coordinates (a pixel's centre is at + 0.5).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fastload._common.native import core
from fastload._plan.base import Step, step_columns

AS_IT_IS = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def affine(x: Tensor, inverse: Tensor, fill: Tensor) -> Tensor:
    """(n, channels, height, width) levels, bilinear; ``fill``, (1 or channels,), where nothing comes from the canvas."""
    module, (_, channels, height, width) = core(), x.shape
    if module is None or x.device.type != "cpu":
        return _sampled(x, inverse, fill)
    out, levels = (
        torch.empty_like(x, memory_format=torch.contiguous_format),
        fill.expand(channels).contiguous(),
    )
    module.warp_affine(
        x.contiguous().numpy(),
        out.numpy(),
        inverse.contiguous().numpy(),
        levels.numpy(),
        channels=channels,
        height=height,
        width=width,
    )
    return out


def _sampled(x: Tensor, inverse: Tensor, fill: Tensor) -> Tensor:
    """What the native core's ``warp_affine`` does, on any device."""
    height, width = x.shape[2:]
    across, down = _origins(inverse, height, width)
    grid = torch.stack([across * (2 / width) - 1, down * (2 / height) - 1], dim=-1)
    fill = fill.view(1, -1, 1, 1)
    return F.grid_sample(x - fill, grid, align_corners=False).add_(
        fill
    )  # beyond the edge it takes zeros


def moved_masks(masks: Tensor, steps: Sequence[Step], parameters: Tensor, fill: Tensor) -> Tensor:
    """(n, height, width, bytes): each pixel picked, never mixed; ``fill``, (bytes,), where nothing comes from the canvas."""
    for step, columns in step_columns(steps):
        if step.kind == "upside_down":
            masks = torch.where(parameters[:, columns].view(-1, 1, 1, 1) > 0, masks.flip(1), masks)
        elif step.kind == "affine":
            masks = _picked(masks, parameters[:, columns], fill)
    return masks


def _picked(masks: Tensor, inverse: Tensor, fill: Tensor) -> Tensor:
    n, height, width, n_bytes = masks.shape
    across, down = (each.floor().long() for each in _origins(inverse, height, width))
    inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)
    places = (
        (down.clamp_(0, height - 1) * width + across.clamp_(0, width - 1))
        .view(n, -1, 1)
        .expand(-1, -1, n_bytes)
    )
    return torch.where(
        inside[..., None], masks.reshape(n, -1, n_bytes).gather(1, places).view(masks.shape), fill
    )


def _origins(inverse: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """(n, height, width) each: x and y on the canvas of every pixel's centre."""
    x = torch.arange(width, dtype=torch.float32, device=inverse.device).add_(0.5).view(1, 1, -1)
    y = torch.arange(height, dtype=torch.float32, device=inverse.device).add_(0.5).view(1, -1, 1)
    a, b, c, d, e, f = (column.view(-1, 1, 1) for column in inverse.unbind(1))
    return a * x + b * y + c, d * x + e * y + f
