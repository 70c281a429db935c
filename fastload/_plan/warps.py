"""Transforms that warp the decoded image on the device, and their pixel operations.

Decoders do not rotate or shear. Warps therefore run with the color operations, in the order of the
list, with the same arithmetic for every decode backend. The matrix of a plan row includes them, so
labels follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fastload._plan import arguments
from fastload._plan.arguments import Range, Size
from fastload._plan.geometry import Flags, Floats
from fastload._plan.rng import Draws
from fastload._plan.transform import OpContext, PixelOp, PixelTransform
from fastload.errors import ConfigError

_MAX_SHEAR = 80.0  # degrees; 90 degrees would leave nothing of the image


# 1 reverses the rows.
VERTICAL_FLIP = PixelOp("vertical_flip", (0.0,), preserves_noops=False, moves_pixels=True)


def affine_op(fill: tuple[int, ...]) -> PixelOp:
    """Samples the canvas bilinearly and writes ``fill`` outside of it.

    The parameters are the upper two rows of the matrix from result to canvas, in continuous
    coordinates. The matrix maps each pixel of the result to its source position.
    """
    return PixelOp(
        "affine",
        neutral=(1.0, 0.0, 0.0, 0.0, 1.0, 0.0),
        preserves_noops=False,  # sampling with the identity matrix rounds
        moves_pixels=True,
        channel_values=fill,
        values_argument="RandomAffine: fill",
    )


class Warp(PixelTransform):
    """Moves the pixels of the canvas with exactly one operation."""

    __slots__ = ()

    def draw_matrices(self, draws: Draws, canvas: Size, /) -> Floats:
        """Returns the (n, 3, 3) matrices from canvas to result."""
        raise NotImplementedError

    def params(self, matrices: Floats, /) -> list[Floats]:
        """Returns the parameters of its operation for these matrices as (n,) columns."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class VerticalFlip(Warp):
    """Mirrors an image top to bottom with probability ``p``.

    Args:
        p: Probability that a sample is mirrored, 0 to 1. Default 0.5.

    Raises:
        ConfigError: ``p`` is not from 0 to 1.

    Examples:
        >>> VerticalFlip()
        VerticalFlip(p=0.5)
    """

    n_blocks: ClassVar[int] = 1

    p: float = 0.5

    def ops(self, _: OpContext) -> tuple[PixelOp, ...]:
        return (VERTICAL_FLIP,)

    def draw_matrices(self, draws: Draws, canvas: Size) -> Floats:
        flipped = draws.values[0] < self.p
        result = _identities(len(flipped))
        result[flipped, 1, 1:] = (-1.0, canvas[0])  # y becomes height - y
        return result

    def params(self, matrices: Floats) -> list[Floats]:
        return [(matrices[:, 1, 1] < 0).astype(np.float64)]


@dataclass(frozen=True, slots=True)
class RandomAffine(Warp):
    """Rotates, translates, scales and shears about the center, like torchvision's RandomAffine.

    Images are sampled bilinearly (without antialiasing for scales below 1), masks with nearest.

    Args:
        degrees: Clockwise rotation in degrees, (from, to) within -360 to 360; ``a`` means (-a, a).
        translate: Largest horizontal and vertical shift as fractions of width and height, 0 to 1.
            Shifts are rounded to whole pixels. Default None: no shift.
        scale: (from, to) range of the scale factor, 0.01 to 100. Default None: no scaling.
        shear: Shear along x in degrees, (from, to) within -80 to 80; ``a`` means (-a, a). Four
            numbers are the ranges along x and along y. Default None: no shear.
        p: Probability that a sample is changed, 0 to 1. Default 1.
        fill: Pixel value outside of the image, single or per channel: 0 to 255, or 0 to 65535 for
            images of 16 bits. Default 0.
        mask_fill: Value outside of the image in masks, 0 to 65535. Default 0.

    Raises:
        ConfigError: An argument is out of range.

    Examples:
        >>> RandomAffine(15, translate=(0.1, 0.1), scale=(0.9, 1.1)).degrees
        15
    """

    n_blocks: ClassVar[int] = 2

    degrees: float | Sequence[float]
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: float | Sequence[float] | None = None
    p: float = field(default=1.0, kw_only=True)
    fill: int | Sequence[int] | None = field(default=None, kw_only=True)
    mask_fill: int | None = field(default=None, kw_only=True)

    def check(self) -> None:
        self._ranges()

    def _ranges(self) -> list[Range]:
        """Returns the ranges of angle, x shift, y shift, scale, x shear and y shear."""
        shifts = (0.0, 0.0) if self.translate is None else self.translate
        if not isinstance(shifts, tuple) or len(shifts) != 2:
            raise ConfigError(
                "RandomAffine: translate: expected fractions (horizontal, vertical), "
                f"found {self.translate!r:.60}"
            )
        largest = [
            arguments.number("RandomAffine: translate as a fraction", fraction, 0.0, 1.0)
            for fraction in shifts
        ]
        shear = 0.0 if self.shear is None else self.shear
        per_axis: tuple[object, object] = (shear, 0.0)
        if isinstance(shear, tuple) and len(shear) == 4:
            per_axis = (shear[:2], shear[2:])
        scale = (1.0, 1.0) if self.scale is None else self.scale
        return [
            arguments.symmetric("RandomAffine: degrees", self.degrees, 360.0),
            *((-fraction, fraction) for fraction in largest),
            arguments.ordered("RandomAffine: scale", scale, 0.01, 100.0),
            *(arguments.symmetric("RandomAffine: shear", each, _MAX_SHEAR) for each in per_axis),
        ]

    def ops(self, context: OpContext) -> tuple[PixelOp, ...]:
        return (affine_op(context.fill),)

    def draw_matrices(self, draws: Draws, canvas: Size) -> Floats:
        """Shears, scales and rotates about the center, then shifts."""
        low, high = (np.array(each)[:, None] for each in zip(*self._ranges(), strict=True))
        angle, shift_x, shift_y, scale, shear_x, shear_y = low + draws.values[1:7] * (high - low)
        height, width = canvas
        angle = np.radians(angle)
        tan_x = np.tan(np.radians(shear_x))
        tan_y = np.tan(np.radians(shear_y))
        cosine = scale * np.cos(angle)
        sine = scale * np.sin(angle)
        result = _identities(len(angle))
        result[:, 0, 0] = cosine + sine * tan_y
        result[:, 1, 0] = sine - cosine * tan_y
        result[:, 0, 1] = -tan_x * result[:, 0, 0] - sine
        result[:, 1, 1] = -tan_x * result[:, 1, 0] + cosine
        center = np.array([width / 2, height / 2])
        shift = np.rint(np.stack([shift_x * width, shift_y * height], axis=1))
        result[:, :2, 2] = center + shift - result[:, :2, :2] @ center
        result[draws.values[0] >= self.p] = np.eye(3)
        return result

    def params(self, matrices: Floats) -> list[Floats]:
        return list(np.linalg.inv(matrices)[:, :2].reshape(-1, 6).T)


def mirrored(matrices: Floats, which: Flags, canvas: Size) -> Floats:
    """Returns the warps that give the same result on canvases mirrored where ``which`` is True.

    The decoder mirrors before all warps, even if the flip follows the warp in the list.
    """
    mirror = np.array([[-1.0, 0.0, canvas[1]], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    return np.where(which[:, None, None], mirror @ matrices @ mirror, matrices)


def _identities(n: int) -> Floats:
    return np.tile(np.eye(3), (n, 1, 1))
