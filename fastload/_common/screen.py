"""How results of `inspect` are shown: sections of names and values; a coloured table on a terminal, aligned lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

_BAR = 24  # characters of a full bar
_MOST_WIDTH = 28  # of the names' column


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a name, a value, and for shares a bar (terminal only)."""

    name: str
    value: str
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Rows under a title; ``note`` stands behind the title."""

    title: str
    rows: Sequence[Row]
    note: str = ""


def clean(text: str) -> str:
    r"""Text out of a dataset that is safe to print: a stranger's class name must not move the cursor (``\x1b``)."""
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    )


def percent(part: float, whole: float) -> str:
    """``"12.5 %"``; 0 and 100 only where it is none and all."""
    share = 100 * part / whole if whole else 0.0
    if 0 < share < 0.05 or 99.95 < share < 100:
        return "< 0.1 %" if share < 1 else "> 99.9 %"
    return f"{share:.1f} %" if share % 100 else f"{share:.0f} %"


def byte_text(count: float) -> str:
    """1536 → ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


def show(title: str, sections: Sequence[Section]) -> None:
    """Prints to stdout."""
    if sys.stdout.isatty():
        _show_on_terminal(title, sections)
    else:
        print(plain(title, sections))  # noqa: T201 - this is the one place that prints


def plain(title: str, sections: Sequence[Section]) -> str:
    """Aligned lines without colours, for files and pipes."""
    width = _name_width(sections)
    lines = [clean(title)]
    for section in sections:
        lines += ["", section.title + (f" ({section.note})" if section.note else "")]
        lines += [
            f"  {clean(row.name):{width}}  {clean(row.value)}".rstrip() for row in section.rows
        ]
    return "\n".join(lines)


def _show_on_terminal(title: str, sections: Sequence[Section]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(clean(title), style="bold"))
    width = _name_width(sections)
    for section in sections:
        console.print()
        heading = Text(section.title, style="bold cyan")
        heading.append(f"  {section.note}" if section.note else "", style="not bold dim")
        console.print(heading)
        bars = any(row.share is not None for row in section.rows)
        table = Table.grid(padding=(0, 2))
        table.add_column(min_width=width + 2)
        table.add_column(overflow="fold")
        if bars:
            table.add_column(no_wrap=True)
        for row in section.rows:
            cells = [Text("  " + clean(row.name), style="dim"), Text(clean(row.value))]
            table.add_row(*cells, *([Text(bar(row.share), style="cyan")] if bars else []))
        console.print(table)


def bar(share: float | None) -> str:
    """``0.5`` → half a bar, in steps of an eighth of a character."""
    eighths = round((share or 0.0) * _BAR * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _name_width(sections: Sequence[Section]) -> int:
    return min(
        max((len(clean(row.name)) for section in sections for row in section.rows), default=0),
        _MOST_WIDTH,
    )
