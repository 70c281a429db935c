"""What a transform is to the plan, and what it leaves to do on the device: pixel operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, fields
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastload._plan import arguments
from fastload._plan.arguments import Fills, Size
from fastload._plan.geometry import CropGeometry, Flags, Floats
from fastload._plan.rng import Draws

if TYPE_CHECKING:
    from PIL import Image

Params = NDArray[np.float32]


# Arguments with one meaning in all transforms that have them.
_SHARED_ARGUMENTS: dict[str, Callable[[str, object], object]] = {
    "p": arguments.probability,
    "fill": arguments.image_fill,
    "mask_fill": arguments.mask_fill,
    "filter": arguments.resize_filter,
}


class Transform:
    """One entry of ``transform=``: immutable, compared and printed by its arguments."""

    __slots__ = ()

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]
    n_blocks: ClassVar[int] = 0  # each sample gets four random numbers per block

    def __post_init__(self) -> None:
        for each in fields(self):
            # Lists and NumPy numbers become plain values: the printed form is part of a run's state.
            value = _plain(getattr(self, each.name))
            object.__setattr__(self, each.name, value)
            if each.name in _SHARED_ARGUMENTS:
                _SHARED_ARGUMENTS[each.name](f"{type(self).__name__}: {each.name}", value)
        self.check()

    @property
    def fills(self) -> Fills:
        """Pixel values of padding, in images and in masks; None where any value is fine."""
        return None, None

    def check(self) -> None:
        """Raises ConfigError for invalid arguments, other than ``p``, ``filter`` and padding."""


class GeometricTransform(Transform):
    """Crops, resizes or mirrors. Those of a list together are one crop, one resize and one flip."""

    __slots__ = ()

    crops: ClassVar[bool] = False  # whether it may cut something off
    allowed_anywhere: ClassVar[bool] = False  # also after pixel operations and Normalize

    @property
    def pads(self) -> bool:
        """Whether it adds padding also to images that are large enough."""
        return False

    @property
    def resize_filter(self) -> str | None:
        """The filter it resizes with; None if it does not resize."""
        return None

    def apply(self, geometry: CropGeometry, draws: Draws, /) -> None:
        """Applies it to the geometry of a batch."""
        raise NotImplementedError

    def size_after(self, size: Size | None, /) -> Size | None:
        """Canvas size for the canvas size before it; None if it depends on the image."""
        return size


@dataclass(frozen=True, slots=True)
class PixelOp:
    """One operation on a float batch (n, c, h, w); row i of its parameters belongs to sample i.

    An operation is data. ``fastload._finish`` has the kernel that computes it, registered for the
    operation's class.
    """

    name: ClassVar[str]  # in printed rows
    n_params: ClassVar[int] = 1
    neutral: ClassVar[float] = 0.0  # the first parameter of samples that stay unmodified
    preserves_noops: ClassVar[bool] = True  # the kernel leaves such samples bit-identical
    moves_pixels: ClassVar[bool] = False  # then masks and labels move as well
    values_argument: ClassVar[str] = ""  # where the user states ``channel_values``

    @property
    def channel_values(self) -> tuple[float, ...]:
        """What it writes into pixels: one value, or one per channel; empty if nothing."""
        return ()

    @property
    def after_normalize(self) -> bool:
        """Whether it runs on normalized values."""
        return False

    def is_noop(self, params: Params) -> Flags:
        """Which samples it leaves unmodified."""
        unmodified: Flags = params[:, 0] == self.neutral
        return unmodified

    def preview(
        self, image: Image.Image, _params: tuple[float, ...], _fill: tuple[int, ...], /
    ) -> Image.Image:
        """The image as ``PlanRow.draw`` shows it; colors are shown unmodified."""
        return image


class OpContext(NamedTuple):
    """What an operation depends on besides its own transform."""

    fill: tuple[int, ...]  # pixel values of padding: one, or one per channel
    normalized: bool  # the transform follows Normalize


class PixelTransform(Transform):
    """Runs on the finished canvas, on the device, after all geometry, in the order of the list."""

    __slots__ = ()

    allowed_after_normalize: ClassVar[bool] = False

    def ops(self, context: OpContext, /) -> tuple[PixelOp, ...]:
        """What to run; raises ConfigError if it cannot stand at this place of the list."""
        raise NotImplementedError

    def check_canvas(self, canvas: Size, /) -> None:
        """Raises ConfigError for a canvas that it cannot work on."""


class ColorTransform(PixelTransform):
    """Changes pixel values and leaves every pixel where it is."""

    __slots__ = ()

    def draw_params(self, draws: Draws, canvas: Size, /) -> list[Floats]:
        """The parameters of all its operations, one (n,) column each."""
        raise NotImplementedError


class FormatTransform(Transform):
    """States what the finished batch looks like. Its position matters only to RandomErasing."""

    __slots__ = ()


def op_columns(ops: Sequence[PixelOp]) -> list[tuple[PixelOp, slice]]:
    """Each operation with its columns among the parameters of all."""
    ends = list(accumulate(op.n_params for op in ops))
    return [(op, slice(end - op.n_params, end)) for op, end in zip(ops, ends, strict=True)]


def _plain(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(_plain(each) for each in value) if isinstance(value, list | tuple) else value
