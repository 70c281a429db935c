"""Transforms that change pixel values, and the operations that run on the device for them.

An amount ``a`` stands for a factor drawn from [max(0, 1 - a), 1 + a]; a pair is the range itself.
``p`` is the probability that a sample is changed at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from fastload._plan import arguments
from fastload._plan.arguments import Range, Size
from fastload._plan.geometry import Flags, Floats, random_boxes, xy
from fastload._plan.rng import Draws
from fastload._plan.transform import ColorTransform, OpContext, Params, PixelOp
from fastload.errors import ConfigError

Amount = float | tuple[float, float]


@dataclass(frozen=True, slots=True)
class AdjustBrightness(PixelOp):
    """Multiplies by the parameter."""

    name: ClassVar[str] = "brightness"
    neutral: ClassVar[float] = 1.0


@dataclass(frozen=True, slots=True)
class AdjustContrast(PixelOp):
    """Scales the distance from the image's mean luma by the parameter."""

    name: ClassVar[str] = "contrast"
    neutral: ClassVar[float] = 1.0


@dataclass(frozen=True, slots=True)
class AdjustSaturation(PixelOp):
    """Scales the distance from each pixel's luma by the parameter."""

    name: ClassVar[str] = "saturation"
    neutral: ClassVar[float] = 1.0


@dataclass(frozen=True, slots=True)
class AdjustHue(PixelOp):
    """Rotates the color circle by the parameter, a share of the circle."""

    name: ClassVar[str] = "hue"
    preserves_noops: ClassVar[bool] = False  # a rotation by 0 rounds


@dataclass(frozen=True, slots=True)
class ToGrayscale(PixelOp):
    """Luma in all channels where the parameter is 1."""

    name: ClassVar[str] = "grayscale"


@dataclass(frozen=True, slots=True)
class Blur(PixelOp):
    """A Gaussian whose sigma in pixels is the parameter, cut to ``kernel`` x ``kernel``."""

    name: ClassVar[str] = "blur"
    preserves_noops: ClassVar[bool] = False  # sigma must be above 0

    kernel: int


@dataclass(frozen=True, slots=True)
class Erase(PixelOp):
    """Writes ``value`` into the box x0, y0, x1, y1 of the parameters."""

    name: ClassVar[str] = "erase"
    n_params: ClassVar[int] = 4
    values_argument: ClassVar[str] = "RandomErasing: value"

    value: tuple[float, ...]
    normalized: bool

    @property
    def channel_values(self) -> tuple[float, ...]:
        return self.value

    @property
    def after_normalize(self) -> bool:
        return self.normalized

    def is_noop(self, params: Params) -> Flags:
        return np.less_equal(params[:, 2], params[:, 0])


@dataclass(frozen=True, slots=True)
class _AmountTransform(ColorTransform):
    """One operation with one drawn amount."""

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
        return [_drawn(draws, 1, self._range(), self.p, self.op.neutral)]


@dataclass(frozen=True, slots=True)
class Brightness(_AmountTransform):
    """Multiplies pixel values by a random factor.

    Args:
        amount: ``a`` for a factor from max(0, 1 - a) to 1 + a, or a (from, to) pair of factors.
        p: Probability that a sample is changed, 0 to 1.

    Raises:
        ConfigError: An argument is out of range.

    Example:
        >>> Brightness(0.4)
        Brightness(amount=0.4, p=1.0)
    """

    op: ClassVar[PixelOp] = AdjustBrightness()


@dataclass(frozen=True, slots=True)
class Contrast(_AmountTransform):
    """Scales the distance of pixel values from the image's mean gray by a random factor.

    Args:
        amount: ``a`` for a factor from max(0, 1 - a) to 1 + a, or a (from, to) pair of factors.
        p: Probability that a sample is changed, 0 to 1.

    Raises:
        ConfigError: An argument is out of range.

    Example:
        >>> Contrast((0.5, 1.5), p=0.8)
        Contrast(amount=(0.5, 1.5), p=0.8)
    """

    op: ClassVar[PixelOp] = AdjustContrast()


@dataclass(frozen=True, slots=True)
class Saturation(_AmountTransform):
    """Scales the distance of pixel values from each pixel's gray by a random factor.

    Args:
        amount: ``a`` for a factor from max(0, 1 - a) to 1 + a, or a (from, to) pair of factors.
        p: Probability that a sample is changed, 0 to 1.

    Raises:
        ConfigError: An argument is out of range.

    Example:
        >>> Saturation(0.4)
        Saturation(amount=0.4, p=1.0)
    """

    op: ClassVar[PixelOp] = AdjustSaturation()


@dataclass(frozen=True, slots=True)
class Hue(_AmountTransform):
    """Rotates the color circle by a random share of it.

    Args:
        amount: The largest share in either direction, 0 to 0.5, or a (from, to) pair of shares.
        p: Probability that a sample is changed, 0 to 1.

    Raises:
        ConfigError: An argument is out of range.

    Example:
        >>> Hue(0.1)
        Hue(amount=0.1, p=1.0)
    """

    op: ClassVar[PixelOp] = AdjustHue()

    def _range(self) -> Range:
        return arguments.symmetric("Hue", self.amount, 0.5)


class _JitterPart(NamedTuple):
    op: PixelOp
    number: int  # of its random number among the transform's
    range: Range


@dataclass(frozen=True, slots=True)
class ColorJitter(ColorTransform):
    """Changes brightness, contrast, saturation and hue, always in this order, with one ``p``.

    torchvision shuffles the order. A component with amount 0 is left out.

    Args:
        brightness: ``a`` for a factor from max(0, 1 - a) to 1 + a, or a (from, to) pair.
        contrast: The same for contrast.
        saturation: The same for saturation.
        hue: The largest share of the color circle in either direction, 0 to 0.5, or a pair.
        p: Probability that a sample is changed at all, 0 to 1.

    Raises:
        ConfigError: All amounts are 0, or an argument is out of range.

    Example:
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

    def _parts(self) -> list[_JitterPart]:
        factors: list[tuple[PixelOp, Amount]] = [
            (AdjustBrightness(), self.brightness),
            (AdjustContrast(), self.contrast),
            (AdjustSaturation(), self.saturation),
        ]
        parts = [
            _JitterPart(op, number, arguments.factors(f"ColorJitter: {op.name}", amount))
            for number, (op, amount) in enumerate(factors, 1)
            if amount != 0.0
        ]
        if self.hue != 0.0:
            hues = arguments.symmetric("ColorJitter: hue", self.hue, 0.5)
            parts.append(_JitterPart(AdjustHue(), 4, hues))
        return parts

    def ops(self, _: OpContext) -> tuple[PixelOp, ...]:
        return tuple(part.op for part in self._parts())

    def draw_params(self, draws: Draws, _: Size) -> list[Floats]:
        return [
            _drawn(draws, part.number, part.range, self.p, part.op.neutral)
            for part in self._parts()
        ]


@dataclass(frozen=True, slots=True)
class Grayscale(ColorTransform):
    """Replaces colors by gray with probability ``p``; the number of channels stays.

    Args:
        p: Probability that a sample is changed, 0 to 1.

    Raises:
        ConfigError: ``p`` is not a probability.

    Example:
        >>> Grayscale()
        Grayscale(p=0.1)
    """

    n_blocks: ClassVar[int] = 1

    p: float = 0.1

    def ops(self, _: OpContext) -> tuple[PixelOp, ...]:
        return (ToGrayscale(),)

    def draw_params(self, draws: Draws, _: Size) -> list[Floats]:
        return [(draws.values[0] < self.p).astype(np.float64)]


@dataclass(frozen=True, slots=True)
class GaussianBlur(ColorTransform):
    """Blurs with a Gaussian that is cut to ``kernel`` x ``kernel`` pixels; edges are reflected.

    Args:
        kernel: Side of the kernel in pixels: odd, 3 to 255, less than twice the image's side.
        sigma: Standard deviation in pixels, a number or a (from, to) pair.
        p: Probability that a sample is changed, 0 to 1.

    Raises:
        ConfigError: An argument is out of range, or the kernel is too large for the output.

    Example:
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
                f"GaussianBlur: kernel {self.kernel} is too large for {canvas[0]}x{canvas[1]} "
                f"(height x width) pixels; at most {2 * min(canvas) - 1}"
            )

    def ops(self, _: OpContext) -> tuple[PixelOp, ...]:
        return (Blur(self.kernel),)

    def draw_params(self, draws: Draws, canvas: Size) -> list[Floats]:
        self.check_canvas(canvas)
        return [_drawn(draws, 1, self._sigmas(), self.p, Blur.neutral)]


@dataclass(frozen=True, slots=True)
class RandomErasing(ColorTransform):
    """Overwrites a random box with ``value``, as torchvision's transform of that name.

    Before Normalize the value is a pixel value, 0 to 255. After Normalize, where torchvision's
    recipes have it, the value is a normalized number: 0 is the mean.

    Args:
        p: Probability that a sample is changed, 0 to 1.
        scale: Smallest and largest share of the image's area, 0 to 1.
        ratio: Smallest and largest height / width of the box.
        value: One number, or one per channel.

    Raises:
        ConfigError: An argument is out of range.

    Example:
        >>> RandomErasing(0.25).scale
        (0.02, 0.33)
    """

    n_blocks: ClassVar[int] = 3  # whether, and two tries; more are seldom needed
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
        if not context.normalized and not 0 <= min(value) <= max(value) <= 255:
            raise ConfigError(
                f"transform: {self} stands before Normalize: value must be a pixel value, 0 to 255"
            )
        return (Erase(value, context.normalized),)

    def draw_params(self, draws: Draws, canvas: Size) -> list[Floats]:
        sizes = np.repeat(xy(canvas[1], canvas[0]), draws.values.shape[1], axis=1)
        ratio = (1 / self.ratio[1], 1 / self.ratio[0])
        offset, extent, found = random_boxes(
            sizes, draws, skip=1, scale=self.scale, ratio=ratio, margin=1
        )
        erased = found & (draws.values[0] < self.p)
        return [*np.where(erased, offset, 0.0), *np.where(erased, offset + extent, 0.0)]


def _drawn(draws: Draws, number: int, limits: Range, p: float, neutral: float) -> Floats:
    """Uniform in ``limits`` with probability ``p``, else ``neutral``."""
    drawn = limits[0] + draws.values[number] * (limits[1] - limits[0])
    return drawn if p == 1.0 else np.where(draws.values[0] < p, drawn, neutral)
