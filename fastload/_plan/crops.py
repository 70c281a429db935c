"""Transforms that crop. The decoder reads only the parts of a JPEG that the crop covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fastload._plan import arguments
from fastload._plan.arguments import Range, Size
from fastload._plan.geometry import CropGeometry, Floats, random_boxes, xy
from fastload._plan.rng import Draws
from fastload._plan.transform import GeometricTransform
from fastload.errors import ConfigError


class _FixedSizeCrop(GeometricTransform):
    """A crop whose output size is its argument ``size``."""

    __slots__ = ()

    crops: ClassVar[bool] = True
    size: int | Sequence[int]

    def check(self) -> None:
        self.size_after(None)

    def size_after(self, _: Size | None) -> Size:
        return arguments.size_pair(type(self).__name__, self.size)


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(_FixedSizeCrop):
    """Crops a random box and resizes it to ``size``, like torchvision's RandomResizedCrop.

    It tries ten random boxes. If none of them fits into the image, it uses the largest centered box
    with an allowed aspect ratio. A sample gets the same crop in any batch, thread or rank.

    Args:
        size: Output size in pixels, (height, width) or one number for a square.
        scale: (smallest, largest) fraction of the image area, 0 to 1. Default (0.08, 1.0).
        ratio: (smallest, largest) aspect ratio width / height of the box. Default (3/4, 4/3).
        filter: ``"antialias"`` (Pillow, torchvision), ``"bilinear"`` (OpenCV) or ``"nearest"``.
            Default ``"antialias"``.

    Raises:
        ConfigError: An argument is out of range.

    Examples:
        >>> RandomResizedCrop(224, scale=(0.25, 1.0), ratio=(1, 1))
        RandomResizedCrop(size=224, scale=(0.25, 1.0), ratio=(1, 1), filter='antialias')
    """

    n_blocks: ClassVar[int] = 5  # one crop in 1000 of 4:3 photographs needs a sixth try

    size: int | Sequence[int]
    scale: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    filter: str = field(default="antialias", kw_only=True)

    def check(self) -> None:
        self.size_after(None)
        arguments.ordered("RandomResizedCrop: scale", self.scale, 1e-6, 1.0)
        arguments.ordered("RandomResizedCrop: ratio", self.ratio, 1e-3, 1e3)

    def apply(self, geometry: CropGeometry, draws: Draws) -> None:
        offset, extent, found = random_boxes(
            geometry.size, draws, skip=0, scale=self.scale, ratio=self.ratio
        )
        if not found.all():
            left = np.flatnonzero(~found)
            offset[:, left], extent[:, left] = self._centered(geometry.size[:, left])
        geometry.crop(offset, extent, by="RandomResizedCrop")
        geometry.resize(xy(self.size_after(None)))

    def _centered(self, sizes: Floats) -> tuple[Floats, Floats]:
        """Returns the largest centered box with an allowed aspect ratio."""
        widest = np.minimum(sizes[0], np.rint(sizes[1] * self.ratio[1]))
        tallest = np.minimum(sizes[1], np.rint(sizes[0] / self.ratio[0]))
        extent = np.maximum(np.stack([widest, tallest]), 1.0)
        return np.floor((sizes - extent) / 2), extent


@dataclass(frozen=True, slots=True)
class Crop(GeometricTransform):
    """Removes a fixed amount from each side.

    The loader treats an image of which nothing remains like an image that cannot be decoded.

    Args:
        top: Amount to remove at the top: pixels if int, a fraction of the height, 0 to 1
            (exclusive), if float. Default 0.
        bottom: Amount to remove at the bottom, in the same units. Default 0.
        left: Amount to remove on the left: pixels, or a fraction of the width. Default 0.
        right: Amount to remove on the right, in the same units as ``left``. Default 0.

    Raises:
        ConfigError: All amounts are 0, an amount is out of range, or nothing remains.

    Examples:
        >>> Crop(top=0.3)  # removes the sky
        Crop(top=0.3, bottom=0, left=0, right=0)
    """

    crops: ClassVar[bool] = True

    top: float = field(default=0, kw_only=True)
    bottom: float = field(default=0, kw_only=True)
    left: float = field(default=0, kw_only=True)
    right: float = field(default=0, kw_only=True)

    def check(self) -> None:
        sides = {"top": self.top, "bottom": self.bottom, "left": self.left, "right": self.right}
        for name, value in sides.items():
            if isinstance(value, int):
                arguments.whole(f"Crop: {name} in pixels", value, 0)
            elif arguments.number(f"Crop: {name} as a fraction", value, 0.0, 1.0) == 1.0:
                raise ConfigError(
                    f"Crop: {name}=1.0 removes the whole image; expected a fraction below 1, "
                    f"or {name}=1 for one pixel"
                )
        if not any(sides.values()):
            raise ConfigError(
                "Crop: expected at least one of top, bottom, left, right, for example Crop(top=0.3)"
            )
        for one, other in (("top", "bottom"), ("left", "right")):
            fractions = [each for each in (sides[one], sides[other]) if not isinstance(each, int)]
            if sum(fractions) >= 1.0:
                raise ConfigError(
                    f"Crop: {one}={sides[one]} and {other}={sides[other]} leave nothing; "
                    "expected a sum below 1"
                )

    def size_after(self, size: Size | None) -> Size | None:
        if size is None:
            return None
        _, remaining = self._window(xy(size))
        width, height = remaining.ravel().astype(int).tolist()
        if min(width, height) < 1:
            raise ConfigError(
                f"transform: {self} leaves nothing of its input of {size[0]}x{size[1]} "
                "(height x width) pixels; remove less"
            )
        return height, width

    def apply(self, geometry: CropGeometry, _: Draws) -> None:
        offset, size = self._window(geometry.size)
        geometry.crop(offset, size, by=str(self))

    def _window(self, size: Floats) -> tuple[Floats, Floats]:
        """Returns offset and size in whole canvas pixels."""
        first = np.stack([_pixels(self.left, size[0]), _pixels(self.top, size[1])])
        last = np.stack([_pixels(self.right, size[0]), _pixels(self.bottom, size[1])])
        return first, size - last - first


@dataclass(frozen=True, slots=True)
class CenterCrop(_FixedSizeCrop):
    """Crops the center, like torchvision's CenterCrop. Pads images that are smaller than ``size``.

    Args:
        size: Output size in pixels, (height, width) or one number for a square.
        fill: Pixel value of padding, single or per channel: 0 to 255, or 0 to 65535 for images of
            16 bits. Default 0.
        mask_fill: Value of padding in masks, 0 to 65535. Default 0.

    Raises:
        ConfigError: An argument is out of range.

    Examples:
        >>> CenterCrop((224, 320))
        CenterCrop(size=(224, 320), fill=None, mask_fill=None)
    """

    size: int | Sequence[int]
    fill: int | Sequence[int] | None = field(default=None, kw_only=True)
    mask_fill: int | None = field(default=None, kw_only=True)

    def apply(self, geometry: CropGeometry, _: Draws) -> None:
        target = xy(self.size_after(None))
        room = geometry.size - target
        # torchvision rounds halves to even when it crops, and down when it pads.
        offset = np.where(room < 0, np.ceil(room / 2), np.rint(room / 2))
        geometry.crop(offset, target, by="CenterCrop")


@dataclass(frozen=True, slots=True)
class RandomCrop(_FixedSizeCrop):
    """Crops at a random position. Pads images that are smaller than ``size`` at random.

    Args:
        size: Output size in pixels, (height, width) or one number for a square.
        pad: Padding in pixels on all four sides before the crop, less than ``size``. Default 0.
        fill: Pixel value of padding, single or per channel: 0 to 255, or 0 to 65535 for images of
            16 bits. Default 0.
        mask_fill: Value of padding in masks, 0 to 65535. Default 0.

    Raises:
        ConfigError: An argument is out of range, or ``pad`` is not smaller than ``size``.

    Examples:
        >>> RandomCrop(32, pad=4)  # the usual augmentation for CIFAR
        RandomCrop(size=32, pad=4, fill=None, mask_fill=None)
    """

    n_blocks: ClassVar[int] = 1

    size: int | Sequence[int]
    pad: int = field(default=0, kw_only=True)
    fill: int | Sequence[int] | None = field(default=None, kw_only=True)
    mask_fill: int | None = field(default=None, kw_only=True)

    def check(self) -> None:
        height, width = self.size_after(None)
        arguments.whole("RandomCrop: pad", self.pad, 0)
        if self.pad >= min(height, width):
            raise ConfigError(
                f"RandomCrop: pad={self.pad} with size {height}x{width} could crop padding only; "
                f"expected pad to be at most {min(height, width) - 1}"
            )

    @property
    def pads(self) -> bool:
        return self.pad > 0

    def apply(self, geometry: CropGeometry, draws: Draws) -> None:
        target = xy(self.size_after(None))
        room = geometry.size + 2 * self.pad - target  # negative if the image is smaller
        # Every whole offset between the two extremes is equally likely.
        offset = np.minimum(room, 0) + np.floor(draws.values[:2] * (np.abs(room) + 1)) - self.pad
        geometry.crop(offset, target, by="RandomCrop")


def _pixels(amount: float, side: Floats) -> Floats:
    return np.full_like(side, amount) if isinstance(amount, int) else np.floor(amount * side + 0.5)
