"""Transforms that move the pixels of the finished canvas: no crop, resize or flip that a decoder does, so the device does them. Pure.

They are carried out among the colours, in the order of the list, by fastload._finish: the same arithmetic whichever decoder made the
pixels. Labels follow: the plan's matrix has them in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fastload._plan import checks
from fastload._plan.base import OnDevice, Step
from fastload._plan.checks import Size
from fastload._plan.geometry import Floats
from fastload._plan.rng import Draws
from fastload.errors import ConfigError

WARPS = ("affine", "upside_down")  # kinds of steps
_MOST_SHEAR = 80.0  # degrees: at 90 nothing is left


class Warp(OnDevice):
    """Moves what is on the canvas."""

    __slots__ = ()

    @property
    def fills(self) -> tuple[tuple[int, ...] | None, int | None]:
        """Levels where nothing is moved to, in images and in masks; None = it does not mind."""
        return None, None

    def forward(self, draws: Draws, canvas: Size, /) -> Floats:
        """(n, 3, 3): where each point of the canvas goes."""
        raise NotImplementedError

    def columns(self, forward: Floats, /) -> list[Floats]:
        """The step's parameters for these matrices, (n,) each."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class VerticalFlip(Warp):
    """Turns the canvas upside down with probability ``p``."""

    blocks: ClassVar[int] = 1

    p: float = 0.5

    def check(self) -> None:
        """What the signature cannot say."""
        checks.probability("VerticalFlip", self.p)

    def steps(self) -> tuple[Step, ...]:
        """One."""
        return (Step("upside_down"),)

    def forward(self, draws: Draws, canvas: Size) -> Floats:
        """y becomes height - y."""
        turned = draws.values[0] < self.p
        result = _unmoved(len(turned))
        result[turned, 1, 1:] = -1.0, canvas[0]
        return result

    def columns(self, forward: Floats) -> list[Floats]:
        """1 = turned, 0 = as it was."""
        return [(forward[:, 1, 1] < 0).astype(np.float64)]


@dataclass(frozen=True, slots=True)
class RandomAffine(Warp):
    """Turns, shifts, scales and shears the canvas about its centre, as torchvision's of that name; bilinear, masks by the nearest pixel.

    ``degrees``: clockwise, a number a stands for (-a, a). ``translate``: the most across and down, as shares of width and height; whole
    pixels. ``scale``: a (from, to) pair; below 1 pixels are picked, not averaged. ``shear``: degrees along x as ``degrees`` has them, or
    four numbers for x and y.
    """

    blocks: ClassVar[int] = 2

    degrees: float | Sequence[float]
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: float | Sequence[float] | None = None
    p: float = field(default=1.0, kw_only=True)
    fill: int | Sequence[int] | None = field(default=None, kw_only=True)
    mask_fill: int | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """What the signature cannot say."""
        self._ranges()
        checks.probability("RandomAffine", self.p)
        if self.fill is not None:
            checks.levels("RandomAffine: fill", self.fill)
        if self.mask_fill is not None:
            checks.whole("RandomAffine: mask_fill", self.mask_fill, 0, 65_535)

    @property
    def fills(self) -> tuple[tuple[int, ...] | None, int | None]:
        """As the user says."""
        return (
            None if self.fill is None else checks.levels("RandomAffine: fill", self.fill)
        ), self.mask_fill

    def _ranges(self) -> list[tuple[float, float]]:
        """Of the angle, the shifts across and down, the scale, the shears along x and y."""
        shifts = (0.0, 0.0) if self.translate is None else self.translate
        if not isinstance(shifts, tuple) or len(shifts) != 2:
            raise ConfigError(
                f"RandomAffine: translate: expected shares (across, down), found {self.translate!r:.60}"
            )
        most = [
            checks.number("RandomAffine: translate, a share of the side", share, 0.0, 1.0)
            for share in shifts
        ]
        shear = 0.0 if self.shear is None else self.shear
        each_way = (
            (shear[:2], shear[2:]) if isinstance(shear, tuple) and len(shear) == 4 else (shear, 0.0)
        )
        shears = [_symmetric("RandomAffine: shear", each, _MOST_SHEAR) for each in each_way]
        return [
            _symmetric("RandomAffine: degrees", self.degrees, 360.0),
            *((-share, share) for share in most),
            checks.ordered(
                "RandomAffine: scale", (1.0, 1.0) if self.scale is None else self.scale, 0.01, 100.0
            ),
            *shears,
        ]

    def steps(self) -> tuple[Step, ...]:
        """One; the plan adds what is written where nothing is moved to."""
        return (Step("affine", 6),)

    def forward(self, draws: Draws, canvas: Size) -> Floats:
        """Shear, scale and turn about the centre, then shift."""
        low, high = (np.array(each)[:, None] for each in zip(*self._ranges(), strict=True))
        angle, across, down, scale, shear_x, shear_y = low + draws.values[1:7] * (high - low)
        height, width = canvas
        angle, along, beside = (
            np.radians(angle),
            np.tan(np.radians(shear_x)),
            np.tan(np.radians(shear_y)),
        )
        cosine, sine = scale * np.cos(angle), scale * np.sin(angle)
        result = _unmoved(len(angle))
        result[:, 0, 0], result[:, 1, 0] = cosine + sine * beside, sine - cosine * beside
        result[:, 0, 1], result[:, 1, 1] = (
            -along * result[:, 0, 0] - sine,
            -along * result[:, 1, 0] + cosine,
        )
        centre = np.array([width / 2, height / 2])
        shift = np.rint(np.stack([across * width, down * height], axis=1))
        result[:, :2, 2] = centre + shift - result[:, :2, :2] @ centre
        result[draws.values[0] >= self.p] = np.eye(3)
        return result

    def columns(self, forward: Floats) -> list[Floats]:
        """The upper two rows of the inverse: where each pixel of the result comes from."""
        return list(np.linalg.inv(forward)[:, :2].reshape(-1, 6).T)


def mirrored(
    forward: Floats, which: np.ndarray[tuple[int], np.dtype[np.bool_]], canvas: Size
) -> Floats:
    """The warps that do to mirrored canvases what these do to the others, where ``which``: a flip behind a warp, done before it."""
    mirror = np.array([[-1.0, 0.0, canvas[1]], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    return np.where(which[:, None, None], mirror @ forward @ mirror, forward)


def _unmoved(n: int) -> Floats:
    return np.tile(np.eye(3), (n, 1, 1))


def _symmetric(what: str, value: object, most: float) -> tuple[float, float]:
    """A number a stands for (-a, a)."""
    if isinstance(value, tuple):
        return checks.ordered(what, value, -most, most)
    number = checks.number(what, value, 0.0, most)
    return -number, number
