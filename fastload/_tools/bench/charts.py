"""Charts of benchmarks: lines (scaling) and bars (comparisons) as SVG, on an HTML page, or as PNG (matplotlib)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fastload.errors import ConfigError, MissingPart

COLORS = (
    "#0b6e99",
    "#d9730d",
    "#4d7c0f",
    "#9a3fb5",
    "#b91c1c",
    "#0f766e",
    "#a16207",
    "#475569",
    "#be185d",
    "#1d4ed8",
)
_STYLE = (
    "<style>text{font:12px system-ui,sans-serif;fill:#444}.t{font-weight:600;font-size:14px;fill:#111}.g{stroke:#ddd}"
    ".i{stroke:#999;stroke-dasharray:5 4;fill:none}"
    "@media(prefers-color-scheme:dark){text{fill:#bbb}.t{fill:#eee}.g{stroke:#444}}</style>"
)


@dataclass(frozen=True, slots=True)
class Curve:
    """Points (x, y, low, high); ``ideal`` curves are dashed and have no points drawn."""

    name: str
    points: Sequence[tuple[float, float, float, float]]
    ideal: bool = False


def lines(
    title: str,
    curves: Sequence[Curve],
    *,
    x_name: str,
    y_name: str,
    width: int = 640,
    height: int = 360,
) -> str:
    """x in powers of two (threads, readers), y from 0."""
    left, right, top, bottom = 70, 190, 34, 46
    points = [point for curve in curves for point in curve.points]
    x_all = sorted({point[0] for point in points})
    span = math.log2(max(x_all[-1] / x_all[0], 2.0))
    most = max(max(point[1], point[3]) for point in points) or 1.0
    ticks = nice_ticks(most)

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            left + (width - left - right) * math.log2(x / x_all[0]) / span,
            height - bottom - (height - top - bottom) * y / ticks[-1],
        )

    parts = [f'<text class="t" x="{left}" y="18">{escape(title)}</text>']
    for tick in ticks:
        _, y = at(x_all[0], tick)
        parts.append(
            f'<line class="g" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>'
        )
    for each in x_all:
        x, _ = at(each, 0)
        parts.append(
            f'<text x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle">{each:g}</text>'
        )
    parts.append(
        f'<text x="{(left + width - right) / 2}" y="{height - 8}" text-anchor="middle">{escape(x_name)}</text>'
        f'<text x="14" y="{height / 2}" transform="rotate(-90 14 {height / 2})" text-anchor="middle">{escape(y_name)}</text>'
    )
    for place, curve in enumerate(curves):
        color = "#999" if curve.ideal else COLORS[place % len(COLORS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(p[0], p[1]) for p in curve.points))
        parts.append(
            f'<polyline class="i" points="{path}"/>'
            if curve.ideal
            else f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
        )
        for p in () if curve.ideal else curve.points:
            (x, y), (_, low), (_, high) = at(p[0], p[1]), at(p[0], p[2]), at(p[0], p[3])
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{color}"/>'
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>'
            )
        parts.append(_key(width - right + 14, top + 18 * place, color, curve.name))
    return _svg(width, height, parts)


def bars(
    title: str,
    values: Mapping[str, tuple[float, float, float]],
    *,
    unit: str,
    width: int = 640,
    marked: str = "",
) -> str:
    """One bar a name, the longest first; ``values``: median, low, high. ``marked`` is drawn in another color."""
    left, right, row = 190, 110, 22
    most = max(high for _, _, high in values.values()) or 1.0
    parts = [f'<text class="t" x="10" y="18">{escape(title)}</text>']
    ordered = sorted(values.items(), key=lambda each: -each[1][0])
    for place, (name, (middle, low, high)) in enumerate(ordered):
        y = 34 + row * place
        scale = (width - left - right) / most
        parts.append(
            f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{left}" y="{y}" width="{middle * scale:.1f}" height="{row - 7}" '
            f'fill="{COLORS[0 if name == marked else 7]}"/>'
            f'<line x1="{left + low * scale:.1f}" x2="{left + high * scale:.1f}" y1="{y + 7.5}" y2="{y + 7.5}" stroke="#111"/>'
            f'<text x="{left + high * scale + 6:.1f}" y="{y + 12}">{middle:,.0f} {escape(unit)}</text>'
        )
    return _svg(width, 44 + row * len(ordered), parts)


def page(
    title: str, paragraphs: Sequence[str], charts: Sequence[str], tables: Sequence[str] = ()
) -> str:
    """One self-contained HTML file."""
    body = "".join(f"<p>{escape(text)}</p>" for text in paragraphs) + "".join(
        f"<figure>{chart}</figure>" for chart in charts
    )
    body += "".join(f"<pre>{escape(text)}</pre>" for text in tables)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="color-scheme" content="light dark">'
        f"<style>body{{font:15px system-ui,sans-serif;margin:2em auto;max-width:60em;padding:0 1em}}figure{{margin:1em 0}}"
        f"pre{{overflow-x:auto}}svg{{max-width:100%}}</style><h1>{escape(title)}</h1>{body}</html>\n"
    )


def nice_ticks(most: float, count: int = 5) -> list[float]:
    """0 and up to ``count`` round numbers, the last at or above ``most``."""
    raw = most / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.9999)
    return [round(step * i, 12) for i in range(math.ceil(most / step - 1e-9) + 1)]


def _key(x: float, y: float, color: str, name: str) -> str:
    return f'<rect x="{x}" y="{y}" width="12" height="4" fill="{color}"/><text x="{x + 18}" y="{y + 7}">{escape(name)}</text>'


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    inside = _STYLE + "".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">{inside}</svg>'


def check_plot_path(path: Path) -> None:
    """Before an hour of measuring: can this be written? Raises ConfigError, MissingPart."""
    if path.suffix not in (".png", ".html", ".svg"):
        raise ConfigError(f"--plot {path}: expected a name that ends in .html, .svg or .png")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: no folder {path.parent}")
    if path.suffix == ".png":
        _pyplot()


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
    """``plots``: title to curves. SVG takes the first only."""
    check_plot_path(path)
    if path.suffix == ".png":
        _png(path, plots, x_name=x_name, y_name=y_name)
        return
    drawn = [lines(name, curves, x_name=x_name, y_name=y_name) for name, curves in plots.items()]
    path.write_text(
        drawn[0] + "\n" if path.suffix == ".svg" else page(title, notes, drawn, tables),
        encoding="utf-8",
    )


def _png(path: Path, plots: Mapping[str, Sequence[Curve]], *, x_name: str, y_name: str) -> None:
    figure_of = _pyplot()
    figure = figure_of(figsize=(7, 3.6 * len(plots)), layout="constrained")
    axes = figure.subplots(len(plots), squeeze=False)[:, 0]
    for axis, (name, curves) in zip(axes, plots.items(), strict=True):
        for place, curve in enumerate(curves):
            x, y, low, high = zip(*curve.points, strict=True)
            if curve.ideal:
                axis.plot(x, y, "--", color="#999", label=curve.name)
            else:
                around = [
                    [b - a for a, b in zip(low, y, strict=True)],
                    [b - a for a, b in zip(y, high, strict=True)],
                ]
                axis.errorbar(
                    x,
                    y,
                    yerr=around,
                    marker="o",
                    label=curve.name,
                    color=COLORS[place % len(COLORS)],
                )
        axis.set(title=name, xlabel=x_name, ylabel=y_name, ylim=(0, None))
        axis.set_xscale("log", base=2)
        ticks = sorted({point[0] for curve in curves for point in curve.points})
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.savefig(path, dpi=110)


def _pyplot() -> Callable[..., Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPart(
            "plotting to PNG needs matplotlib: pip install 'fastload-vision[report]', or name an .html file instead"
        ) from None

    def new(**options: Any) -> Figure:
        figure = Figure(**options)
        FigureCanvasAgg(figure)
        return figure

    return new
