"""Prints tables and sections: with colors on a terminal, as aligned text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastload._common.formatting import printable

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_BAR = 24  # characters of a full bar
_MAX_NAME_WIDTH = 28  # characters of the name column in a section


@dataclass(slots=True)
class Table:
    """Rows of text under headings.

    The first ``named`` columns are left-aligned, the others right.
    """

    title: str
    headings: Sequence[str]
    named: int = 1
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # lines after the table

    def plain(self) -> str:
        """Returns aligned text for files and pipes."""
        lines = [self.title] if self.title else []
        lines += aligned([self.headings, *self.rows], named=self.named)
        return "\n".join([*lines, *self.notes])

    def show(self) -> None:
        if not sys.stdout.isatty():
            print(self.plain(), flush=True)  # noqa: T201 - output of commands
            return
        from rich.console import Console
        from rich.table import Table as RichTable

        console = Console(highlight=False)
        table = RichTable(
            title=self.title or None,
            title_justify="left",
            title_style="bold",
            header_style="bold cyan",
            box=None,
            padding=(0, 2, 0, 0),
        )
        for i, heading in enumerate(self.headings):
            table.add_column(heading, justify="left" if i < self.named else "right", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        for note in self.notes:
            console.print(note, markup=False)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a section: a name, a value, and a bar for a share (on a terminal only)."""

    name: str
    value: str
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Rows under a title. ``note`` follows the title."""

    title: str
    rows: Sequence[Row]
    note: str = ""


def aligned(rows: Sequence[Sequence[str]], *, named: int = 1) -> list[str]:
    """Returns lines with columns two spaces apart. The first ``named`` columns are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < named else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def show_sections(title: str, sections: Sequence[Section]) -> None:
    if not sys.stdout.isatty():
        print(plain_sections(title, sections))  # noqa: T201 - output of commands
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(printable(title), style="bold"))
    width = _name_width(sections)
    for section in sections:
        console.print()
        heading = Text(section.title, style="bold cyan")
        heading.append(f"  {section.note}" if section.note else "", style="not bold dim")
        console.print(heading)
        console.print(_section_grid(section, width))


def plain_sections(title: str, sections: Sequence[Section]) -> str:
    """Returns aligned text without colors for files and pipes."""
    width = _name_width(sections)
    lines = [printable(title)]
    for section in sections:
        lines += ["", section.title + (f" ({section.note})" if section.note else "")]
        lines += [
            f"  {printable(row.name):{width}}  {printable(row.value)}".rstrip()
            for row in section.rows
        ]
    return "\n".join(lines)


def bar(share: float | None) -> str:
    """``0.5`` → a bar of half the length, in steps of an eighth of a character."""
    eighths = round((share or 0.0) * _BAR * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _section_grid(section: Section, width: int) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    bars = any(row.share is not None for row in section.rows)
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(min_width=width + 2)
    grid.add_column(overflow="fold")
    if bars:
        grid.add_column(no_wrap=True)
    for row in section.rows:
        cells = [Text("  " + printable(row.name), style="dim"), Text(printable(row.value))]
        grid.add_row(*cells, *([Text(bar(row.share), style="cyan")] if bars else []))
    return grid


def _name_width(sections: Sequence[Section]) -> int:
    names = [printable(row.name) for section in sections for row in section.rows]
    return min(max(map(len, names), default=0), _MAX_NAME_WIDTH)
