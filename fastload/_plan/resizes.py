"""Transforms that resize or mirror the whole image during decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fastload._plan import arguments
from fastload._plan.arguments import Size
from fastload._plan.geometry import CropGeometry, Flags, Floats, xy
from fastload._plan.rng import Draws
from fastload._plan.transform import GeometricTransform
from fastload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Resize(GeometricTransform):
    """Resizes to ``height`` x ``width``, or sets one side and keeps the aspect ratio.

    Use one of ``Resize(height, width)``, ``Resize(shorter=...)`` and ``Resize(longer=...)``.

    Args:
        height: Output height in pixels, or a pair (height, width). Default None.
        width: Output width in pixels. Required if ``height`` is one number. Default None.
        shorter: Length of the shorter side in pixels. Keeps the aspect ratio. Default None.
        longer: Length of the longer side in pixels. Keeps the aspect ratio. Default None.
        filter: ``"antialias"`` (Pillow, torchvision), ``"bilinear"`` (OpenCV) or ``"nearest"``.
            Default ``"antialias"``.

    Raises:
        ConfigError: None or more than one of the three forms is used, or a size is out of range.

    Examples:
        >>> Resize(720, 960)
        Resize(height=720, width=960, shorter=None, longer=None, filter='antialias')
        >>> Resize(shorter=256).shorter
        256
    """

    height: int | Sequence[int] | None = None
    width: int | None = None
    shorter: int | None = field(default=None, kw_only=True)
    longer: int | None = field(default=None, kw_only=True)
    filter: str = field(default="antialias", kw_only=True)

    def check(self) -> None:
        sides = {"shorter": self.shorter, "longer": self.longer}
        for name, value in sides.items():
            if value is not None:
                arguments.whole(f"Resize: {name}", value, 1)
        stretches = self.height is not None or self.width is not None
        if stretches + sum(value is not None for value in sides.values()) != 1:
            raise ConfigError(
                "Resize: expected exactly one of Resize(height, width), Resize(shorter=...) and "
                "Resize(longer=...)"
            )
        if stretches:
            self._stretched_size()

    def _stretched_size(self) -> Size:
        if isinstance(self.height, list | tuple) and self.width is None:
            return arguments.size_pair("Resize", self.height)
        if self.height is None or self.width is None:
            side = self.height or self.width
            raise ConfigError(
                f"Resize: expected both height and width; "
                f"Resize(shorter={side}) keeps the aspect ratio"
            )
        return arguments.size_pair("Resize", (self.height, self.width))

    def size_after(self, size: Size | None) -> Size | None:
        if self.height is not None:
            return self._stretched_size()
        if size is None:
            return None
        width, height = self._target(xy(size)).ravel().astype(int).tolist()
        return height, width

    def apply(self, geometry: CropGeometry, _: Draws) -> None:
        geometry.resize(self._target(geometry.size))

    def _target(self, size: Floats) -> Floats:
        if self.height is not None:
            return xy(self._stretched_size())
        if self.shorter is not None:  # torchvision rounds the other side down
            target = np.floor(self.shorter * size / size.min(axis=0))
        else:
            target = np.floor((self.longer or 0) * size / size.max(axis=0) + 0.5)
        at_least_1: Floats = np.maximum(target, 1.0)
        return at_least_1


@dataclass(frozen=True, slots=True)
class Letterbox(GeometricTransform):
    """Resizes the whole image to fit ``height`` x ``width``, keeps its aspect ratio and pads.

    Args:
        height: Output height in pixels, a pair (height, width), or one number for a square.
        width: Output width in pixels. Default None: use ``height``.
        fill: Pixel value of padding, single or per channel: 0 to 255, or 0 to 65535 for images of
            16 bits. Default None: 114, or 114 * 257 for images of 16 bits.
        mask_fill: Value of padding in masks, 0 to 65535. Default 0.
        upscale: Whether to enlarge images that are smaller than the output. Default True.
        align: Position of the image: ``"center"`` or ``"top-left"``. Default ``"center"``.
        filter: ``"antialias"`` (Pillow, torchvision), ``"bilinear"`` (OpenCV) or ``"nearest"``.
            Default ``"antialias"``.

    Raises:
        ConfigError: An argument is out of range.

    Examples:
        >>> Letterbox(640, upscale=False).align
        'center'
    """

    default_fill: ClassVar[int | None] = 114

    height: int | Sequence[int]
    width: int | None = None
    fill: int | Sequence[int] | None = field(default=None, kw_only=True)
    mask_fill: int | None = field(default=None, kw_only=True)
    upscale: bool = field(default=True, kw_only=True)
    align: str = field(default="center", kw_only=True)
    filter: str = field(default="antialias", kw_only=True)

    def check(self) -> None:
        self.size_after(None)
        arguments.one_of("Letterbox: align", self.align, ("center", "top-left"))

    @property
    def pads(self) -> bool:
        return True

    def size_after(self, _: Size | None) -> Size:
        size = self.height if self.width is None else (self.height, self.width)
        return arguments.size_pair("Letterbox", size)

    def apply(self, geometry: CropGeometry, _: Draws) -> None:
        canvas = xy(self.size_after(None))
        scale = (canvas / geometry.size).min(axis=0)
        if not self.upscale:
            scale = np.minimum(scale, 1.0)
        target = np.clip(np.floor(geometry.size * scale + 0.5), 1, canvas)
        geometry.resize(target)
        # An odd pixel of padding goes to the right and the bottom.
        centered = self.align == "center"
        offset = np.floor((canvas - target) / 2) if centered else np.zeros_like(target)
        geometry.place(offset, canvas)


@dataclass(frozen=True, slots=True)
class HorizontalFlip(GeometricTransform):
    """Mirrors an image left to right with probability ``p``.

    It is allowed at any place in the list of transforms.

    Args:
        p: Probability that a sample is mirrored, 0 to 1. Default 0.5.

    Raises:
        ConfigError: ``p`` is not from 0 to 1.

    Examples:
        >>> HorizontalFlip()
        HorizontalFlip(p=0.5)
    """

    n_blocks: ClassVar[int] = 1
    allowed_anywhere: ClassVar[bool] = True

    p: float = 0.5

    def apply(self, geometry: CropGeometry, draws: Draws) -> None:
        geometry.flip(self.flipped(draws))

    def flipped(self, draws: Draws) -> Flags:
        """Returns a flag per sample: True if it is mirrored."""
        flipped: Flags = draws.values[0] < self.p
        return flipped
