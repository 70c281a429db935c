"""Base classes of the transforms, and the pixel operations that run on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, fields
from functools import partial
from itertools import accumulate
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastload._plan import arguments
from fastload._plan.arguments import Size
from fastload._plan.geometry import CropGeometry, Flags, Floats
from fastload._plan.rng import Draws

Params = NDArray[np.float32]


# Checks of the arguments that mean the same in every transform.
_SHARED_ARGUMENTS: dict[str, Callable[[str, object], object]] = {
    "p": partial(arguments.number, low=0.0, high=1.0),
    "fill": arguments.image_fill,
    "mask_fill": arguments.mask_fill,
    "filter": partial(arguments.one_of, allowed=arguments.FILTERS),
}


class Transform:
    """Base class of all transforms. A transform is immutable and compares by its arguments.

    Subclasses are frozen dataclasses: the arguments of a transform are its fields.

    Examples:
        >>> from fastload import transforms as T
        >>> T.HorizontalFlip(0.5) == T.HorizontalFlip(p=0.5)
        True
        >>> isinstance(T.HorizontalFlip(), T.Transform)
        True
    """

    __slots__ = ()

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]
    n_blocks: ClassVar[int] = 0  # each sample gets four random numbers per block
    # Pixel values of padding in images and in masks; None if the transform does not set them.
    fill: int | Sequence[int] | None = None
    default_fill: ClassVar[int | None] = None  # if fill is None, for 8-bit images
    mask_fill: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            # Convert lists and NumPy numbers to plain values: a checkpoint contains the repr.
            value = _plain(getattr(self, each.name))
            object.__setattr__(self, each.name, value)
            if each.name in _SHARED_ARGUMENTS:
                _SHARED_ARGUMENTS[each.name](f"{type(self).__name__}: {each.name}", value)
        self.check()

    def check(self) -> None:
        """Raises ConfigError for invalid arguments that ``_SHARED_ARGUMENTS`` does not cover."""


class GeometricTransform(Transform):
    """Crops, resizes or mirrors. All of them in a list become one crop, one resize and one flip."""

    __slots__ = ()

    crops: ClassVar[bool] = False  # can remove a part of the image
    allowed_anywhere: ClassVar[bool] = False  # can follow pixel operations and Normalize
    filter: str | None = None  # None if the transform does not resize

    @property
    def pads(self) -> bool:
        """Whether it can add padding to an image that is larger than its output."""
        return False

    def apply(self, geometry: CropGeometry, draws: Draws, /) -> None:
        """Updates the geometry of a batch."""
        raise NotImplementedError

    def size_after(self, size: Size | None, /) -> Size | None:
        """Returns the canvas size after the transform, or None if it depends on the image."""
        return size


@dataclass(frozen=True, slots=True)
class PixelOp:
    """One operation on a float batch (n, c, h, w). Row i of its parameters belongs to sample i.

    An operation is data only. ``fastload._finish`` registers the kernel that computes it by the
    name of the operation. ``PlanRow.ops`` contains the operations of a sample.

    Args:
        name: Name of the operation, as in printed rows.
        neutral: Parameters of a sample that stays unmodified.
        preserves_noops: Whether the kernel leaves such a sample bit-identical. Default True.
        moves_pixels: Whether masks and labels must move, too. Default False.
        channel_values: The constant it writes into pixels, single or per channel; empty if there
            is none. Default ().
        values_argument: The argument of the transform that sets ``channel_values``. Default "".
        after_normalize: Whether it runs on normalized values. Default False.
        kernel: Side of the kernel of a blur in pixels. Default 0.
        white: The largest pixel value, 255 or 65535; larger results are clipped. Default 255.

    Examples:
        >>> from fastload import transforms as T
        >>> [op.name for op in T.compile([T.ColorJitter(0.4, hue=0.1)]).ops]
        ['brightness', 'hue']
    """

    name: str
    neutral: tuple[float, ...]
    preserves_noops: bool = True
    moves_pixels: bool = False
    channel_values: tuple[float, ...] = ()
    values_argument: str = ""
    after_normalize: bool = False
    kernel: int = 0
    white: float = 255.0

    @property
    def n_params(self) -> int:
        """The number of parameters per sample."""
        return len(self.neutral)

    def is_noop(self, params: Params) -> Flags:
        """Returns a flag per sample: True if the operation leaves the sample unmodified."""
        return np.asarray(np.equal(params, self.neutral).all(axis=1))


class OpContext(NamedTuple):
    """Facts about the whole list of transforms that an operation depends on."""

    fill: tuple[int, ...]  # pixel value of padding, single or per channel
    normalized: bool  # the transform follows Normalize
    white: float = 255.0  # the largest pixel value


class PixelTransform(Transform):
    """Runs on the device after cropping and resizing, in the order of the list."""

    __slots__ = ()

    allowed_after_normalize: ClassVar[bool] = False

    def ops(self, context: OpContext, /) -> tuple[PixelOp, ...]:
        """Returns the operations to run; raises ConfigError at an invalid place in the list."""
        raise NotImplementedError

    def check_canvas(self, canvas: Size, /) -> None:
        """Raises ConfigError if the output size (height, width) is not supported."""


class ColorTransform(PixelTransform):
    """Changes pixel values; the pixels do not move."""

    __slots__ = ()

    def draw_params(self, draws: Draws, canvas: Size, /) -> list[Floats]:
        """Returns the parameters of all its operations as (n,) columns."""
        raise NotImplementedError


class FormatTransform(Transform):
    """Sets dtype, value range or layout of the finished batch.

    The position in the list matters only for RandomErasing, which can follow Normalize.
    """

    __slots__ = ()


def op_columns(ops: Sequence[PixelOp]) -> list[tuple[PixelOp, slice]]:
    """Pairs each operation with its columns in ``PlanRows.parameters``."""
    ends = list(accumulate(op.n_params for op in ops))
    return [(op, slice(end - op.n_params, end)) for op, end in zip(ops, ends, strict=True)]


def _plain(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(_plain(each) for each in value) if isinstance(value, list | tuple) else value
