"""The command ``fastload merge``."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastload._cli.shared import NEW_DATASET, Commands, ProgressLine, add_command, print_result


def add(commands: Commands) -> None:
    add_command(
        commands,
        "merge",
        "join datasets",
        "Joins packed datasets with the same fields into a new one. Shards are hard-linked where\n"
        "the file system allows it, so they need no space twice. Classes are united by name, and\n"
        "samples are ordered by split and then by dataset.",
        examples="fastload merge monday tuesday both",
        options={
            "datasets": {
                "metavar": "DATASET",
                "type": Path,
                "nargs": "+",
                "help": "folders written by fastload pack",
            },
            **NEW_DATASET,
        },
        run=run,
    )


def run(options: argparse.Namespace) -> int:
    from fastload._pack.datasets.merge import merge

    with ProgressLine("merging", quiet=options.json) as line:
        result = merge(options.datasets, options.dest, on_progress=line.update)
    print_result(options, result)
    return 0
