"""Tables: coloured on a terminal, aligned plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Table:
    """Rows of text under headings; the first ``named`` columns are names, the others figures and stand right."""

    title: str
    headings: Sequence[str]
    named: int = 1
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # lines below

    def plain(self) -> str:
        """Aligned, for files and pipes."""
        lines = [list(self.headings), *[list(row) for row in self.rows]]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.headings))]
        told = [self.title] if self.title else []
        for line in lines:
            cells = [
                cell.ljust(width) if i < self.named else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            told.append("  ".join(cells).rstrip())
        return "\n".join([*told, *self.notes])

    def show(self) -> None:
        """Prints to stdout."""
        if not sys.stdout.isatty():
            print(self.plain(), flush=True)  # noqa: T201 - what the commands print passes here
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


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]], *, named: int = 1) -> str:
    """The same for a page."""
    rule = ["---" if i < named else "---:" for i in range(len(headings))]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |"
        for row in (headings, rule, *rows)
    )
