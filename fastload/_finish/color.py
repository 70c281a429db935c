"""Kernels of the color operations.

Values are not rounded between operations. Values outside 0..white (255 or 65535) are clipped, as in
torchvision for floating-point images. Saturation, hue and grayscale do not change images with one
channel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fastload._finish.kernels import kernel
from fastload._plan.transform import PixelOp

RED, GREEN, BLUE = 0.2989, 0.587, 0.114  # torchvision's weights: ITU-R 601 to four digits


@kernel("brightness")
def adjust_brightness(op: PixelOp, x: Tensor, factor: Tensor) -> Tensor:
    """Factor 0 is black."""
    return x.mul_(_column(factor)).clamp_(0, op.white)


@kernel("contrast")
def adjust_contrast(op: PixelOp, x: Tensor, factor: Tensor) -> Tensor:
    """Factor 0 is uniform gray."""
    return _away_from(_luma(x).mean(dim=(1, 2, 3), keepdim=True), x, factor, op.white)


@kernel("saturation")
def adjust_saturation(op: PixelOp, x: Tensor, factor: Tensor) -> Tensor:
    """Factor 0 is grayscale."""
    return x if x.shape[1] == 1 else _away_from(_luma(x), x, factor, op.white)


@kernel("grayscale")
def to_grayscale(_: PixelOp, x: Tensor, on: Tensor) -> Tensor:
    """Writes the luma to all channels of the images whose ``on`` is 1."""
    return x if x.shape[1] == 1 else torch.where(_column(on) > 0, _luma(x), x)


@kernel("hue")
def adjust_hue(_: PixelOp, x: Tensor, share: Tensor) -> Tensor:
    """Rotates the hue by ``share`` of the color circle."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.unbind(1)
    high = x.amax(1)
    chroma = high - x.amin(1)
    safe = torch.where(chroma == 0, 1.0, chroma)
    # The hue in sixths of the circle, then HSV to RGB in closed form with unchanged value and
    # chroma.
    sixths = torch.where(
        high == red,
        (green - blue) / safe,
        torch.where(high == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixths = sixths.add_(6 * share.view(-1, 1, 1))
    result = torch.empty_like(x)
    for channel, start in enumerate((5, 3, 1)):
        k = torch.remainder(sixths + start, 6)
        torch.sub(high, chroma * torch.minimum(k, 4 - k).clamp_(0, 1), out=result[:, channel])
    return result


@kernel("blur")
def blur(op: PixelOp, x: Tensor, sigma: Tensor) -> Tensor:
    """Two one-dimensional convolutions with reflected edges; ``sigma`` must be above 0."""
    n, channels, height, width = x.shape
    reach = op.kernel // 2
    distance = torch.arange(-reach, reach + 1, dtype=torch.float32, device=x.device)
    weights = torch.exp(-0.5 * (distance / sigma.view(-1, 1)).square())
    weights = (weights / weights.sum(1, keepdim=True)).repeat_interleave(channels, 0)
    planes = F.pad(x.reshape(1, n * channels, height, width), [reach] * 4, mode="reflect")
    planes = F.conv2d(planes, weights.view(-1, 1, 1, op.kernel), groups=n * channels)
    planes = F.conv2d(planes, weights.view(-1, 1, op.kernel, 1), groups=n * channels)
    return planes.view(x.shape)


@kernel("erase")
def erase(op: PixelOp, x: Tensor, box: Tensor) -> Tensor:
    """Fills the box x0, y0, x1, y1 of each image with the value."""
    value = torch.tensor(op.channel_values, dtype=x.dtype, device=x.device).view(1, -1, 1, 1)
    x0, y0, x1, y1 = (column.view(-1, 1, 1, 1) for column in box.unbind(1))
    down = torch.arange(x.shape[2], device=x.device).view(1, 1, -1, 1)
    across = torch.arange(x.shape[3], device=x.device).view(1, 1, 1, -1)
    inside = (down >= y0) & (down < y1) & (across >= x0) & (across < x1)
    return torch.where(inside, value, x)


def _luma(x: Tensor) -> Tensor:
    """Returns a new tensor (n, 1, height, width)."""
    if x.shape[1] == 1:
        return x.clone()
    return x[:, 0:1].mul(RED).add_(x[:, 1:2], alpha=GREEN).add_(x[:, 2:3], alpha=BLUE)


def _away_from(middle: Tensor, x: Tensor, factor: Tensor, white: float) -> Tensor:
    factor = _column(factor)
    return x.mul_(factor).add_(middle.mul_(1 - factor)).clamp_(0, white)


def _column(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)
