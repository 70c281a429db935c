"""Transforms that cut or mirror without resizing. Sizes are (height, width), as in torchvision. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fastload._plan import checks
from fastload._plan.base import Geometric, pair
from fastload._plan.checks import Size
from fastload._plan.geometry import Floats, Views
from fastload._plan.rng import Draws
from fastload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Crop(Geometric):
    """Cuts off the sides: pixels where the number is an int, a share of the side where it is a float below 1.

    ``Crop(top=0.3)`` cuts the sky off.
    """

    crops: ClassVar[bool] = True

    top: float = field(default=0, kw_only=True)
    bottom: float = field(default=0, kw_only=True)
    left: float = field(default=0, kw_only=True)
    right: float = field(default=0, kw_only=True)

    def check(self) -> None:
        """What the signature cannot say."""
        sides = {name: getattr(self, name) for name in ("top", "bottom", "left", "right")}
        for name, value in sides.items():
            if isinstance(value, int):
                checks.whole(f"Crop: {name} in pixels", value, 0)
            elif checks.number(f"Crop: {name} as a share", value, 0.0, 1.0) == 1.0:
                raise ConfigError(
                    f"Crop: {name}=1.0 is the whole image; a share must be below 1, one pixel is {name}=1"
                )
        if not any(sides.values()):
            raise ConfigError(
                "Crop: expected at least one of top, bottom, left, right, e.g. Crop(top=0.3)"
            )
        for one, other in (("top", "bottom"), ("left", "right")):
            if (
                sum(value for value in (sides[one], sides[other]) if not isinstance(value, int))
                >= 1.0
            ):
                raise ConfigError(
                    f"Crop: {one}={sides[one]} and {other}={sides[other]} leave nothing"
                )

    def size_after(self, size: Size | None) -> Size | None:
        """Known where the size before is; raises ConfigError where that is less than is cut off."""
        if size is None:
            return None
        width, height = self._window(pair(size[1], size[0]))[1].ravel().astype(int).tolist()
        if min(width, height) < 1:
            raise ConfigError(
                f"transform: {self} leaves nothing of the {size[0]}x{size[1]} (height x width) pixels that it gets"
            )
        return height, width

    def apply(self, views: Views, _: Draws) -> None:
        """A window of whole canvas pixels."""
        offset, size = self._window(views.size)
        views.crop(offset, size, by=str(self))

    def _window(self, size: Floats) -> tuple[Floats, Floats]:
        first = np.stack([_pixels(self.left, size[0]), _pixels(self.top, size[1])])
        last = np.stack([_pixels(self.right, size[0]), _pixels(self.bottom, size[1])])
        return first, size - last - first


@dataclass(frozen=True, slots=True)
class CenterCrop(Geometric):
    """The middle; an image smaller than ``size`` is padded with ``fill`` all around."""

    crops: ClassVar[bool] = True

    size: int | Sequence[int]
    fill: int | Sequence[int] | None = field(default=None, kw_only=True)
    mask_fill: int | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """What the signature cannot say."""
        _check_fills("CenterCrop", self.size, self.fill, self.mask_fill)

    @property
    def fills(self) -> tuple[tuple[int, ...] | None, int | None]:
        """As the user says."""
        return (
            None if self.fill is None else checks.levels("CenterCrop: fill", self.fill)
        ), self.mask_fill

    def size_after(self, _: Size | None) -> Size | None:
        """Always ``size``."""
        return checks.size_pair("CenterCrop", self.size)

    def apply(self, views: Views, _: Draws) -> None:
        """Halves as torchvision rounds them: to even when cutting, down when padding."""
        height, width = checks.size_pair("CenterCrop", self.size)
        target = pair(width, height)
        room = views.size - target
        views.crop(
            np.where(room < 0, np.ceil(room / 2), np.rint(room / 2)), target, by="CenterCrop"
        )


@dataclass(frozen=True, slots=True)
class RandomCrop(Geometric):
    """A random place; ``pad`` pixels of ``fill`` are put around the image before (CIFAR's ``RandomCrop(32, pad=4)``).

    An image smaller than ``size`` lies at a random place in padding.
    """

    blocks: ClassVar[int] = 1
    crops: ClassVar[bool] = True

    size: int | Sequence[int]
    pad: int = field(default=0, kw_only=True)
    fill: int | Sequence[int] | None = field(default=None, kw_only=True)
    mask_fill: int | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """What the signature cannot say."""
        height, width = _check_fills("RandomCrop", self.size, self.fill, self.mask_fill)
        checks.whole("RandomCrop: pad", self.pad, 0)
        if self.pad >= min(height, width):
            raise ConfigError(
                f"RandomCrop: pad={self.pad} with size {height}x{width}: a crop could hold nothing but padding; "
                f"at most {min(height, width) - 1}"
            )

    @property
    def pads(self) -> bool:
        """Where the user says so."""
        return self.pad > 0

    @property
    def fills(self) -> tuple[tuple[int, ...] | None, int | None]:
        """As the user says."""
        return (
            None if self.fill is None else checks.levels("RandomCrop: fill", self.fill)
        ), self.mask_fill

    def size_after(self, _: Size | None) -> Size | None:
        """Always ``size``."""
        return checks.size_pair("RandomCrop", self.size)

    def apply(self, views: Views, draws: Draws) -> None:
        """Each whole offset between the two extremes is equally likely."""
        height, width = checks.size_pair("RandomCrop", self.size)
        target = pair(width, height)
        room = views.size + 2 * self.pad - target  # below 0: the image is the smaller one
        offset = np.minimum(room, 0) + np.floor(draws.values[:2] * (np.abs(room) + 1)) - self.pad
        views.crop(offset, target, by="RandomCrop")


@dataclass(frozen=True, slots=True)
class HorizontalFlip(Geometric):
    """Mirrors left and right with probability ``p``; it may stand anywhere in the list."""

    blocks: ClassVar[int] = 1

    p: float = 0.5

    def check(self) -> None:
        """What the signature cannot say."""
        checks.probability("HorizontalFlip", self.p)

    def apply(self, views: Views, draws: Draws) -> None:
        """Those that ``which`` says."""
        views.flip(self.which(draws))

    def which(self, draws: Draws) -> NDArray[np.bool_]:
        """Where the number is below p."""
        flipped: NDArray[np.bool_] = draws.values[0] < self.p
        return flipped


def _pixels(amount: float, side: Floats) -> Floats:
    return np.full_like(side, amount) if isinstance(amount, int) else np.floor(amount * side + 0.5)


def _check_fills(what: str, size: object, fill: object, mask_fill: object) -> Size:
    if fill is not None:
        checks.levels(f"{what}: fill", fill)
    if mask_fill is not None:
        checks.whole(f"{what}: mask_fill", mask_fill, 0, 65_535)
    return checks.size_pair(what, size)
