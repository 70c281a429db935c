"""What a plot is made of: a few shapes with colours by name. svg.py and png.py draw them, so both look the same."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled box; ``title`` is shown when the mouse rests on it."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    opacity: float = 1.0
    title: str = ""


@dataclass(frozen=True, slots=True)
class Area:
    """A filled polygon."""

    points: tuple[Point, ...]
    fill: str
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Line:
    """A polyline."""

    points: tuple[Point, ...]
    stroke: str
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text; ``y`` is its baseline."""

    x: float
    y: float
    text: str
    fill: str = "text"
    size: float = 12.0
    anchor: str = "start"  # "start", "middle", "end"
    bold: bool = False


Shape = Rect | Area | Line | Text


@dataclass
class Plot:
    """Shapes on a sheet. ``says`` is the plot in words, for those who cannot see it."""

    name: str
    width: float
    height: float
    says: str
    shapes: list[Shape] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        """Later ones lie on top."""
        self.shapes.extend(shapes)


@dataclass(frozen=True, slots=True)
class Scale:
    """Values → places along an axis; values outside are held at its ends."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = (math.log(max(each, 1e-12)) for each in (low, high, value))
        part = (value - low) / (high - low) if high > low else 0.5
        return self.start + min(max(part, 0.0), 1.0) * (self.end - self.start)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between low and high, at most so many."""
    if not high > low:
        return [low]
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next((factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= most), 10)
    first = math.ceil(low / step - 1e-9)
    return [
        number * step
        for number in range(first, first + most + 1)
        if number * step <= high * (1 + 1e-9)
    ]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; with steps between them where there would be fewer than two."""
    span = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    tens = [10.0**power for power in span if low <= 10.0**power <= high]
    if len(tens) >= 2:
        return tens
    return [
        factor * 10.0**power
        for power in span
        for factor in (1, 1.5, 2, 3, 5, 7)
        if low <= factor * 10.0**power <= high
    ]


def time_label(value: float) -> str:
    """A tick's own: ``0``, ``50 ms``, ``2 s``."""
    return "0" if value < 1e-9 else f"{value:g} s" if value >= 0.9999 else f"{1e3 * value:.4g} ms"


def text_width(text: str, size: float = 12.0) -> float:
    """About; for labels that must not meet. 0.56 em is the mean of a sans-serif's letters and digits."""
    return 0.56 * size * len(text)


def spread_out(places: list[float], least: float, low: float, high: float) -> list[float]:
    """Moves labels apart until they are ``least`` from each other, in order, between low and high."""
    order = sorted(range(len(places)), key=lambda place: places[place])
    moved = list(places)
    for _ in range(40):
        for first, second in itertools.pairwise(order):
            lack = least - (moved[second] - moved[first])
            if lack > 0:
                moved[first] -= lack / 2
                moved[second] += lack / 2
        for place in order:
            moved[place] = min(max(moved[place], low), high)
    return moved
