"""Transforms that move the pixels of the finished canvas, and their operations on the device.

Decoders do not rotate or shear, so these run among the color operations, in the order of the list:
the same arithmetic for every decode backend. Labels follow, as the plan's matrix includes warps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fastload._plan import arguments
from fastload._plan.arguments import Fills, Range, Size
from fastload._plan.geometry import Flags, Floats
from fastload._plan.rng import Draws
from fastload._plan.transform import OpContext, Params, PixelOp, PixelTransform
from fastload.errors import ConfigError

if TYPE_CHECKING:
    from PIL import Image

_MAX_SHEAR = 80.0  # degrees: at 90 nothing is left
_IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


@dataclass(frozen=True, slots=True)
class FlipVertically(PixelOp):
    """Reverses the rows where the parameter is 1."""

    name: ClassVar[str] = "vertical_flip"
    preserves_noops: ClassVar[bool] = False
    moves_pixels: ClassVar[bool] = True

    def preview(
        self, image: Image.Image, params: tuple[float, ...], _fill: tuple[int, ...], /
    ) -> Image.Image:
        from PIL import Image

        return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM) if params[0] else image


@dataclass(frozen=True, slots=True)
class WarpAffine(PixelOp):
    """Bilinear sampling; ``fill`` where nothing of the canvas lies.

    The parameters are the upper two rows of a matrix from result to canvas, in continuous
    coordinates: where each pixel of the result comes from.
    """

    name: ClassVar[str] = "affine"
    n_params: ClassVar[int] = 6
    preserves_noops: ClassVar[bool] = False  # sampling at the same place rounds
    moves_pixels: ClassVar[bool] = True
    values_argument: ClassVar[str] = "RandomAffine: fill"

    fill: tuple[int, ...]

    @property
    def channel_values(self) -> tuple[float, ...]:
        return self.fill

    def is_noop(self, params: Params) -> Flags:
        return np.asarray(np.equal(params, _IDENTITY).all(axis=1))

    def preview(
        self, image: Image.Image, params: tuple[float, ...], fill: tuple[int, ...], /
    ) -> Image.Image:
        from PIL import Image

        affine = Image.Transform.AFFINE
        bilinear = Image.Resampling.BILINEAR
        return image.transform(image.size, affine, params, bilinear, fillcolor=fill)


class Warp(PixelTransform):
    """Moves the pixels of the canvas; it has one operation."""

    __slots__ = ()

    def draw_matrices(self, draws: Draws, canvas: Size, /) -> Floats:
        """(n, 3, 3): where each point of the canvas goes."""
        raise NotImplementedError

    def params(self, matrices: Floats, /) -> list[Floats]:
        """The parameters of its operation for these matrices, one (n,) column each."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class VerticalFlip(Warp):
    """Mirrors top and bottom with probability ``p``.

    Args:
        p: Probability that a sample is mirrored, 0 to 1.

    Raises:
        ConfigError: ``p`` is not a probability.

    Example:
        >>> VerticalFlip()
        VerticalFlip(p=0.5)
    """

    n_blocks: ClassVar[int] = 1

    p: float = 0.5

    def ops(self, _: OpContext) -> tuple[PixelOp, ...]:
        return (FlipVertically(),)

    def draw_matrices(self, draws: Draws, canvas: Size) -> Floats:
        flipped = draws.values[0] < self.p
        result = _identities(len(flipped))
        result[flipped, 1, 1:] = (-1.0, canvas[0])  # y becomes height - y
        return result

    def params(self, matrices: Floats) -> list[Floats]:
        return [(matrices[:, 1, 1] < 0).astype(np.float64)]


@dataclass(frozen=True, slots=True)
class RandomAffine(Warp):
    """Rotates, shifts, scales and shears about the center, as torchvision's transform of that name.

    Images are sampled bilinearly (scales below 1 do not average), masks by the nearest pixel.

    Args:
        degrees: Clockwise rotation in degrees; ``a`` stands for (-a, a).
        translate: Largest shift across and down as shares of width and height; None for no shift.
            Shifts are whole pixels.
        scale: (from, to) range of the scale, 0.01 to 100; None for 1.
        shear: Shear along x in degrees, up to 80, as ``degrees``; four numbers are the ranges along
            x and along y; None for no shear.
        p: Probability that a sample is changed, 0 to 1.
        fill: Pixel value outside of the image, 0 to 255, or one per channel. Default 0.
        mask_fill: Value outside of the image in masks, 0 to 65535. Default 0.

    Raises:
        ConfigError: An argument is out of range.

    Example:
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

    @property
    def fills(self) -> Fills:
        return arguments.image_fill("fill", self.fill), self.mask_fill

    def _ranges(self) -> list[Range]:
        """Of the angle, the shifts across and down, the scale, the shears along x and y."""
        shifts = (0.0, 0.0) if self.translate is None else self.translate
        if not isinstance(shifts, tuple) or len(shifts) != 2:
            raise ConfigError(
                "RandomAffine: translate: expected shares (across, down), "
                f"found {self.translate!r:.60}"
            )
        largest = [
            arguments.number("RandomAffine: translate, a share of the side", share, 0.0, 1.0)
            for share in shifts
        ]
        shear = 0.0 if self.shear is None else self.shear
        per_axis: tuple[object, object] = (shear, 0.0)
        if isinstance(shear, tuple) and len(shear) == 4:
            per_axis = (shear[:2], shear[2:])
        scale = (1.0, 1.0) if self.scale is None else self.scale
        return [
            arguments.symmetric("RandomAffine: degrees", self.degrees, 360.0),
            *((-share, share) for share in largest),
            arguments.ordered("RandomAffine: scale", scale, 0.01, 100.0),
            *(arguments.symmetric("RandomAffine: shear", each, _MAX_SHEAR) for each in per_axis),
        ]

    def ops(self, context: OpContext) -> tuple[PixelOp, ...]:
        return (WarpAffine(context.fill),)

    def draw_matrices(self, draws: Draws, canvas: Size) -> Floats:
        """Shear, scale and rotate about the center, then shift."""
        low, high = (np.array(each)[:, None] for each in zip(*self._ranges(), strict=True))
        angle, across, down, scale, shear_x, shear_y = low + draws.values[1:7] * (high - low)
        height, width = canvas
        angle = np.radians(angle)
        along = np.tan(np.radians(shear_x))
        beside = np.tan(np.radians(shear_y))
        cosine = scale * np.cos(angle)
        sine = scale * np.sin(angle)
        result = _identities(len(angle))
        result[:, 0, 0] = cosine + sine * beside
        result[:, 1, 0] = sine - cosine * beside
        result[:, 0, 1] = -along * result[:, 0, 0] - sine
        result[:, 1, 1] = -along * result[:, 1, 0] + cosine
        center = np.array([width / 2, height / 2])
        shift = np.rint(np.stack([across * width, down * height], axis=1))
        result[:, :2, 2] = center + shift - result[:, :2, :2] @ center
        result[draws.values[0] >= self.p] = np.eye(3)
        return result

    def params(self, matrices: Floats) -> list[Floats]:
        return list(np.linalg.inv(matrices)[:, :2].reshape(-1, 6).T)


def mirrored(matrices: Floats, which: Flags, canvas: Size) -> Floats:
    """The warps for canvases that are mirrored where ``which``.

    The decoder mirrors before a warp, also where the flip follows the warp in the list. These warps
    then give the result of the list.
    """
    mirror = np.array([[-1.0, 0.0, canvas[1]], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    return np.where(which[:, None, None], mirror @ matrices @ mirror, matrices)


def _identities(n: int) -> Floats:
    return np.tile(np.eye(3), (n, 1, 1))
