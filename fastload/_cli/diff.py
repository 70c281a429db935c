"""The command ``fastload diff``."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastload._cli.shared import Commands, ProgressLine, add_command, print_result


def add(commands: Commands) -> None:
    add_command(
        commands,
        "diff",
        "compare two datasets",
        "Names the samples that were added, removed or changed from A to B, by their source and\n"
        "stored bytes. The order of samples, shards and class numbers does not matter.\n"
        "Exit code: 0 equal, 1 different, 2 wrong usage.",
        examples="fastload diff monday tuesday",
        options={
            "one": {"metavar": "A", "type": Path, "help": "folder written by fastload pack"},
            "two": {"metavar": "B", "type": Path, "help": "another one"},
        },
        run=run,
    )


def run(options: argparse.Namespace) -> int:
    from fastload._pack.datasets.diff import diff

    with ProgressLine("comparing", quiet=options.json) as line:
        result = diff(options.one, options.two, on_progress=line.update)
    print_result(options, result)
    return 0 if result.equal else 1
