"""Checks of transform arguments. Each returns a normalized value or raises ConfigError."""

from __future__ import annotations

import math

from fastload.errors import ConfigError

MAX_SIDE = 16_384  # same limit as fastload._store.jpeg_header: no decoder produces more
FILTERS = ("antialias", "bilinear", "nearest")  # numbered as in native/pixels/taps.h

Size = tuple[int, int]  # (height, width)
Range = tuple[float, float]


def whole(what: str, value: object, low: int, high: int = MAX_SIDE) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(
            f"{what}: expected a whole number from {low} to {high}, found {value!r:.60}"
        )
    return value


def number(what: str, value: object, low: float, high: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type,operator]
        raise ConfigError(
            f"{what}: expected a number from {low:g} to {high:g}, found {value!r:.60}"
        )
    return float(value)  # type: ignore[arg-type]


def size_pair(what: str, value: object) -> Size:
    """Returns (height, width). One number means a square."""
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise ConfigError(f"{what}: expected (height, width), found {value!r:.60}")
        return whole(f"{what}: height", value[0], 1), whole(f"{what}: width", value[1], 1)
    side = whole(f"{what}: size", value, 1)
    return side, side


def ordered(what: str, value: object, low: float, high: float) -> Range:
    """Checks a pair (from, to) with low <= from <= to <= high."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ConfigError(f"{what}: expected (from, to), found {value!r:.60}")
    first = number(what, value[0], low, high)
    last = number(what, value[1], low, high)
    if first > last:
        raise ConfigError(f"{what}: expected the smaller number first, found {value!r:.60}")
    return first, last


def symmetric(what: str, value: object, most: float) -> Range:
    """Converts a number ``a`` to the range (-a, a). A pair is the range itself."""
    if isinstance(value, list | tuple):
        return ordered(what, value, -most, most)
    most = number(what, value, 0.0, most)
    return -most, most


def factors(what: str, amount: object) -> Range:
    """Converts ``a`` to the range (max(0, 1 - a), 1 + a). A pair is the range itself."""
    if isinstance(amount, list | tuple):
        return ordered(what, amount, 0.0, 100.0)
    most = number(what, amount, 0.0, 100.0)
    return max(0.0, 1.0 - most), 1.0 + most


def channel_values(what: str, value: object) -> tuple[float, ...]:
    """Checks one number for all channels, or one number per channel."""
    values = value if isinstance(value, list | tuple) else (value,)
    if not 1 <= len(values) <= 4:
        raise ConfigError(f"{what}: expected one number, or one per channel, found {value!r:.60}")
    return tuple(number(what, each, -65_535, 65_535) for each in values)


def image_fill(what: str, value: object) -> tuple[int, ...] | None:
    """Checks one pixel value, 0 to 65535, or one per channel. Equal values become one."""
    if value is None:
        return None
    values = value if isinstance(value, list | tuple) else (value,)
    if not 1 <= len(values) <= 4:
        raise ConfigError(
            f"{what}: expected one pixel value, or one per channel, found {value!r:.60}"
        )
    found = tuple(whole(what, each, 0, 65_535) for each in values)
    return found[:1] if len(set(found)) == 1 else found


def mask_fill(what: str, value: object) -> int | None:
    return None if value is None else whole(what, value, 0, 65_535)


def one_of(what: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        expected = ", ".join(map(repr, allowed))
        raise ConfigError(f"{what}: expected one of {expected}, found {value!r:.60}")
