"""Tileable textures of grass, cloth, wood, foliage and others, created once per process.

Every texture is a float32 square of side SIDE that repeats without a seam, with mean 0 and standard
deviation 1. Noise of 1920x1280 by FFT takes 82 ms per plane; a crop of a cached tile with
wrap-around takes 1 ms (median of 7).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Plane: TypeAlias = NDArray[np.float32]
SIDE = 1024  # longer than what one region of a photo shows, so the repetition is not seen
_BANK_SEED = (
    20261116  # the bank is the same for every dataset; the datasets' seeds choose crops of it
)


def _unit(field: NDArray[np.floating]) -> Plane:
    field = field - field.mean()
    return np.asarray(np.clip(field / field.std(), -3.5, 3.5), np.float32)


def _spectrum(
    rng: np.random.Generator, *, power: float, stretch: float = 1.0, low: float = 0.0
) -> Plane:
    """Noise with amplitude 1/f**power.

    `stretch` > 1 makes streaks along x; `low` damps frequencies below it (waves per tile).
    """
    fy = np.fft.fftfreq(SIDE)[:, None] * SIDE
    fx = np.fft.rfftfreq(SIDE)[None, :] * SIDE
    f = np.hypot(fy / stretch, fx * stretch)
    f[0, 0] = 1.0
    amplitude = f**-power * (1.0 - np.exp(-((f / low) ** 2)) if low else 1.0)
    amplitude[0, 0] = 0.0
    return _unit(
        np.fft.irfft2(np.fft.rfft2(rng.standard_normal((SIDE, SIDE))) * amplitude, s=(SIDE, SIDE))
    )


def _cloud(rng: np.random.Generator) -> Plane:
    return _spectrum(rng, power=1.6)


def _stone(rng: np.random.Generator) -> Plane:
    return _spectrum(rng, power=1.1, low=24)


def _sand(rng: np.random.Generator) -> Plane:
    return _spectrum(rng, power=0.8, low=40)


def _wood(rng: np.random.Generator) -> Plane:
    return _spectrum(rng, power=1.2, stretch=3.5, low=20)


def _fur(rng: np.random.Generator) -> Plane:
    """Streaks whose direction wanders: a streaky tile read through a smooth displacement."""
    streaks = _spectrum(rng, power=1.0, stretch=2.8, low=24)
    wander = _spectrum(rng, power=2.2) * 24
    rows = (np.arange(SIDE)[:, None] + wander).astype(np.intp) % SIDE
    return _unit(streaks[rows, np.arange(SIDE)[None, :]])


def _cloth(rng: np.random.Generator) -> Plane:
    """A weave: two slightly bent gratings with whole periods per tile, over stone-like noise."""
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32) * np.float32(2 * np.pi / SIDE)
    bend = _spectrum(rng, power=2.2) * 1.6
    weave = np.sin(230 * x + bend) + np.sin(190 * y + bend * 0.7)
    return _unit(weave * 0.3 + _spectrum(rng, power=1.1, low=16))


def _leaves(rng: np.random.Generator) -> Plane:
    """Overlapping discs with sizes ~ r**-3 (the "dead leaves" model): foliage, pebbles, crowds."""
    tile = Image.new("F", (SIDE, SIDE))
    draw = ImageDraw.Draw(tile)
    n = 9_000
    r_min, r_max = 3.0, 40.0
    radius = (rng.random(n) * (r_max**-2 - r_min**-2) + r_min**-2) ** -0.5
    flat = rng.uniform(0.35, 1.0, n)
    center = rng.uniform(0, SIDE, (n, 2))
    shade = rng.normal(0, 1, n)
    swap = rng.random(n) < 0.5
    for i in np.argsort(-radius * rng.uniform(0.3, 1.0, n)):
        r, (cx, cy) = radius[i], center[i]
        rx, ry = (r, r * flat[i]) if swap[i] else (r * flat[i], r)
        for ox in (0, SIDE) if cx < r_max else (0, -SIDE) if cx > SIDE - r_max else (0,):
            for oy in (0, SIDE) if cy < r_max else (0, -SIDE) if cy > SIDE - r_max else (0,):
                box = (cx + ox - rx, cy + oy - ry, cx + ox + rx, cy + oy + ry)
                draw.ellipse(box, fill=float(shade[i]))
    sharp = np.asarray(tile)
    soft = (
        sharp + np.roll(sharp, 1, 0) + np.roll(sharp, 1, 1) + np.roll(sharp, (1, 1), (0, 1))
    ) / 4
    return _unit(soft + 0.35 * _spectrum(rng, power=1.0, low=10))


def _white(rng: np.random.Generator) -> Plane:
    return _unit(rng.standard_normal((SIDE, SIDE)))


_MAKERS: dict[str, Callable[[np.random.Generator], Plane]] = {
    "cloud": _cloud,
    "stone": _stone,
    "sand": _sand,
    "wood": _wood,
    "fur": _fur,
    "cloth": _cloth,
    "leaves": _leaves,
    "white": _white,
}
KINDS = tuple(_MAKERS)


@cache
def tile(kind: str, transposed: bool) -> Plane:
    """The shared, read-only tile of a kind.

    The transposed tile is a copy, because reading across memory is slow.
    """
    rng = np.random.default_rng([_BANK_SEED, KINDS.index(kind)])
    made = tile(kind, False).T.copy() if transposed else _MAKERS[kind](rng)
    made.flags.writeable = False
    return made


def crop(kind: str, rng: np.random.Generator, *, width: int, height: int) -> Plane:
    """A random height x width window of the repeated texture, flipped and transposed at random."""
    mirror_y, mirror_x, transpose = rng.random(3) < 0.5
    y, x = (int(v) for v in rng.integers(0, SIDE, 2))
    source = tile(kind, bool(transpose))[:: -1 if mirror_y else 1, :: -1 if mirror_x else 1]
    if y + height <= SIDE and x + width <= SIDE:
        return source[y : y + height, x : x + width]
    out = np.empty((height, width), np.float32)
    for top in range(-y, height, SIDE):
        for left in range(-x, width, SIDE):
            t, b, le, r = (
                max(top, 0),
                min(top + SIDE, height),
                max(left, 0),
                min(left + SIDE, width),
            )
            out[t:b, le:r] = source[t - top : b - top, le - left : r - left]
    return out


def smooth(rng: np.random.Generator, *, width: int, height: int, cells: int = 6) -> Plane:
    """A smooth random field with about `cells` bumps along the longer side and deviation 1."""
    longer = max(width, height)
    small = rng.standard_normal((cells * height // longer + 3, cells * width // longer + 3)).astype(
        np.float32
    )
    image = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image, np.float32) * np.float32(1.3)
