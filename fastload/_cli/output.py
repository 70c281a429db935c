"""Prints results and progress of the commands."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def print_json(value: Mapping[str, object]) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


class ProgressLine:
    """Shows progress on stderr: a bar on a terminal, otherwise a line every ``every_s`` seconds.

    Use it as a context manager. ``update`` limits its output, so it may be called for every item.
    """

    def __init__(
        self, title: str, total: int | None = None, *, every_s: float = 5.0, quiet: bool = False
    ) -> None:
        self.title = title
        self.total = total
        self.every_s = every_s
        self.quiet = quiet
        self._started = self._last = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressLine:
        if not self.quiet and sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeRemainingColumn(),
                progress.TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(self.title, total=self.total, note="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, note: str = "") -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=self.total, note=note)
            return
        now = time.monotonic()
        if not self.quiet and now - self._last >= self.every_s:
            self._last = now
            share = f" of {self.total} ({100 * done / self.total:.0f} %)" if self.total else ""
            suffix = f", {note}" if note else ""
            sys.stderr.write(f"{self.title}: {done}{share}, {now - self._started:.0f} s{suffix}\n")
            sys.stderr.flush()

    def update_of(self, done: int, total: int) -> None:
        """Like ``update``, with a new total."""
        self.total = total
        self.update(done)
