"""What the finished batch looks like: numbers, units, layout. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fastload._plan import checks
from fastload._plan.base import Format, Transform
from fastload.errors import ConfigError

DTYPES = ("uint8", "float16", "bfloat16", "float32")
LAYOUTS = ("NCHW", "NHWC", "channels_last")


@dataclass(frozen=True, slots=True)
class Normalize(Format):
    """(pixel / 255 - mean) / std for each channel: mean and std are in units of 0..1, as in torchvision."""

    mean: float | Sequence[float]
    std: float | Sequence[float]

    def check(self) -> None:
        """What the signature cannot say."""
        mean, std = _channels("Normalize: mean", self.mean), _channels("Normalize: std", self.std)
        if len(mean) != len(std):
            raise ConfigError(f"Normalize: {len(mean)} means, but {len(std)} standard deviations")
        if min(std) <= 0:
            raise ConfigError(f"Normalize: std: expected numbers above 0, found {self.std!r:.60}")
        if max(mean + std) > 2:
            raise ConfigError(
                f"Normalize: mean {self.mean!r:.60}, std {self.std!r:.60}: expected units of 0..1; "
                "these look like levels, divide them by 255"
            )

    def levels(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and std in levels, 0..255."""
        return (
            tuple(255.0 * each for each in _channels("Normalize: mean", self.mean)),
            tuple(255.0 * each for each in _channels("Normalize: std", self.std)),
        )


@dataclass(frozen=True, slots=True)
class ToDtype(Format):
    """``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"uint8"``; floating point is 0..1, or 0..255 with ``scale=False``."""

    dtype: str
    scale: bool = field(default=True, kw_only=True)

    def check(self) -> None:
        """What the signature cannot say."""
        checks.one_of("ToDtype", self.dtype, DTYPES)


@dataclass(frozen=True, slots=True)
class Layout(Format):
    """``"NCHW"`` (torch's), ``"NHWC"``, or ``"channels_last"``: NCHW in shape, NHWC in memory."""

    layout: str

    def check(self) -> None:
        """What the signature cannot say."""
        checks.one_of("Layout", self.layout, LAYOUTS)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """value = (level - mean) / std in float32, then rounded to the dtype; mean and std in levels, one or one a channel.

    With uint8 there is no arithmetic: mean is 0 and std 1.
    """

    dtype: str = "uint8"
    layout: str = "NCHW"
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


def output_format(transforms: Sequence[Transform]) -> OutputFormat:
    """What a list of transforms says about it; raises ConfigError where it contradicts itself."""
    formats = [transform for transform in transforms if isinstance(transform, Format)]
    for kind in (Normalize, ToDtype, Layout):
        if sum(isinstance(transform, kind) for transform in formats) > 1:
            raise ConfigError(f"transform: {kind.__name__} stands twice in the list; leave one")
    found = {type(transform): transform for transform in formats}
    normalize, to_dtype, layout = found.get(Normalize), found.get(ToDtype), found.get(Layout)
    dtype = to_dtype.dtype if isinstance(to_dtype, ToDtype) else "float32" if normalize else "uint8"
    scale = to_dtype.scale if isinstance(to_dtype, ToDtype) else True
    if normalize and dtype == "uint8":
        raise ConfigError(
            "transform: Normalize makes floating point, ToDtype('uint8') undoes it: remove one of the two"
        )
    if normalize and not scale:
        raise ConfigError(
            "transform: Normalize is in units of 0..1; it cannot follow ToDtype(scale=False)"
        )
    name = layout.layout if isinstance(layout, Layout) else "NCHW"
    if isinstance(normalize, Normalize):
        mean, std = normalize.levels()
        return OutputFormat(dtype, name, mean, std)
    return OutputFormat(dtype, name, (0.0,), (255.0,) if scale and dtype != "uint8" else (1.0,))


def _channels(what: str, value: object) -> tuple[float, ...]:
    values = value if isinstance(value, list | tuple) else (value,)
    if not 1 <= len(values) <= 4:
        raise ConfigError(
            f"{what}: expected one number, or one for each channel, found {value!r:.60}"
        )
    return tuple(checks.number(what, each, -1e4, 1e4) for each in values)
