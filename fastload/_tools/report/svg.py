"""Shapes → SVG inside the page; colours are the page's variables, so light and dark are one drawing."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from fastload._tools.report.shapes import Area, Line, Plot, Point, Rect, Shape


def svg(plot: Plot, *, css: str = "") -> str:
    """One drawing; it scales with the page."""
    body = "".join(_drawn(shape) for shape in plot.shapes)
    return (
        f'<svg class="plot {escape(css)}" data-plot="{escape(plot.name)}" viewBox="0 0 {plot.width:.0f} {plot.height:.0f}" role="img" '
        f'aria-label="{escape(plot.says)}">{body}</svg>'
    )


def _drawn(shape: Shape) -> str:
    if isinstance(shape, Rect):
        title = f"<title>{escape(shape.title)}</title>" if shape.title else ""
        return (
            f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" width="{max(shape.width, 0):.1f}" height="{max(shape.height, 0):.1f}" '
            f'fill="var(--{shape.fill})"{_opacity(shape.opacity)}>{title}</rect>'
        )
    if isinstance(shape, Area):
        return f'<polygon points="{_points(shape.points)}" fill="var(--{shape.fill})"{_opacity(shape.opacity)}/>'
    if isinstance(shape, Line):
        dashed = ' stroke-dasharray="4 3"' if shape.dashed else ""
        return (
            f'<polyline points="{_points(shape.points)}" fill="none" stroke="var(--{shape.stroke})" stroke-width="{shape.width:.1f}" '
            f'stroke-linejoin="round"{dashed}/>'
        )
    bold = ' font-weight="600"' if shape.bold else ""
    anchor = f' text-anchor="{shape.anchor}"' if shape.anchor != "start" else ""
    return (
        f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size:.0f}" fill="var(--{shape.fill})"{anchor}{bold}>'
        f"{escape(shape.text)}</text>"
    )


def _points(points: Iterable[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _opacity(value: float) -> str:
    return f' opacity="{value:.2f}"' if value < 1 else ""
