"""Transforms that state what the finished batch looks like: dtype, units, layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fastload._plan import arguments
from fastload._plan.transform import FormatTransform, Transform
from fastload.errors import ConfigError

DTYPES = ("uint8", "float16", "bfloat16", "float32")
LAYOUTS = ("NCHW", "NHWC", "channels_last")

_Format = TypeVar("_Format", bound=FormatTransform)


@dataclass(frozen=True, slots=True)
class Normalize(FormatTransform):
    """Computes (pixel / 255 - mean) / std per channel; the batch becomes float32.

    Args:
        mean: In units of 0 to 1, as in torchvision: one number, or one per channel.
        std: In the same units, above 0.

    Raises:
        ConfigError: The numbers of values differ, or the values are not in units of 0 to 1.

    Example:
        >>> Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)).std
        (0.229, 0.224, 0.225)
    """

    mean: float | Sequence[float]
    std: float | Sequence[float]

    def check(self) -> None:
        mean = arguments.channel_values("Normalize: mean", self.mean)
        std = arguments.channel_values("Normalize: std", self.std)
        if len(mean) != len(std):
            raise ConfigError(f"Normalize: {len(mean)} means, but {len(std)} standard deviations")
        if min(std) <= 0:
            raise ConfigError(f"Normalize: std: expected numbers above 0, found {self.std!r:.60}")
        if max(mean + std) > 2:
            raise ConfigError(
                f"Normalize: mean {self.mean!r:.60}, std {self.std!r:.60}: expected units of 0..1; "
                "these look like pixel values, divide them by 255"
            )


@dataclass(frozen=True, slots=True)
class ToDtype(FormatTransform):
    """Sets the dtype of the batch; without it and Normalize the batch is uint8.

    Args:
        dtype: ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"uint8"``.
        scale: Floating point values are 0 to 1 if True, 0 to 255 if False.

    Raises:
        ConfigError: The dtype is not one of the four.

    Example:
        >>> ToDtype("float16")
        ToDtype(dtype='float16', scale=True)
    """

    dtype: str
    scale: bool = field(default=True, kw_only=True)

    def check(self) -> None:
        arguments.one_of("ToDtype", self.dtype, DTYPES)


@dataclass(frozen=True, slots=True)
class Layout(FormatTransform):
    """Sets the layout of the batch; without it the layout is ``"NCHW"``.

    Args:
        layout: ``"NCHW"``, ``"NHWC"``, or ``"channels_last"`` (NCHW in shape, NHWC in memory).

    Raises:
        ConfigError: The layout is not one of the three.

    Example:
        >>> Layout("channels_last")
        Layout(layout='channels_last')
    """

    layout: str

    def check(self) -> None:
        arguments.one_of("Layout", self.layout, LAYOUTS)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """value = (pixel value - mean) / std in float32, then rounded to the dtype.

    Mean and std are in units of 0 to 255: one number, or one per channel. With uint8 the mean is 0
    and the std 1: there is no arithmetic.
    """

    dtype: str = "uint8"
    layout: str = "NCHW"
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


def output_format(transforms: Sequence[Transform]) -> OutputFormat:
    """The format that a list of transforms states; raises ConfigError for a contradiction."""
    normalize = _only(transforms, Normalize)
    to_dtype = _only(transforms, ToDtype)
    layout = _only(transforms, Layout)
    dtype = "float32" if normalize else "uint8"
    scale = True
    if to_dtype:
        dtype = to_dtype.dtype
        scale = to_dtype.scale
    layout_name = layout.layout if layout else "NCHW"
    if normalize and dtype == "uint8":
        raise ConfigError(
            "transform: Normalize makes floating point, ToDtype('uint8') undoes it: "
            "remove one of the two"
        )
    if normalize and not scale:
        raise ConfigError(
            "transform: Normalize is in units of 0..1; it cannot follow ToDtype(scale=False)"
        )
    if normalize:
        mean = arguments.channel_values("Normalize: mean", normalize.mean)
        std = arguments.channel_values("Normalize: std", normalize.std)
        return OutputFormat(
            dtype,
            layout_name,
            tuple(255.0 * each for each in mean),
            tuple(255.0 * each for each in std),
        )
    std = (255.0,) if scale and dtype != "uint8" else (1.0,)
    return OutputFormat(dtype, layout_name, (0.0,), std)


def _only(transforms: Sequence[Transform], kind: type[_Format]) -> _Format | None:
    found = [transform for transform in transforms if isinstance(transform, kind)]
    if len(found) > 1:
        raise ConfigError(f"transform: {kind.__name__} is in the list twice; remove one")
    return found[0] if found else None
