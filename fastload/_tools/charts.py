"""The chart engine of reports and benchmarks.

A plot is a list of shapes with named colors, drawn as SVG (``svg``) or PNG (``write_png``). SVG
takes its colors from CSS variables, so that one drawing serves light and dark pages. PNG needs
Pillow only, neither a browser nor matplotlib.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from fastload.errors import ConfigError

if TYPE_CHECKING:
    from PIL import ImageDraw

Point = tuple[float, float]
# (light, dark) by name. The palette of Okabe and Ito is safe for color-blind readers. Work is blue
# and green, waiting is orange, pauses are purple.
COLORS = {
    "page": ("#f6f7f9", "#0f1419"),
    "card": ("#ffffff", "#181f27"),
    "text": ("#1b2430", "#e8ecf0"),
    "muted": ("#5a6572", "#9aa6b2"),
    "grid": ("#e4e8ed", "#2a333d"),
    "wait": ("#d55e00", "#ff8c42"),
    "copy": ("#e69f00", "#f4b942"),
    "forward": ("#56b4e9", "#72c3f0"),
    "loss": ("#a6d8f5", "#b5dcf3"),
    "backward": ("#0072b2", "#3d94d1"),
    "optimizer": ("#009e73", "#2bbd93"),
    "more": ("#7fc8b2", "#7fc8b2"),
    "other": ("#bcc4cd", "#53606d"),
    "stall": ("#a5407e", "#e58fc4"),
    "good": ("#00795a", "#2bbd93"),
    "warn": ("#9a6700", "#f4b942"),
    "bad": ("#b84a00", "#ff8c42"),
}
PNG_SCALE = 2  # pixels per unit, for print and high-resolution screens
PNG_MARGIN = 20
PNG_TITLE = 44  # height of the line with the title
PNG_SMOOTH = 2  # supersampling, because Pillow draws polygons without antialiasing
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled rectangle. ``title`` is its tooltip."""

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
    """A list of shapes. ``description`` is the alternative text."""

    name: str
    width: float
    height: float
    description: str
    shapes: list[Shape] = field(default_factory=list)

    def add(self, *shapes: Shape) -> None:
        """Adds shapes on top of the existing ones."""
        self.shapes.extend(shapes)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to positions on an axis. Values outside the axis are clipped to its ends."""

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
    """Returns round numbers between ``low`` and ``high``, about ``most`` of them."""
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
    """Returns powers of ten, and numbers between them if there were fewer than two."""
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
    """Formats a tick: ``0``, ``50 ms``, ``2 s``."""
    if value < 1e-9:
        return "0"
    return f"{value:g} s" if value >= 0.9999 else f"{1e3 * value:.4g} ms"


def text_width(text: str, size: float = 12.0) -> float:
    """Estimates the width of a label. A sans-serif character is 0.56 em wide on average."""
    return 0.56 * size * len(text)


def spread_out(places: list[float], least: float, low: float, high: float) -> list[float]:
    """Moves labels apart to a distance of ``least``, in order and between ``low`` and ``high``."""
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


def css_variables(dark: bool) -> str:
    """Returns ``--wait: #d55e00; ...``."""
    return " ".join(f"--{name}: {pair[dark]};" for name, pair in COLORS.items())


def svg(plot: Plot, *, css: str = "") -> str:
    """Returns SVG for an HTML page that defines ``css_variables``."""
    return _svg(plot, f'class="plot {escape(css)}" data-plot="{escape(plot.name)}"')


def svg_file(plot: Plot) -> str:
    """Returns a standalone SVG file with its own colors and font."""
    style = f"svg{{{css_variables(False)}}}text{{font-family:system-ui,sans-serif}}"
    dark = f"@media(prefers-color-scheme:dark){{svg{{{css_variables(True)}}}}}"
    return _svg(
        plot,
        f'xmlns="http://www.w3.org/2000/svg" width="{plot.width:.0f}"',
        f"<style>{style}{dark}</style>",
    )


def _svg(plot: Plot, attributes: str, style: str = "") -> str:
    body = "".join(_svg_shape(shape) for shape in plot.shapes)
    return (
        f'<svg {attributes} viewBox="0 0 {plot.width:.0f} {plot.height:.0f}" role="img" '
        f'aria-label="{escape(plot.description)}">{style}{body}</svg>'
    )


def _svg_shape(shape: Shape) -> str:
    if isinstance(shape, Rect):
        title = f"<title>{escape(shape.title)}</title>" if shape.title else ""
        return (
            f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{max(shape.width, 0):.1f}" '
            f'height="{max(shape.height, 0):.1f}" fill="var(--{shape.fill})"'
            f"{_opacity(shape.opacity)}>{title}</rect>"
        )
    if isinstance(shape, Area):
        return (
            f'<polygon points="{_points(shape.points)}" fill="var(--{shape.fill})"'
            f"{_opacity(shape.opacity)}/>"
        )
    if isinstance(shape, Line):
        dashed = ' stroke-dasharray="4 3"' if shape.dashed else ""
        return (
            f'<polyline points="{_points(shape.points)}" fill="none" '
            f'stroke="var(--{shape.stroke})" stroke-width="{shape.width:.1f}" '
            f'stroke-linejoin="round"{dashed}/>'
        )
    bold = ' font-weight="600"' if shape.bold else ""
    anchor = f' text-anchor="{shape.anchor}"' if shape.anchor != "start" else ""
    return (
        f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size:.0f}" '
        f'fill="var(--{shape.fill})"{anchor}{bold}>{escape(shape.text)}</text>'
    )


def _points(points: Iterable[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _opacity(value: float) -> str:
    return f' opacity="{value:.2f}"' if value < 1 else ""


def write_png(plot: Plot, path: Path, *, title: str) -> None:
    """Writes the plot with its title in light colors."""
    from PIL import Image, ImageDraw, ImageFont

    factor = PNG_SCALE * PNG_SMOOTH
    size = (round(plot.width * factor), round(plot.height * factor))
    image = Image.new("RGB", size, _paint("card"))
    draw = ImageDraw.Draw(image, "RGBA")  # in this mode, Pillow blends translucent shapes
    for shape in plot.shapes:
        if not isinstance(shape, Text):
            _draw_png(draw, shape, factor)
    small = image.reduce(PNG_SMOOTH)
    top = PNG_MARGIN + PNG_TITLE
    sheet = Image.new(
        "RGB", (small.width + 2 * PNG_MARGIN, small.height + top + PNG_MARGIN), _paint("card")
    )
    sheet.paste(small, (PNG_MARGIN, top))
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=15 * PNG_SCALE)
    draw.text((PNG_MARGIN, PNG_MARGIN), title, fill=_paint("text"), font=font, anchor="lt")
    for shape in plot.shapes:
        if isinstance(shape, Text):
            draw.text(
                (PNG_MARGIN + shape.x * PNG_SCALE, top + shape.y * PNG_SCALE),
                shape.text,
                fill=_paint(shape.fill),
                font=ImageFont.load_default(size=shape.size * PNG_SCALE),
                anchor=_ANCHORS[shape.anchor],
            )
    try:
        sheet.save(path)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}. Choose a writable folder with --png."
        ) from error


def _draw_png(draw: ImageDraw.ImageDraw, shape: Rect | Area | Line, factor: int) -> None:
    if isinstance(shape, Rect):
        if shape.width > 0 and shape.height > 0:
            draw.rectangle(
                (
                    shape.x * factor,
                    shape.y * factor,
                    (shape.x + shape.width) * factor - 1,
                    max((shape.y + shape.height) * factor - 1, shape.y * factor),
                ),
                fill=_paint(shape.fill, shape.opacity),
            )
        return
    points = [(x * factor, y * factor) for x, y in shape.points]
    if isinstance(shape, Area):
        draw.polygon(points, fill=_paint(shape.fill, shape.opacity))
        return
    width = max(round(shape.width * factor), 1)
    for line in _dashes(points, 7 * factor) if shape.dashed else [points]:
        draw.line(line, fill=_paint(shape.stroke), width=width, joint="curve")


def _dashes(points: Iterable[Point], length: float) -> Iterator[list[Point]]:
    """Yields the lines of a dashed polyline. A dash covers 57 % of ``length``."""
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        n = max(round(math.hypot(x1 - x0, y1 - y0) / length), 1)
        for k in range(n):
            parts = (k / n, (k + 0.57) / n)
            yield [(x0 + (x1 - x0) * part, y0 + (y1 - y0) * part) for part in parts]


def _paint(name: str, opacity: float = 1.0) -> str:
    return f"{COLORS[name][0]}{round(255 * opacity):02x}"
