"""Transforms that change pixel values, and their operations on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np

from fastload._plan import arguments
from fastload._plan.arguments import Range, Size
from fastload._plan.geometry import Floats, random_boxes, xy
from fastload._plan.rng import Draws
from fastload._plan.transform import ColorTransform, OpContext, PixelOp
from fastload.errors import ConfigError

Amount = float | tuple[float, float]

_hue_range = partial(arguments.symmetric, most=0.5)


BRIGHTNESS = PixelOp("brightness", neutral=(1.0,))  # a factor
CONTRAST = PixelOp("contrast", neutral=(1.0,))  # scales the distance from the image's mean luma
SATURATION = PixelOp("saturation", neutral=(1.0,))  # scales the distance from each pixel's luma
# A fraction of the color circle; a rotation by 0 rounds.
HUE = PixelOp("hue", neutral=(0.0,), preserves_noops=False)
GRAYSCALE = PixelOp("grayscale", neutral=(0.0,))  # 1 writes the luma into all channels


@dataclass(frozen=True, slots=True)
class _AmountTransform(ColorTransform):
    """A transform with one operation whose only parameter is random."""

    n_blocks: ClassVar[int] = 1
    op: ClassVar[PixelOp]

    amount: Amount
    p: float = field(default=1.0, kw_only=True)

    def check(self) -> None:
        self._range()

    def _range(self) -> Range:
        return arguments.factors(type(self).__name__, self.amount)

    def ops(self, _: OpContext) -> tuple[PixelOp, ...]:
        return (self.op,)

    def draw_params(self, draws: Draws, _: Size) -> list[Floats]:
        return [_drawn(draws, 1, self._range(), self.p, self.op)]


@dataclass(frozen=True, slots=True)
class Brightness(_AmountTransform):
    """Multiplies pixel values by a random factor.

    Args:
        amount: ``a`` for a factor from max(0, 1 - a) to 1 + a, or a pair (from, to) of factors,
            0 to 100.
        p: Probability that a sample is changed, 0 to 1. Default 1.

    Raises:
        ConfigError: An argument is out of range.

    Examples:
        >>> Brightness(0.4)
        Brightness(amount=0.4, p=1.0)
    """

    op: ClassVar[PixelOp] = BRIGHTNESS


@dataclass(frozen=True, slots=True)
class Contrast(_AmountTransform):
    """Scales the contrast by a random factor: the distance to the mean gray of the image.

    Args:
        amount: ``a`` for a factor from max(0, 1 - a) to 1 + a, or a pair (from, to) of factors,
            0 to 100.
        p: Probability that a sample is changed, 0 to 1. Default 1.

    Raises:
        ConfigError: An argument is out of range.

    Examples:
        >>> Contrast((0.5, 1.5), p=0.8)
        Contrast(amount=(0.5, 1.5), p=0.8)
    """

    op: ClassVar[PixelOp] = CONTRAST


@dataclass(frozen=True, slots=True)
class Saturation(_AmountTransform):
    """Scales the saturation by a random factor: the distance of each pixel to its gray.

    Args:
        amount: ``a`` for a factor from max(0, 1 - a) to 1 + a, or a pair (from, to) of factors,
            0 to 100.
        p: Probability that a sample is changed, 0 to 1. Default 1.

    Raises:
        ConfigError: An argument is out of range.

    Examples:
        >>> Saturation(0.4)
        Saturation(amount=0.4, p=1.0)
    """

    op: ClassVar[PixelOp] = SATURATION


@dataclass(frozen=True, slots=True)
class Hue(_AmountTransform):
    """Rotates the hue by a random fraction of the color circle.

    Args:
        amount: Largest rotation in either direction as a fraction of the circle, 0 to 0.5, or a
            pair (from, to), -0.5 to 0.5.
        p: Probability that a sample is changed, 0 to 1. Default 1.

    Raises:
        ConfigError: An argument is out of range.

    Examples:
        >>> Hue(0.1)
        Hue(amount=0.1, p=1.0)
    """

    op: ClassVar[PixelOp] = HUE

    def _range(self) -> Range:
        return _hue_range("Hue", self.amount)


@dataclass(frozen=True, slots=True)
class ColorJitter(ColorTransform):
    """Changes brightness, contrast, saturation and hue, always in this order.

    torchvision's ColorJitter shuffles the order. A component with amount 0 is not applied.

    Args:
        brightness: ``a`` for a factor from max(0, 1 - a) to 1 + a, or a pair (from, to) of factors,
            0 to 100. Default 0.
        contrast: Same as ``brightness``, for the contrast. Default 0.
        saturation: Same as ``brightness``, for the saturation. Default 0.
        hue: Largest rotation in either direction as a fraction of the color circle, 0 to 0.5, or a
            pair (from, to), -0.5 to 0.5. Default 0.
        p: Probability that all components are applied; otherwise none is. 0 to 1, default 1.

    Raises:
        ConfigError: All amounts are 0, or an argument is out of range.

    Examples:
        >>> ColorJitter(0.4, 0.4, 0.4, hue=0.1, p=0.8).hue
        0.1
    """

    n_blocks: ClassVar[int] = 2

    brightness: Amount = 0.0
    contrast: Amount = 0.0
    saturation: Amount = 0.0
    hue: Amount = 0.0
    p: float = field(default=1.0, kw_only=True)

    def check(self) -> None:
        if not self._parts():
            raise ConfigError(
                "ColorJitter: expected at least one of brightness, contrast, saturation, hue"
            )

    def _parts(self) -> list[tuple[PixelOp, int, Range]]:
        """Returns operation, index of the random number and range of each used component."""
        components: list[tuple[PixelOp, Amount, Callable[[str, object], Range]]] = [
            (BRIGHTNESS, self.brightness, arguments.factors),
            (CONTRAST, self.contrast, arguments.factors),
            (SATURATION, self.saturation, arguments.factors),
            (HUE, self.hue, _hue_range),
        ]
        return [
            (op, index, to_range(f"ColorJitter: {op.name}", amount))
            for index, (op, amount, to_range) in enumerate(components, 1)
            if amount != 0.0
        ]

    def ops(self, _: OpContext) -> tuple[PixelOp, ...]:
        return tuple(op for op, _, _ in self._parts())

    def draw_params(self, draws: Draws, _: Size) -> list[Floats]:
        return [_drawn(draws, index, limits, self.p, op) for op, index, limits in self._parts()]


@dataclass(frozen=True, slots=True)
class Grayscale(ColorTransform):
    """Replaces colors by gray with probability ``p``. The number of channels does not change.

    Args:
        p: Probability that a sample is changed, 0 to 1. Default 0.1.

    Raises:
        ConfigError: ``p`` is not from 0 to 1.

    Examples:
        >>> Grayscale()
        Grayscale(p=0.1)
    """

    n_blocks: ClassVar[int] = 1

    p: float = 0.1

    def ops(self, _: OpContext) -> tuple[PixelOp, ...]:
        return (GRAYSCALE,)

    def draw_params(self, draws: Draws, _: Size) -> list[Floats]:
        return [(draws.values[0] < self.p).astype(np.float64)]


@dataclass(frozen=True, slots=True)
class GaussianBlur(ColorTransform):
    """Blurs with a Gaussian kernel. Pixels beyond the edges are reflected.

    Args:
        kernel: Side of the kernel in pixels, odd, 3 to 255, less than twice the shorter side of the
            output.
        sigma: Standard deviation in pixels, 0.001 to 1000: a number, or a pair (from, to) for a
            random value. Default (0.1, 2.0).
        p: Probability that a sample is changed, 0 to 1. Default 1.

    Raises:
        ConfigError: An argument is out of range, or the kernel is too large for the output.

    Examples:
        >>> GaussianBlur(9, sigma=(0.5, 2.0), p=0.5)
        GaussianBlur(kernel=9, sigma=(0.5, 2.0), p=0.5)
    """

    n_blocks: ClassVar[int] = 1

    kernel: int
    sigma: Amount = (0.1, 2.0)
    p: float = field(default=1.0, kw_only=True)

    def check(self) -> None:
        if arguments.whole("GaussianBlur: kernel", self.kernel, 3, 255) % 2 == 0:
            raise ConfigError(f"GaussianBlur: kernel: expected an odd number, found {self.kernel}")
        self._sigmas()

    def _sigmas(self) -> Range:
        limits = self.sigma if isinstance(self.sigma, list | tuple) else (self.sigma, self.sigma)
        return arguments.ordered("GaussianBlur: sigma", limits, 1e-3, 1e3)

    def check_canvas(self, canvas: Size) -> None:
        if self.kernel // 2 >= min(canvas):
            raise ConfigError(
                f"GaussianBlur: kernel={self.kernel} is too large for an output of "
                f"{canvas[0]}x{canvas[1]} (height x width) pixels; expected at most "
                f"{2 * min(canvas) - 1}"
            )

    def ops(self, _: OpContext) -> tuple[PixelOp, ...]:
        # The parameter is sigma in pixels; the kernel requires that it is above 0.
        return (PixelOp("blur", neutral=(0.0,), preserves_noops=False, kernel=self.kernel),)

    def draw_params(self, draws: Draws, canvas: Size) -> list[Floats]:
        self.check_canvas(canvas)
        return [_drawn(draws, 1, self._sigmas(), self.p, *self.ops(OpContext((), False)))]


@dataclass(frozen=True, slots=True)
class RandomErasing(ColorTransform):
    """Overwrites a random box with ``value``, like torchvision's RandomErasing.

    It is allowed before and after Normalize. torchvision's recipes place it after Normalize.

    Args:
        p: Probability that a sample is changed, 0 to 1. Default 0.5.
        scale: (smallest, largest) fraction of the image area, 0 to 1. Default (0.02, 0.33).
        ratio: (smallest, largest) aspect ratio height / width of the box. Default (0.3, 3.3).
        value: One number, or one per channel. Before Normalize a pixel value, 0 to 255, or 0 to
            65535 for images of 16 bits; after Normalize a normalized value, where 0 is the mean.
            Default 0.

    Raises:
        ConfigError: An argument is out of range.

    Examples:
        >>> RandomErasing(0.25).scale
        (0.02, 0.33)
    """

    n_blocks: ClassVar[int] = 3  # one for p, and two tries; more are rarely needed
    allowed_after_normalize: ClassVar[bool] = True

    p: float = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    value: float | Sequence[float] = 0

    def check(self) -> None:
        arguments.ordered("RandomErasing: scale", self.scale, 1e-6, 1.0)
        arguments.ordered("RandomErasing: ratio", self.ratio, 1e-3, 1e3)
        arguments.channel_values("RandomErasing: value", self.value)

    def ops(self, context: OpContext) -> tuple[PixelOp, ...]:
        value = arguments.channel_values("RandomErasing: value", self.value)
        if not context.normalized and not 0 <= min(value) <= max(value) <= context.white:
            raise ConfigError(
                f"transform: {self} is before Normalize: expected value to be a pixel value, "
                f"0 to {context.white:.0f}"
            )
        return (
            PixelOp(
                "erase",
                neutral=(0.0,) * 4,  # x0, y0, x1, y1 of the box
                channel_values=value,
                values_argument="RandomErasing: value",
                after_normalize=context.normalized,
            ),
        )

    def draw_params(self, draws: Draws, canvas: Size) -> list[Floats]:
        sizes = np.repeat(xy(canvas), draws.values.shape[1], axis=1)
        ratio = (1 / self.ratio[1], 1 / self.ratio[0])
        offset, extent, found = random_boxes(
            sizes, draws, skip=1, scale=self.scale, ratio=ratio, margin=1
        )
        erased = found & (draws.values[0] < self.p)
        return [*np.where(erased, offset, 0.0), *np.where(erased, offset + extent, 0.0)]


def _drawn(draws: Draws, number: int, limits: Range, p: float, op: PixelOp) -> Floats:
    """Returns values uniform in ``limits`` with probability ``p``, otherwise neutral ones."""
    drawn = limits[0] + draws.values[number] * (limits[1] - limits[0])
    return drawn if p == 1.0 else np.where(draws.values[0] < p, drawn, op.neutral)
