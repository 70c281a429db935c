"""What a transform is to the plan: geometry (done while decoding), colour (done on the device), or the output's format. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from itertools import accumulate
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fastload._plan.checks import Size
from fastload._plan.geometry import Floats, Views
from fastload._plan.rng import Draws

StepKind = Literal[
    "brightness", "contrast", "saturation", "hue", "gray", "blur", "erase", "affine", "upside_down"
]


class Transform:
    """One entry of ``transform=``; immutable, compared and printed by its arguments."""

    __slots__ = ()

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]
    blocks: ClassVar[int] = (
        0  # how many times four random numbers each sample needs; 0 = nothing is drawn
    )

    def __post_init__(self) -> None:
        for each in fields(
            self
        ):  # lists and numpy's numbers too become plain: the printed form is part of a run's state
            object.__setattr__(self, each.name, _plain(getattr(self, each.name)))
        self.check()

    def check(self) -> None:
        """Raises ConfigError for arguments that make no sense."""


class Geometric(Transform):
    """Moves pixels. All of a list's geometry becomes one crop, one resize and one flip."""

    __slots__ = ()

    crops: ClassVar[bool] = False  # whether it may cut something off

    @property
    def pads(self) -> bool:
        """Whether padding is to be expected behind it, also for images that are large enough."""
        return False

    @property
    def fills(self) -> tuple[tuple[int, ...] | None, int | None]:
        """Levels of padding, in images and in masks; None = it does not mind."""
        return None, None

    @property
    def resizes_by(self) -> str:
        """The filter it resizes with; empty = it does not resize."""
        return ""

    def apply(self, views: Views, draws: Draws, /) -> None:
        """Does it to the views of a batch."""
        raise NotImplementedError

    def size_after(self, size: Size | None, /) -> Size | None:
        """The canvas behind it, for the canvas before it; None = not known before the image is."""
        return size


@dataclass(frozen=True, slots=True)
class Step:
    """One thing done to the pixels of a batch on the device; its parameters are ``width`` columns, one row a sample."""

    kind: StepKind
    width: int = 1
    kernel: int = 0  # blur: side of the kernel in pixels
    value: tuple[float, ...] = ()  # erase, affine: what is written, for all channels or for each
    after_normalize: bool = False  # erase: the value is in normalised units


class OnDevice(Transform):
    """Done to the finished canvas, after all geometry, in the order of the list: colours and warps."""

    __slots__ = ()

    def steps(self) -> tuple[Step, ...]:
        """What is to be done on the device."""
        raise NotImplementedError


class Photometric(OnDevice):
    """Changes colours."""

    __slots__ = ()

    def parameters(self, draws: Draws, canvas: Size, /) -> list[NDArray[np.float64]]:
        """The columns, (n,) each, of all its steps together."""
        raise NotImplementedError


class Format(Transform):
    """Says what the finished batch looks like; its place among the others does not matter, but for RandomErasing."""

    __slots__ = ()


def step_columns(steps: Sequence[Step]) -> list[tuple[Step, slice]]:
    """Each step with its columns among the parameters of all."""
    ends = list(accumulate(step.width for step in steps))
    return [(step, slice(end - step.width, end)) for step, end in zip(steps, ends, strict=True)]


def pair(width: float, height: float) -> Floats:
    """(2, 1): across and down, to be combined with the arrays of Views."""
    return np.array([[width], [height]], np.float64)


def _plain(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(_plain(each) for each in value) if isinstance(value, list | tuple) else value
