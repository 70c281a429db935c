"""Shared parts of the commands: their parsers and the types of their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = object

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def add_command(
    commands: Commands,
    name: str,
    summary: str,
    description: str,
    *,
    examples: str,
    json_help: str = "print the result as JSON",
) -> argparse.ArgumentParser:
    """Adds a command with examples in its help and the option ``--json``.

    ``examples`` has one command per line. An empty ``json_help`` omits ``--json``, for a command
    that has only subcommands.
    """
    lines = "\n         ".join(line.strip() for line in examples.strip().splitlines())
    command = commands.add_parser(
        name,
        help=summary,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=description,
        epilog=f"Example: {lines}\n\n--debug prints the traceback of an error.",
    )
    if json_help:
        command.add_argument("--json", action="store_true", help=json_help)
    return command


def add_dataset(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "dataset", metavar="DATASET", type=Path, help="folder written by fastload pack"
    )


def whole_number(least: int) -> Callable[[str], int]:
    """Returns an argparse type for integers of at least ``least``."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: expected an integer, {least} or more")
        return int(text)

    return parse


def duration(unit: str, *, least: float, most: float, range_text: str) -> Callable[[str], float]:
    """Returns an argparse type for ``least`` to ``most`` seconds or milliseconds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: expected {unit}, {range_text}")
        return value

    return parse


seconds = duration("seconds", least=1e-6, most=864_000, range_text="more than 0")


def byte_size(text: str) -> int:
    """``512MiB``, ``8 MB``, ``100000`` → bytes."""
    digits = text.strip().lower().removesuffix("b")
    number = digits.rstrip("kmgi ")
    try:
        return int(float(number) * _UNITS[digits[len(number) :].strip()])
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
