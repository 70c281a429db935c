"""Shared parts of the commands: their parsers, the types of their options, and their output."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rich.progress import Progress

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Options = dict[str, dict[str, Any]]  # flag or name → arguments of argparse's add_argument
Run = Callable[[argparse.Namespace], int]  # returns the exit code

DATASET: Options = {
    "dataset": {"metavar": "DATASET", "type": Path, "help": "folder written by fastload pack"}
}
SPLIT: Options = {
    "--split": {"metavar": "NAME", "help": "only the samples of this split (default: all)"}
}
NEW_DATASET: Options = {
    "dest": {"metavar": "DEST", "type": Path, "help": "new folder for the result"}
}
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def add_command(
    commands: Commands,
    name: str,
    summary: str,
    description: str,
    *,
    examples: str,
    options: Options,
    run: Run | None,
    json_help: str = "print the result as JSON",
) -> argparse.ArgumentParser:
    """Adds a command with examples in its help and the option ``--json``.

    ``examples`` has one command per line. A command without ``run`` has only subcommands and no
    ``--json``.
    """
    lines = "\n         ".join(line.strip() for line in examples.strip().splitlines())
    command = commands.add_parser(
        name,
        help=summary,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=description,
        epilog=f"Example: {lines}\n\n--debug prints the traceback of an error.",
    )
    if run is not None:
        command.add_argument("--json", action="store_true", help=json_help)
        command.set_defaults(run=run)
    add_options(command, options)
    return command


def add_options(parser: argparse._ActionsContainer, options: Options) -> None:
    for name, settings in options.items():
        parser.add_argument(*name.split(", "), **settings)


def whole_number(least: int) -> Callable[[str], int]:
    """Returns an argparse type for integers of at least ``least``."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: expected an integer, {least} or more")
        return int(text)

    return parse


SELECTION: Options = {
    "--where": {
        "metavar": "CONDITION",
        "default": "",
        "help": "comparisons (== != < <= > >= in) of columns with numbers or class names, "
        "joined by and, or, not, ( ): 'label in (3, 5) and width >= 64'. Columns are int "
        "and float fields, and width and height of images (default: all samples)",
    },
    "--split": {
        "metavar": "NAME",
        "default": "",
        "help": "only this split, which becomes the only split of the result",
    },
    "--limit": {
        "metavar": "N",
        "type": whole_number(1),
        "help": "only the first N samples in the packed order, which is random unless the "
        "dataset was packed with --order source",
    },
}
JOBS: Options = {
    "--jobs": {
        "metavar": "N",
        "type": whole_number(0),
        "default": 0,
        "help": "number of threads (default: all cores available to this process)",
    }
}


def number(least: float, most: float, expected: str) -> Callable[[str], float]:
    """Returns an argparse type for numbers from ``least`` to ``most``."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")
        return value

    return parse


seconds = number(1e-6, 864_000, "seconds, more than 0")


def byte_size(text: str) -> int:
    """``512MiB``, ``8 MB``, ``100000`` → bytes."""
    digits = text.strip().lower().removesuffix("b")
    amount = digits.rstrip("kmgi ")
    try:
        return int(float(amount) * _UNITS[digits[len(amount) :].strip()])
    except (ValueError, KeyError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a size such as 512MiB, 8MB or 100000"
        ) from None


def image_size(text: str) -> tuple[int, int]:
    """``224`` or ``640x960`` (height x width)."""
    sides = text.lower().split("x")
    if not all(side.isdecimal() and 1 <= int(side) <= 16384 for side in sides) or len(sides) > 2:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a size such as 224 or 640x960 (height x width)"
        )
    return int(sides[0]), int(sides[-1])


def print_json(value: Mapping[str, object]) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_result(
    options: argparse.Namespace, result: Any, show: Callable[[str], None] = print
) -> None:
    """Prints ``result.as_json()`` with ``--json``, otherwise ``str(result)`` through ``show``."""
    if options.json:
        print_json(result.as_json())
    else:
        show(str(result))


class ProgressLine:
    """Shows progress on stderr: a bar on a terminal, otherwise a line every ``every_s`` seconds.

    Use it as a context manager. ``update`` limits its output, so it may be called for every item.
    """

    def __init__(self, title: str, *, every_s: float = 5.0, quiet: bool = False) -> None:
        self.title = title
        self.every_s = every_s
        self.quiet = quiet
        self._started = self._last = time.monotonic()
        self._bar: Progress | None = None

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
            self._bar.add_task(self.title, total=None, note="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def note(self, text: str) -> None:
        """Writes a line. A bar stays below it."""
        if not self.quiet:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, note=note)
            return
        now = time.monotonic()
        if not self.quiet and now - self._last >= self.every_s:
            self._last = now
            share = f" of {total} ({100 * done / total:.0f} %)" if total else ""
            suffix = f", {note}" if note else ""
            sys.stderr.write(f"{self.title}: {done}{share}, {now - self._started:.0f} s{suffix}\n")
            sys.stderr.flush()
