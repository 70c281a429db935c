"""Transforms that change colours, in the user's words; carried out on the device by fastload._finish. Pure.

An amount ``a`` means a factor drawn from [max(0, 1 - a), 1 + a]; a pair is the range itself. ``p`` is the probability that a sample
is changed at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fastload._plan import checks
from fastload._plan.base import Photometric, Step, StepKind, pair
from fastload._plan.boxes import random_boxes
from fastload._plan.checks import Size
from fastload._plan.rng import Draws
from fastload.errors import ConfigError

Floats = NDArray[np.float64]
Amount = float | tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Factor(Photometric):
    """What Brightness, Contrast and Saturation have in common."""

    blocks: ClassVar[int] = 1
    kind: ClassVar[StepKind]

    amount: Amount
    p: float = field(default=1.0, kw_only=True)

    def check(self) -> None:
        """What the signature cannot say."""
        factors(type(self).__name__, self.amount)
        checks.probability(type(self).__name__, self.p)

    def steps(self) -> tuple[Step, ...]:
        """One."""
        return (Step(self.kind),)

    def parameters(self, draws: Draws, _: Size) -> list[Floats]:
        """The factor; 1 changes nothing."""
        return [_drawn(draws.values, 1, factors(type(self).__name__, self.amount), self.p, 1.0)]


@dataclass(frozen=True, slots=True)
class Brightness(_Factor):
    """Multiplies by a factor."""

    kind: ClassVar[StepKind] = "brightness"


@dataclass(frozen=True, slots=True)
class Contrast(_Factor):
    """Away from, or towards, the image's mean gray by a factor."""

    kind: ClassVar[StepKind] = "contrast"


@dataclass(frozen=True, slots=True)
class Saturation(_Factor):
    """Away from, or towards, each pixel's gray by a factor."""

    kind: ClassVar[StepKind] = "saturation"


@dataclass(frozen=True, slots=True)
class Hue(Photometric):
    """Turns the colour circle by a share of it: ``amount`` at most 0.5, either way, or a (from, to) pair."""

    blocks: ClassVar[int] = 1

    amount: Amount
    p: float = field(default=1.0, kw_only=True)

    def check(self) -> None:
        """What the signature cannot say."""
        hue_range("Hue", self.amount)
        checks.probability("Hue", self.p)

    def steps(self) -> tuple[Step, ...]:
        """One."""
        return (Step("hue"),)

    def parameters(self, draws: Draws, _: Size) -> list[Floats]:
        """The share; 0 changes nothing."""
        return [_drawn(draws.values, 1, hue_range("Hue", self.amount), self.p, 0.0)]


@dataclass(frozen=True, slots=True)
class ColorJitter(Photometric):
    """Brightness, contrast, saturation and hue, always in this order (torchvision shuffles it), with one ``p`` for all."""

    blocks: ClassVar[int] = 2

    brightness: Amount = 0.0
    contrast: Amount = 0.0
    saturation: Amount = 0.0
    hue: Amount = 0.0
    p: float = field(default=1.0, kw_only=True)

    def check(self) -> None:
        """What the signature cannot say."""
        checks.probability("ColorJitter", self.p)
        if not self._parts():
            raise ConfigError(
                "ColorJitter: expected at least one of brightness, contrast, saturation, hue"
            )

    def _parts(self) -> list[tuple[StepKind, int, tuple[float, float], float]]:
        """(kind, number of its draw, range, what changes nothing)."""
        wanted: list[tuple[StepKind, Amount]] = [
            ("brightness", self.brightness),
            ("contrast", self.contrast),
            ("saturation", self.saturation),
            ("hue", self.hue),
        ]
        return [
            (
                kind,
                number,
                (hue_range if kind == "hue" else factors)(f"ColorJitter: {kind}", amount),
                0.0 if kind == "hue" else 1.0,
            )
            for number, (kind, amount) in enumerate(wanted, 1)
            if amount != 0.0
        ]

    def steps(self) -> tuple[Step, ...]:
        """One for each that is asked for."""
        return tuple(Step(kind) for kind, *_ in self._parts())

    def parameters(self, draws: Draws, _: Size) -> list[Floats]:
        """One column a step."""
        return [
            _drawn(draws.values, number, limits, self.p, neutral)
            for _, number, limits, neutral in self._parts()
        ]


@dataclass(frozen=True, slots=True)
class Grayscale(Photometric):
    """Gray, in as many channels as before, with probability ``p``."""

    blocks: ClassVar[int] = 1

    p: float = 0.1

    def check(self) -> None:
        """What the signature cannot say."""
        checks.probability("Grayscale", self.p)

    def steps(self) -> tuple[Step, ...]:
        """One."""
        return (Step("gray"),)

    def parameters(self, draws: Draws, _: Size) -> list[Floats]:
        """1 = gray, 0 = as it was."""
        return [(draws.values[0] < self.p).astype(np.float64)]


@dataclass(frozen=True, slots=True)
class GaussianBlur(Photometric):
    """A Gaussian of ``sigma`` pixels, a number or a range, cut to ``kernel`` x ``kernel``; edges are reflected."""

    blocks: ClassVar[int] = 1

    kernel: int
    sigma: Amount = (0.1, 2.0)
    p: float = field(default=1.0, kw_only=True)

    def check(self) -> None:
        """What the signature cannot say."""
        if checks.whole("GaussianBlur: kernel", self.kernel, 3, 255) % 2 == 0:
            raise ConfigError(f"GaussianBlur: kernel: expected an odd number, found {self.kernel}")
        self._sigmas()
        checks.probability("GaussianBlur", self.p)

    def _sigmas(self) -> tuple[float, float]:
        limits = self.sigma if isinstance(self.sigma, list | tuple) else (self.sigma, self.sigma)
        return checks.ordered("GaussianBlur: sigma", limits, 1e-3, 1e3)

    def check_canvas(self, canvas: Size) -> None:
        """Raises ConfigError where there is less to reflect than the kernel wants."""
        if self.kernel // 2 >= min(canvas):
            raise ConfigError(
                f"GaussianBlur: kernel {self.kernel} is too large for {canvas[0]}x{canvas[1]} (height x width) pixels; "
                f"at most {2 * min(canvas) - 1}"
            )

    def steps(self) -> tuple[Step, ...]:
        """One."""
        return (Step("blur", kernel=self.kernel),)

    def parameters(self, draws: Draws, canvas: Size) -> list[Floats]:
        """Sigma; 0 changes nothing."""
        self.check_canvas(canvas)
        return [_drawn(draws.values, 1, self._sigmas(), self.p, 0.0)]


@dataclass(frozen=True, slots=True)
class RandomErasing(Photometric):
    """A random box of ``scale`` of the area and ``ratio`` (height / width) is overwritten with ``value``.

    Before Normalize the value is a level, 0..255; behind it, as torchvision's recipes have it, a normalised number (0 = the mean).
    """

    blocks: ClassVar[int] = 3  # whether, and two tries; more are seldom needed

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float | Sequence[float] = 0

    def check(self) -> None:
        """What the signature cannot say."""
        checks.probability("RandomErasing", self.p)
        checks.ordered("RandomErasing: scale", self.scale, 1e-6, 1.0)
        checks.ordered("RandomErasing: ratio", self.ratio, 1e-3, 1e3)
        self._values()

    def _values(self) -> tuple[float, ...]:
        values = self.value if isinstance(self.value, list | tuple) else (self.value,)
        if not 1 <= len(values) <= 4:
            raise ConfigError(
                f"RandomErasing: value: expected one number, or one for each channel, found {self.value!r:.60}"
            )
        return tuple(checks.number("RandomErasing: value", each, -1e4, 1e4) for each in values)

    def steps(self) -> tuple[Step, ...]:
        """One; where it stands in the list is added by the plan."""
        return (Step("erase", 4, value=self._values()),)

    def parameters(self, draws: Draws, canvas: Size) -> list[Floats]:
        """x0, y0, x1, y1 on the canvas; all 0 changes nothing."""
        sizes = np.repeat(pair(canvas[1], canvas[0]), draws.values.shape[1], axis=1)
        ratio = 1 / self.ratio[1], 1 / self.ratio[0]
        offset, extent, found = random_boxes(
            sizes, draws, skip=1, scale=self.scale, ratio=ratio, margin=1
        )
        erased = found & (draws.values[0] < self.p)
        return [*np.where(erased, offset, 0.0), *np.where(erased, offset + extent, 0.0)]


def factors(what: str, amount: object) -> tuple[float, float]:
    """The range of factors that an amount, or a pair, stands for."""
    if isinstance(amount, list | tuple):
        return checks.ordered(what, amount, 0.0, 100.0)
    number = checks.number(what, amount, 0.0, 100.0)
    return max(0.0, 1.0 - number), 1.0 + number


def hue_range(what: str, amount: object) -> tuple[float, float]:
    """The same for shares of the colour circle."""
    if isinstance(amount, list | tuple):
        return checks.ordered(what, amount, -0.5, 0.5)
    number = checks.number(what, amount, 0.0, 0.5)
    return -number, number


def _drawn(
    values: Floats, number: int, limits: tuple[float, float], p: float, neutral: float
) -> Floats:
    drawn = limits[0] + values[number] * (limits[1] - limits[0])
    return drawn if p == 1.0 else np.where(values[0] < p, drawn, neutral)
