"""Transforms that crop. The decoder copies only the pixels that the crop needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fastload._plan import arguments
from fastload._plan.arguments import Fills, Range, Size
from fastload._plan.geometry import CropGeometry, Floats, random_boxes, xy
from fastload._plan.rng import Draws
from fastload._plan.transform import GeometricTransform
from fastload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(GeometricTransform):
    """Crops a random box and resizes it to ``size``, as torchvision's transform of that name.

    Ten boxes are tried; if none fits into the image, the largest centered box with an allowed ratio
    is used. The random numbers belong to the sample: any batch, thread or rank draws the same crop.

    Args:
        size: Output size in pixels: (height, width), or one number for a square.
        scale: Smallest and largest share of the image's area, 0 to 1.
        ratio: Smallest and largest width / height of the box.
        filter: ``"antialias"`` (Pillow, torchvision), ``"bilinear"`` (OpenCV) or ``"nearest"``.

    Raises:
        ConfigError: An argument is out of range.

    Example:
        >>> RandomResizedCrop(224, scale=(0.25, 1.0))
        RandomResizedCrop(size=224, scale=(0.25, 1.0), ratio=(0.75, 1.3333333333333333), filter='antialias')
    """

    n_blocks: ClassVar[int] = 5  # one crop of 4:3 photographs in 1000 needs a sixth try
    crops: ClassVar[bool] = True

    size: int | Sequence[int]
    scale: Range = (0.08, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    filter: str = field(default="antialias", kw_only=True)

    def check(self) -> None:
        self.size_after(None)
        arguments.ordered("RandomResizedCrop: scale", self.scale, 1e-6, 1.0)
        arguments.ordered("RandomResizedCrop: ratio", self.ratio, 1e-3, 1e3)

    @property
    def resize_filter(self) -> str:
        return self.filter

    def size_after(self, _: Size | None) -> Size:
        return arguments.size_pair("RandomResizedCrop", self.size)

    def apply(self, geometry: CropGeometry, draws: Draws) -> None:
        offset, extent, found = random_boxes(
            geometry.size, draws, skip=0, scale=self.scale, ratio=self.ratio
        )
        if not found.all():
            left = np.flatnonzero(~found)
            offset[:, left], extent[:, left] = self._centered(geometry.size[:, left])
        height, width = self.size_after(None)
        geometry.crop(offset, extent, by="RandomResizedCrop")
        geometry.resize(xy(width, height))

    def _centered(self, sizes: Floats) -> tuple[Floats, Floats]:
        """The whole image, or its center where its ratio is not allowed."""
        widest = np.minimum(sizes[0], np.rint(sizes[1] * self.ratio[1]))
        tallest = np.minimum(sizes[1], np.rint(sizes[0] / self.ratio[0]))
        extent = np.maximum(np.stack([widest, tallest]), 1.0)
        return np.floor((sizes - extent) / 2), extent


@dataclass(frozen=True, slots=True)
class Crop(GeometricTransform):
    """Cuts off a fixed amount on each side.

    An image of which nothing remains is handled like one that cannot be decoded.

    Args:
        top: Amount at the top: pixels if int, a share of the height below 1 if float. Default 0.
        bottom: Amount at the bottom. Default 0.
        left: Amount at the left; shares are of the width. Default 0.
        right: Amount at the right. Default 0.

    Raises:
        ConfigError: All amounts are 0, an amount is out of range, or the shares leave nothing.

    Example:
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
            elif arguments.number(f"Crop: {name} as a share", value, 0.0, 1.0) == 1.0:
                raise ConfigError(
                    f"Crop: {name}=1.0 is the whole image; a share must be below 1, "
                    f"one pixel is {name}=1"
                )
        if not any(sides.values()):
            raise ConfigError(
                "Crop: expected at least one of top, bottom, left, right, e.g. Crop(top=0.3)"
            )
        for one, other in (("top", "bottom"), ("left", "right")):
            shares = [each for each in (sides[one], sides[other]) if not isinstance(each, int)]
            if sum(shares) >= 1.0:
                raise ConfigError(
                    f"Crop: {one}={sides[one]} and {other}={sides[other]} leave nothing"
                )

    def size_after(self, size: Size | None) -> Size | None:
        if size is None:
            return None
        _, remaining = self._window(xy(size[1], size[0]))
        width, height = remaining.ravel().astype(int).tolist()
        if min(width, height) < 1:
            raise ConfigError(
                f"transform: {self} leaves nothing of the {size[0]}x{size[1]} (height x width) "
                "pixels that it gets"
            )
        return height, width

    def apply(self, geometry: CropGeometry, _: Draws) -> None:
        offset, size = self._window(geometry.size)
        geometry.crop(offset, size, by=str(self))

    def _window(self, size: Floats) -> tuple[Floats, Floats]:
        """Offset and size, in whole canvas pixels."""
        first = np.stack([_pixels(self.left, size[0]), _pixels(self.top, size[1])])
        last = np.stack([_pixels(self.right, size[0]), _pixels(self.bottom, size[1])])
        return first, size - last - first


@dataclass(frozen=True, slots=True)
class CenterCrop(GeometricTransform):
    """Crops the center; an image smaller than ``size`` is padded on all sides.

    Args:
        size: Output size in pixels: (height, width), or one number for a square.
        fill: Pixel value of padding, 0 to 255, or one per channel. Default 0.
        mask_fill: Value of padding in masks, 0 to 65535. Default 0.

    Raises:
        ConfigError: An argument is out of range.

    Example:
        >>> CenterCrop((224, 320))
        CenterCrop(size=(224, 320), fill=None, mask_fill=None)
    """

    crops: ClassVar[bool] = True

    size: int | Sequence[int]
    fill: int | Sequence[int] | None = field(default=None, kw_only=True)
    mask_fill: int | None = field(default=None, kw_only=True)

    def check(self) -> None:
        self.size_after(None)

    @property
    def fills(self) -> Fills:
        return arguments.image_fill("fill", self.fill), self.mask_fill

    def size_after(self, _: Size | None) -> Size:
        return arguments.size_pair("CenterCrop", self.size)

    def apply(self, geometry: CropGeometry, _: Draws) -> None:
        height, width = self.size_after(None)
        target = xy(width, height)
        room = geometry.size - target
        # Halves as torchvision rounds them: to even when cropping, down when padding.
        offset = np.where(room < 0, np.ceil(room / 2), np.rint(room / 2))
        geometry.crop(offset, target, by="CenterCrop")


@dataclass(frozen=True, slots=True)
class RandomCrop(GeometricTransform):
    """Crops at a random place; an image smaller than ``size`` lies at a random place in padding.

    Args:
        size: Output size in pixels: (height, width), or one number for a square.
        pad: Pixels of padding on all sides before cropping. Default 0.
        fill: Pixel value of padding, 0 to 255, or one per channel. Default 0.
        mask_fill: Value of padding in masks, 0 to 65535. Default 0.

    Raises:
        ConfigError: An argument is out of range, or ``pad`` is not smaller than ``size``.

    Example:
        >>> RandomCrop(32, pad=4)  # CIFAR
        RandomCrop(size=32, pad=4, fill=None, mask_fill=None)
    """

    n_blocks: ClassVar[int] = 1
    crops: ClassVar[bool] = True

    size: int | Sequence[int]
    pad: int = field(default=0, kw_only=True)
    fill: int | Sequence[int] | None = field(default=None, kw_only=True)
    mask_fill: int | None = field(default=None, kw_only=True)

    def check(self) -> None:
        height, width = self.size_after(None)
        arguments.whole("RandomCrop: pad", self.pad, 0)
        if self.pad >= min(height, width):
            raise ConfigError(
                f"RandomCrop: pad={self.pad} with size {height}x{width}: a crop could contain "
                f"nothing but padding; at most {min(height, width) - 1}"
            )

    @property
    def pads(self) -> bool:
        return self.pad > 0

    @property
    def fills(self) -> Fills:
        return arguments.image_fill("fill", self.fill), self.mask_fill

    def size_after(self, _: Size | None) -> Size:
        return arguments.size_pair("RandomCrop", self.size)

    def apply(self, geometry: CropGeometry, draws: Draws) -> None:
        height, width = self.size_after(None)
        target = xy(width, height)
        room = geometry.size + 2 * self.pad - target  # negative: the image is smaller than the crop
        # Every whole offset between the two extremes is equally likely.
        offset = np.minimum(room, 0) + np.floor(draws.values[:2] * (np.abs(room) + 1)) - self.pad
        geometry.crop(offset, target, by="RandomCrop")


def _pixels(amount: float, side: Floats) -> Floats:
    return np.full_like(side, amount) if isinstance(amount, int) else np.floor(amount * side + 0.5)
