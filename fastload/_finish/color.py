"""Colour changes of a batch in torch, with parameters of its own for each sample.

Pixels are float32 levels, 0..255, RGB or one channel, (n, channels, height, width). Nothing is rounded between steps; what may leave
0..255 is cut to it, as torchvision does with floating point images. Parameters are (n,) tensors on the same device. With one
channel, saturation, hue and gray change nothing. A function may overwrite the tensor it is given; what counts is what it returns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

RED, GREEN, BLUE = 0.2989, 0.587, 0.114  # torchvision's weights: ITU-R 601 to four digits


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Multiplies: 0 is black, 1 changes nothing."""
    return x.mul_(_column(factor)).clamp_(0, 255)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Away from the mean of the image's luma: 0 is flat gray, 1 changes nothing."""
    return _away_from(_luma(x).mean(dim=(1, 2, 3), keepdim=True), x, factor)


def saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Away from each pixel's luma: 0 is gray, 1 changes nothing."""
    return x if x.shape[1] == 1 else _away_from(_luma(x), x, factor)


def gray(x: Tensor, on: Tensor) -> Tensor:
    """Luma in all channels where ``on`` is 1; 0 changes nothing."""
    return x if x.shape[1] == 1 else torch.where(_column(on) > 0, _luma(x), x)


def hue(x: Tensor, share: Tensor) -> Tensor:
    """Turns the colour circle by a share of it; 0 changes nothing."""
    if x.shape[1] == 1:
        return x
    red, green, blue = x.unbind(1)
    high, low = x.amax(1), x.amin(1)
    chroma = high - low
    safe = torch.where(chroma == 0, 1.0, chroma)
    # The hue in sixths of the circle, then HSV -> RGB in closed form: value and chroma do not change.
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


def blur(x: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """A Gaussian of ``sigma`` (above 0) pixels, cut to ``kernel`` pixels each way, edges reflected."""
    n, channels, height, width = x.shape
    reach = kernel // 2
    distance = torch.arange(-reach, reach + 1, dtype=torch.float32, device=x.device)
    weights = torch.exp(-0.5 * (distance / sigma.view(-1, 1)).square())
    weights = (weights / weights.sum(1, keepdim=True)).repeat_interleave(channels, 0)
    planes = F.pad(x.reshape(1, n * channels, height, width), [reach] * 4, mode="reflect")
    planes = F.conv2d(planes, weights.view(-1, 1, 1, kernel), groups=n * channels)
    return F.conv2d(planes, weights.view(-1, 1, kernel, 1), groups=n * channels).view(x.shape)


def erase(x: Tensor, box: Tensor, value: Tensor) -> Tensor:
    """Writes ``value``, (1 or channels,), into each sample's box, (n, 4) as x0, y0, x1, y1; an empty box changes nothing."""
    x0, y0, x1, y1 = (column.view(-1, 1, 1, 1) for column in box.unbind(1))
    down = torch.arange(x.shape[2], device=x.device).view(1, 1, -1, 1)
    across = torch.arange(x.shape[3], device=x.device).view(1, 1, 1, -1)
    inside = (down >= y0) & (down < y1) & (across >= x0) & (across < x1)
    return torch.where(inside, value.view(1, -1, 1, 1), x)


def _luma(x: Tensor) -> Tensor:
    """(n, 1, height, width); a new tensor."""
    if x.shape[1] == 1:
        return x.clone()
    return x[:, 0:1].mul(RED).add_(x[:, 1:2], alpha=GREEN).add_(x[:, 2:3], alpha=BLUE)


def _away_from(middle: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    factor = _column(factor)
    return x.mul_(factor).add_(middle.mul_(1 - factor)).clamp_(0, 255)


def _column(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)
