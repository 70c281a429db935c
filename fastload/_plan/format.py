"""Transforms that set dtype, value range and layout of the finished batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fastload._plan import arguments
from fastload._plan.transform import FormatTransform, Transform
from fastload.errors import ConfigError

DTYPES = ("uint8", "uint16", "float16", "bfloat16", "float32")
_INTEGER_BITS = {"uint8": 8, "uint16": 16}
LAYOUTS = ("NCHW", "NHWC", "channels_last")

_Format = TypeVar("_Format", bound=FormatTransform)


@dataclass(frozen=True, slots=True)
class Normalize(FormatTransform):
    """Computes (pixel / 255 - mean) / std per channel; pixel / 65535 for 16-bit images.

    The batch becomes float32.

    Args:
        mean: Mean in the value range 0 to 1, as in torchvision: one number, or one per channel.
        std: Standard deviation in the same range, above 0: as many numbers as ``mean``.

    Raises:
        ConfigError: ``mean`` and ``std`` differ in length, ``std`` is not above 0, or the values
            appear to be pixel values.

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
                "range 0 to 1; divide pixel values by 255, or by 65535 if the images have 16 bits"
            )


@dataclass(frozen=True, slots=True)
class ToDtype(FormatTransform):
    """Sets the dtype of the batch.

    The default is uint8, uint16 for images of 16 bits, or float32 with Normalize.

    Args:
        dtype: ``"float32"``, ``"float16"``, ``"bfloat16"``, ``"uint8"`` or ``"uint16"``. With
            ``"uint8"``, images of 16 bits are reduced to their upper 8 bits after resizing. With
            ``"uint16"``, images of 8 bits are multiplied by 257, so that white stays white.
        scale: Value range of floating-point output: 0 to 1 if True; if False, 0 to 255, or 0 to
            65535 for images of 16 bits. Default True.

    Raises:
        ConfigError: The dtype is not one of the five.

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
    dtype. With uint8 and uint16 the mean is 0 and the std is 1.

    Args:
        dtype: ``"uint8"``, ``"uint16"``, ``"float16"``, ``"bfloat16"`` or ``"float32"``. Default
            ``"uint8"``.
        layout: ``"NCHW"``, ``"NHWC"`` or ``"channels_last"``. Default ``"NCHW"``.
        mean: In units of pixel values: one number, or one per channel. Default (0,).
        std: In the same units and length as ``mean``. Default (1,).
        bits: Depth of the pixel values, 8 (0 to 255) or 16 (0 to 65535). Default 8.

    Examples:
        >>> from fastload import transforms as T
        >>> T.compile([T.Normalize(0.5, 0.25)]).output
        OutputFormat(dtype='float32', layout='NCHW', mean=(127.5,), std=(63.75,), bits=8)
    """

    dtype: str = "uint8"
    layout: str = "NCHW"
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    bits: int = 8

    @property
    def white(self) -> float:
        """The largest pixel value, 255 or 65535."""
        return (1 << self.bits) - 1.0


def output_format(transforms: Sequence[Transform], bits: int) -> OutputFormat:
    """Returns the format that a list of transforms sets; raises ConfigError for a conflict.

    ``bits`` is the depth of the images. An integer dtype overrides it.
    """
    normalize = _only(transforms, Normalize)
    default = "float32" if normalize else f"uint{bits}"
    to_dtype = _only(transforms, ToDtype) or ToDtype(default)
    layout = _only(transforms, Layout) or Layout("NCHW")
    is_integer = to_dtype.dtype in _INTEGER_BITS
    output = OutputFormat(
        to_dtype.dtype, layout.layout, bits=_INTEGER_BITS.get(to_dtype.dtype, bits)
    )
    if output.bits == 16 and to_dtype.dtype == "float16" and not to_dtype.scale:
        raise ConfigError(
            "transform: ToDtype('float16', scale=False): float16 ends at 65504, but 16-bit images "
            "have values up to 65535; remove scale=False or use 'float32'"
        )
    if normalize is None:
        scaled = to_dtype.scale and not is_integer
        return replace(output, std=(output.white,)) if scaled else output
    if is_integer:
        raise ConfigError(
            f"transform: Normalize produces floating-point values, but ToDtype({to_dtype.dtype!r}) "
            f"requests {to_dtype.dtype}; remove one of the two"
        )
    if not to_dtype.scale:
        raise ConfigError(
            "transform: Normalize works on values from 0 to 1, but ToDtype(scale=False) requests "
            "pixel values; remove scale=False"
        )
    mean, std = (
        tuple(output.white * each for each in arguments.channel_values("Normalize", values))
        for values in (normalize.mean, normalize.std)
    )
    return replace(output, mean=mean, std=std)


def _only(transforms: Sequence[Transform], kind: type[_Format]) -> _Format | None:
    found = [transform for transform in transforms if isinstance(transform, kind)]
    if len(found) > 1:
        raise ConfigError(f"transform: {kind.__name__} is in the list twice; remove one")
    return found[0] if found else None
