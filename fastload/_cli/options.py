"""What the commands share: types of options, and how results and progress are shown."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = object

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def byte_size(text: str) -> int:
    """``512MiB``, ``8 MB``, ``100000`` → bytes; for argparse's ``type=``."""
    digits = text.strip().lower().removesuffix("b")
    number = digits.rstrip("kmgi ")
    try:
        return int(float(number) * _UNITS[digits[len(number) :].strip()])
    except (ValueError, KeyError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a size such as 512MiB, 8MB or 100000"
        ) from None


def human_bytes(count: float) -> str:
    """1536 → ``1.5 KiB``."""
    if count < 1024:
        return f"{count:.0f} B"
    unit = "MiB" if count >= 2**20 else "KiB"
    unit = "GiB" if count >= 2**30 else unit
    return f"{count / {'KiB': 2**10, 'MiB': 2**20, 'GiB': 2**30}[unit]:.1f} {unit}"


def print_json(value: Mapping[str, object]) -> None:
    """One JSON object on stdout, for machines (``--json``)."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


class ProgressLine:
    """A progress bar on a terminal, a plain line every ``every_s`` seconds elsewhere; always on stderr.

    Use as a context manager; ``update(done, note)`` may be called as often as you like.
    """

    def __init__(
        self, title: str, total: int | None, *, every_s: float = 5.0, quiet: bool = False
    ) -> None:
        self.title, self.total, self.every_s, self.quiet = title, total, every_s, quiet
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, note: str = "") -> None:
        """`done` of the total, and a few words behind the bar."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=self.total, note=note)
            return
        now = time.monotonic()
        if not self.quiet and now - self._last >= self.every_s:
            self._last = now
            share = f" of {self.total} ({100 * done / self.total:.0f} %)" if self.total else ""
            sys.stderr.write(
                f"{self.title}: {done}{share}, {now - self._started:.0f} s{', ' + note if note else ''}\n"
            )
            sys.stderr.flush()
