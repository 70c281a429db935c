"""Transforms that set dtype, value range and layout of the finished batch."""

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
    """Computes (pixel / 255 - mean) / std per channel. The batch becomes float32.

    Args:
        mean: Mean in the value range 0 to 1, as in torchvision: one number, or one per channel.
        std: Standard deviation in the same range, above 0: as many numbers as ``mean``.

    Raises:
        ConfigError: ``mean`` and ``std`` differ in length, ``std`` is not above 0, or the values
            appear to be in the range 0 to 255.

    Examples:
        >>> Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)).std
        (0.229, 0.224, 0.225)
    """

    mean: float | Sequence[float]
    std: float | Sequence[float]

    def check(self) -> None:
        mean = arguments.channel_values("Normalize: mean", self.mean)
        std = arguments.channel_values("Normalize: std", self.std)
        if len(mean) != len(std):
            raise ConfigError(
                f"Normalize: expected as many values in std as in mean ({len(mean)}), "
                f"found {len(std)}"
            )
        if min(std) <= 0:
            raise ConfigError(f"Normalize: std: expected numbers above 0, found {self.std!r:.60}")
        if max(mean + std) > 2:
            raise ConfigError(
                f"Normalize: mean={self.mean!r:.60}, std={self.std!r:.60}: expected values in the "
                "range 0 to 1; divide pixel values by 255"
            )


@dataclass(frozen=True, slots=True)
class ToDtype(FormatTransform):
    """Sets the dtype of the batch. The default is uint8, or float32 with Normalize.

    Args:
        dtype: ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"uint8"``.
        scale: Value range of floating-point output: 0 to 1 if True, 0 to 255 if False. Default
            True.

    Raises:
        ConfigError: The dtype is not one of the four.

    Examples:
        >>> ToDtype("float16")
        ToDtype(dtype='float16', scale=True)
    """

    dtype: str
    scale: bool = field(default=True, kw_only=True)

    def check(self) -> None:
        arguments.one_of("ToDtype", self.dtype, DTYPES)


@dataclass(frozen=True, slots=True)
class Layout(FormatTransform):
    """Sets the memory layout of the batch. The default is ``"NCHW"``.

    Args:
        layout: ``"NCHW"``, ``"NHWC"``, or ``"channels_last"`` (NCHW in shape, NHWC in memory).

    Raises:
        ConfigError: The layout is not one of the three.

    Examples:
        >>> Layout("channels_last")
        Layout(layout='channels_last')
    """

    layout: str

    def check(self) -> None:
        arguments.one_of("Layout", self.layout, LAYOUTS)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Dtype, layout and normalization of a batch, as ``FieldPlan.output`` reports them.

    A floating-point value is (pixel value - mean) / std, computed in float32 and rounded to the
    dtype. With uint8 the mean is 0 and the std is 1.

    Args:
        dtype: ``"uint8"``, ``"float16"``, ``"bfloat16"`` or ``"float32"``. Default ``"uint8"``.
        layout: ``"NCHW"``, ``"NHWC"`` or ``"channels_last"``. Default ``"NCHW"``.
        mean: In units of pixel values, 0 to 255: one number, or one per channel. Default (0,).
        std: In the same units and length as ``mean``. Default (1,).

    Examples:
        >>> from fastload import transforms as T
        >>> T.compile([T.Normalize(0.5, 0.25)]).output
        OutputFormat(dtype='float32', layout='NCHW', mean=(127.5,), std=(63.75,))
    """

    dtype: str = "uint8"
    layout: str = "NCHW"
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


def output_format(transforms: Sequence[Transform]) -> OutputFormat:
    """Returns the format that a list of transforms sets; raises ConfigError for a conflict."""
    normalize = _only(transforms, Normalize)
    to_dtype = _only(transforms, ToDtype) or ToDtype("float32" if normalize else "uint8")
    layout = _only(transforms, Layout) or Layout("NCHW")
    if normalize is None:
        white = 255.0 if to_dtype.scale and to_dtype.dtype != "uint8" else 1.0
        return OutputFormat(to_dtype.dtype, layout.layout, std=(white,))
    if to_dtype.dtype == "uint8":
        raise ConfigError(
            "transform: Normalize produces floating-point values, but ToDtype('uint8') requests "
            "uint8; remove one of the two"
        )
    if not to_dtype.scale:
        raise ConfigError(
            "transform: Normalize works on values from 0 to 1, but ToDtype(scale=False) requests "
            "0 to 255; remove scale=False"
        )
    mean, std = (
        tuple(255.0 * each for each in arguments.channel_values("Normalize", values))
        for values in (normalize.mean, normalize.std)
    )
    return OutputFormat(to_dtype.dtype, layout.layout, mean, std)


def _only(transforms: Sequence[Transform], kind: type[_Format]) -> _Format | None:
    found = [transform for transform in transforms if isinstance(transform, kind)]
    if len(found) > 1:
        raise ConfigError(f"transform: {kind.__name__} is in the list twice; remove one")
    return found[0] if found else None
