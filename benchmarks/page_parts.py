"""Parts of the generated pages: Markdown tables, and bars that compare loaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastload._tools.bench.charts import WIDTH
from fastload._tools.charts import Line, Plot, Rect, Scale, Text

# Widths left and right of the bars, and the height of a bar with its gap.
_NAMES = 190
_FIGURES = 110
_ROW = 22


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]], *, named: int = 1) -> str:
    """Returns a table for a Markdown page."""
    rule = ["---" if i < named else "---:" for i in range(len(headings))]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |"
        for row in (headings, rule, *rows)
    )


def bar_plot(
    title: str, values: Mapping[str, tuple[float, float, float]], *, unit: str, marked: str = ""
) -> Plot:
    """One bar per name, longest first. ``values``: median, low, high; ``marked`` stands out."""
    ordered = sorted(values.items(), key=lambda each: -each[1][0])
    x_at = Scale(0, max(high for _, _, high in values.values()) or 1.0, _NAMES, WIDTH - _FIGURES)
    plot = Plot("bars", WIDTH, 44 + _ROW * len(ordered), title)
    plot.add(Text(10, 18, title, size=14, bold=True))
    for place, (name, (median, low, high)) in enumerate(ordered):
        y = 34 + _ROW * place
        color = "backward" if name == marked else "other"
        plot.add(
            Text(_NAMES - 8, y + 12, name, anchor="end"),
            Rect(_NAMES, y, x_at(median) - _NAMES, _ROW - 7, color),
            Line(((x_at(low), y + 7.5), (x_at(high), y + 7.5)), "text"),
            Text(x_at(high) + 6, y + 12, f"{median:,.0f} {unit}".rstrip()),
        )
    return plot
