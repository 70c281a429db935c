"""Transforms that move pixels, in the user's words. Sizes are (height, width), as in torchvision. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fastload._plan import checks
from fastload._plan.base import Geometric, pair
from fastload._plan.boxes import random_boxes
from fastload._plan.checks import Size
from fastload._plan.geometry import Floats, Views
from fastload._plan.rng import Draws
from fastload.errors import ConfigError

FILTERS = ("antialias", "bilinear", "nearest")  # numbered as in native/pixels/taps.h


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(Geometric):
    """A random box of ``scale`` of the area and ``ratio`` (width / height), resized to ``size``.

    torchvision's algorithm (ten tries, then the centre), with numbers that belong to the sample.
    """

    blocks: ClassVar[int] = (
        5  # 1 in 1000 crops of 4:3 photographs needs a sixth try: drawn only for those
    )
    crops: ClassVar[bool] = True

    size: int | Sequence[int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    filter: str = field(default="antialias", kw_only=True)

    def check(self) -> None:
        """What the signature cannot say."""
        checks.size_pair("RandomResizedCrop", self.size)
        checks.ordered("RandomResizedCrop: scale", self.scale, 1e-6, 1.0)
        checks.ordered("RandomResizedCrop: ratio", self.ratio, 1e-3, 1e3)
        checks.one_of("RandomResizedCrop: filter", self.filter, FILTERS)

    @property
    def resizes_by(self) -> str:
        """As the user says."""
        return self.filter

    def size_after(self, _: Size | None) -> Size | None:
        """Always ``size``."""
        return checks.size_pair("RandomResizedCrop", self.size)

    def apply(self, views: Views, draws: Draws) -> None:
        """Ten tries; then the largest centred box whose ratio is allowed."""
        offset, extent, found = random_boxes(
            views.size, draws, skip=0, scale=self.scale, ratio=self.ratio
        )
        if not found.all():
            left = np.flatnonzero(~found)
            offset[:, left], extent[:, left] = _centred(views.size[:, left], self.ratio)
        height, width = checks.size_pair("RandomResizedCrop", self.size)
        views.crop(offset, extent, by="RandomResizedCrop")
        views.resize(pair(width, height))


@dataclass(frozen=True, slots=True)
class Resize(Geometric):
    """Stretches to ``height`` x ``width``; or keeps the ratio and makes the ``shorter`` or the ``longer`` side that long."""

    height: int | Sequence[int] | None = None
    width: int | None = None
    shorter: int | None = field(default=None, kw_only=True)
    longer: int | None = field(default=None, kw_only=True)
    filter: str = field(default="antialias", kw_only=True)

    def check(self) -> None:
        """What the signature cannot say."""
        sides = {"shorter": self.shorter, "longer": self.longer}
        for name, value in sides.items():
            if value is not None:
                checks.whole(f"Resize: {name}", value, 1)
        stretched = self.height is not None or self.width is not None
        if stretched + sum(value is not None for value in sides.values()) != 1:
            raise ConfigError(
                "Resize: expected Resize(height, width), Resize(shorter=...) or Resize(longer=...), one of them"
            )
        if stretched:
            self._stretched()
        checks.one_of("Resize: filter", self.filter, FILTERS)

    def _stretched(self) -> Size:
        if isinstance(self.height, list | tuple) and self.width is None:
            return checks.size_pair("Resize", self.height)
        if self.height is None or self.width is None:
            side = self.height or self.width
            raise ConfigError(
                f"Resize: expected both height and width; Resize(shorter={side}) keeps the ratio"
            )
        return checks.size_pair("Resize", (self.height, self.width))

    @property
    def resizes_by(self) -> str:
        """As the user says."""
        return self.filter

    def size_after(self, size: Size | None) -> Size | None:
        """Known for a stretch; otherwise where the size before is."""
        if self.height is not None:
            return self._stretched()
        if size is None:
            return None
        width, height = self._target(pair(size[1], size[0])).ravel().astype(int).tolist()
        return height, width

    def apply(self, views: Views, _: Draws) -> None:
        """One resize."""
        views.resize(self._target(views.size))

    def _target(self, size: Floats) -> Floats:
        if self.height is not None:
            height, width = self._stretched()
            return pair(width, height)
        if self.shorter is not None:  # the other side is cut to a whole number, as torchvision does
            return _at_least_1(np.floor(self.shorter * size / size.min(axis=0)))
        return _at_least_1(np.floor((self.longer or 0) * size / size.max(axis=0) + 0.5))


@dataclass(frozen=True, slots=True)
class Letterbox(Geometric):
    """The whole image as large as fits into ``height`` x ``width``, ratio kept; the rest is filled with a level.

    ``upscale=False`` leaves small images as they are. ``align`` is ``"center"`` or ``"top-left"``.
    """

    height: int | Sequence[int]
    width: int | None = None
    fill: int | Sequence[int] = field(default=114, kw_only=True)
    mask_fill: int | None = field(default=None, kw_only=True)
    upscale: bool = field(default=True, kw_only=True)
    align: str = field(default="center", kw_only=True)
    filter: str = field(default="antialias", kw_only=True)

    def check(self) -> None:
        """What the signature cannot say."""
        self._target()
        checks.levels("Letterbox: fill", self.fill)
        if self.mask_fill is not None:
            checks.whole("Letterbox: mask_fill", self.mask_fill, 0, 65_535)
        checks.one_of("Letterbox: align", self.align, ("center", "top-left"))
        checks.one_of("Letterbox: filter", self.filter, FILTERS)

    def _target(self) -> Size:
        return checks.size_pair(
            "Letterbox", self.height if self.width is None else (self.height, self.width)
        )

    @property
    def pads(self) -> bool:
        """Unless the image happens to have the ratio."""
        return True

    @property
    def fills(self) -> tuple[tuple[int, ...] | None, int | None]:
        """As the user says."""
        return checks.levels("Letterbox: fill", self.fill), self.mask_fill

    @property
    def resizes_by(self) -> str:
        """As the user says."""
        return self.filter

    def size_after(self, _: Size | None) -> Size | None:
        """Always the box."""
        return self._target()

    def apply(self, views: Views, _: Draws) -> None:
        """One resize; an odd pixel of padding goes right and below."""
        height, width = self._target()
        canvas = pair(width, height)
        scale = (canvas / views.size).min(axis=0)
        if not self.upscale:
            scale = np.minimum(scale, 1.0)
        target = np.clip(np.floor(views.size * scale + 0.5), 1, canvas)
        views.resize(target)
        views.place(
            np.floor((canvas - target) / 2) if self.align == "center" else np.zeros_like(target),
            canvas,
        )


def _centred(sizes: Floats, ratio: tuple[float, float]) -> tuple[Floats, Floats]:
    """What torchvision falls back to: the whole image, or the centre of it where its ratio is not allowed."""
    extent = np.stack(
        [
            np.minimum(sizes[0], np.rint(sizes[1] * ratio[1])),
            np.minimum(sizes[1], np.rint(sizes[0] / ratio[0])),
        ]
    )
    extent = _at_least_1(extent)
    return np.floor((sizes - extent) / 2), extent


def _at_least_1(size: Floats) -> Floats:
    return np.maximum(size, 1.0)
