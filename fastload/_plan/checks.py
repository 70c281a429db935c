"""Arguments of transforms: what is accepted, and the sentence when it is not. Pure."""

from __future__ import annotations

import math

from fastload.errors import ConfigError

MAX_SIDE = 16_384  # as fastload._store.jpeg_header: no decoder makes more
Size = tuple[int, int]  # (height, width)


def whole(what: str, value: object, low: int, high: int = MAX_SIDE) -> int:
    """An int from low to high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(
            f"{what}: expected a whole number from {low} to {high}, found {value!r:.60}"
        )
    return value


def number(what: str, value: object, low: float, high: float) -> float:
    """A finite number from low to high."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not low <= value <= high
    ):
        raise ConfigError(
            f"{what}: expected a number from {low:g} to {high:g}, found {value!r:.60}"
        )
    return float(value)


def probability(what: str, value: object) -> float:
    """A number from 0 to 1."""
    return number(f"{what}: p", value, 0.0, 1.0)


def size_pair(what: str, value: object) -> Size:
    """(height, width); one number stands for a square."""
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise ConfigError(f"{what}: expected (height, width), found {value!r:.60}")
        return whole(f"{what}: height", value[0], 1), whole(f"{what}: width", value[1], 1)
    side = whole(f"{what}: size", value, 1)
    return side, side


def ordered(what: str, value: object, low: float, high: float) -> tuple[float, float]:
    """(from, to) with low <= from <= to <= high."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ConfigError(f"{what}: expected (from, to), found {value!r:.60}")
    first, last = number(what, value[0], low, high), number(what, value[1], low, high)
    if first > last:
        raise ConfigError(f"{what}: expected the smaller number first, found {value!r:.60}")
    return first, last


def levels(what: str, value: object) -> tuple[int, ...]:
    """A colour: one level 0..255 for all channels, or one for each channel; equal ones are one, which serves any number of channels."""
    if isinstance(value, list | tuple):
        if not 1 <= len(value) <= 4:
            raise ConfigError(
                f"{what}: expected one level, or one for each channel, found {value!r:.60}"
            )
        found = tuple(whole(what, each, 0, 255) for each in value)
        return found[:1] if len(set(found)) == 1 else found
    return (whole(what, value, 0, 255),)


def one_of(what: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raises ConfigError unless the value is one of the words."""
    if value not in allowed:
        raise ConfigError(
            f"{what}: expected one of {', '.join(map(repr, allowed))}, found {value!r:.60}"
        )
