"""Benchmark plots: curves over threads or readers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from fastload._tools.charts import Line, Plot, Rect, Scale, Text, svg_file, ticks, write_png
from fastload.errors import ConfigError

WIDTH = 640
HEIGHT = 360
_CURVE_COLORS = ("backward", "wait", "optimizer", "stall", "copy", "forward", "more", "muted")
# Margins around the curves, for labels.
_LEFT = 70
_RIGHT = 190
_TOP = 50
_BOTTOM = 46


@dataclass(frozen=True, slots=True)
class Curve:
    """Points (x, y, low, high). An ``ideal`` curve is a dashed line without markers."""

    name: str
    points: Sequence[tuple[float, float, float, float]]
    ideal: bool = False


def line_plot(title: str, curves: Sequence[Curve], *, x_name: str, y_name: str) -> Plot:
    """Curves over a logarithmic x axis (threads, readers); the y axis starts at 0."""
    plot = Plot("curves", WIDTH, HEIGHT, f"{title}: {y_name} over {x_name}")
    _add_curves(plot, 0, title, curves, x_name=x_name, y_name=y_name)
    return plot


def _add_curves(
    plot: Plot, top: float, title: str, curves: Sequence[Curve], *, x_name: str, y_name: str
) -> None:
    points = [point for curve in curves for point in curve.points]
    xs = sorted({point[0] for point in points})
    highest = max(max(point[1], point[3]) for point in points) or 1.0
    x_at = Scale(0, math.log2(max(xs[-1] / xs[0], 2.0)), _LEFT, WIDTH - _RIGHT)
    y_at = Scale(0, highest, top + HEIGHT - _BOTTOM, top + _TOP)

    def at(x: float, y: float) -> tuple[float, float]:
        return x_at(math.log2(x / xs[0])), y_at(y)

    plot.add(
        Text(_LEFT, top + 18, title, size=14, bold=True),
        Text(_LEFT, top + 36, y_name, fill="muted"),
        Text((_LEFT + WIDTH - _RIGHT) / 2, top + HEIGHT - 8, x_name, fill="muted", anchor="middle"),
    )
    for tick in ticks(0, highest):
        y = y_at(tick)
        plot.add(Line(((_LEFT, y), (WIDTH - _RIGHT, y)), "grid"))
        plot.add(Text(_LEFT - 8, y + 4, f"{tick:,g}", fill="muted", anchor="end"))
    for x in xs:
        label_y = top + HEIGHT - _BOTTOM + 18
        plot.add(Text(at(x, 0)[0], label_y, f"{x:g}", fill="muted", anchor="middle"))
    for place, curve in enumerate(curves):
        color = "muted" if curve.ideal else _CURVE_COLORS[place % len(_CURVE_COLORS)]
        path = tuple(at(point[0], point[1]) for point in curve.points)
        plot.add(Line(path, color, width=1 if curve.ideal else 2, dashed=curve.ideal))
        for x, y, low, high in () if curve.ideal else curve.points:
            center_x, center_y = at(x, y)
            plot.add(
                Line((at(x, low), at(x, high)), color),
                Rect(center_x - 3, center_y - 3, 6, 6, color, title=f"{curve.name}: {y:,g}"),
            )
        key_x = WIDTH - _RIGHT + 14
        key_y = top + _TOP + 18 * place
        swatch = ((key_x, key_y + 2), (key_x + 14, key_y + 2))
        plot.add(Line(swatch, color, width=2 if curve.ideal else 4, dashed=curve.ideal))
        plot.add(Text(key_x + 20, key_y + 7, curve.name))


def check_plot_path(path: Path) -> None:
    """Raises ConfigError if no plot can be written there. Call it before measuring."""
    if path.suffix not in (".png", ".html", ".svg"):
        raise ConfigError(f"--plot {path}: expected a file name that ends in .html, .svg or .png")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: the folder {path.parent} does not exist")


def write_plots(
    path: Path,
    title: str,
    plots: Mapping[str, Sequence[Curve]],
    *,
    x_name: str,
    y_name: str,
    notes: Sequence[str] = (),
    tables: Sequence[str] = (),
) -> None:
    """Writes ``plots`` (title to curves) to a PNG or HTML file; an SVG file gets only the first."""
    check_plot_path(path)
    if path.suffix == ".png":
        sheet = Plot("curves", WIDTH, HEIGHT * len(plots), title)
        for place, (name, curves) in enumerate(plots.items()):
            _add_curves(sheet, HEIGHT * place, name, curves, x_name=x_name, y_name=y_name)
        write_png(sheet, path, title=title)
        return
    drawn = [
        svg_file(line_plot(name, curves, x_name=x_name, y_name=y_name))
        for name, curves in plots.items()
    ]
    text = f"{drawn[0]}\n" if path.suffix == ".svg" else _page(title, notes, drawn, tables)
    path.write_text(text, encoding="utf-8")


def _page(title: str, notes: Sequence[str], charts: Sequence[str], tables: Sequence[str]) -> str:
    body = [f"<p>{escape(text)}</p>" for text in notes]
    body += [f"<figure>{chart}</figure>" for chart in charts]
    body += [f"<pre>{escape(text)}</pre>" for text in tables]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="color-scheme" content="light dark">'
        "<style>body{font:15px system-ui,sans-serif;margin:2em auto;max-width:60em;padding:0 1em}"
        "figure{margin:1em 0}pre{overflow-x:auto}svg{max-width:100%}</style>"
        f"<h1>{escape(title)}</h1>{''.join(body)}</html>\n"
    )
