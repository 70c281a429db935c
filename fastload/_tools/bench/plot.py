"""Writes scaling curves: HTML with inline SVG (nothing needed), or PNG (matplotlib)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastload._tools.bench import charts
from fastload._tools.bench.charts import Curve
from fastload.errors import ConfigError, MissingPart


def check(path: Path) -> None:
    """Before an hour of measuring: can this be written? Raises ConfigError, MissingPart."""
    if path.suffix not in (".png", ".html", ".svg"):
        raise ConfigError(f"--plot {path}: expected a name that ends in .html, .svg or .png")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: no folder {path.parent}")
    if path.suffix == ".png":
        _pyplot()


def write(
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
    check(path)
    if path.suffix == ".png":
        _png(path, plots, x_name=x_name, y_name=y_name)
        return
    drawn = [
        charts.lines(name, curves, x_name=x_name, y_name=y_name) for name, curves in plots.items()
    ]
    path.write_text(
        drawn[0] + "\n" if path.suffix == ".svg" else charts.page(title, notes, drawn, tables),
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
                    color=charts.COLOURS[place % len(charts.COLOURS)],
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
