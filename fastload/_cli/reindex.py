"""The command ``fastload reindex``."""

from __future__ import annotations

import argparse

from fastload._cli.shared import (
    DATASET,
    JOBS,
    NEW_DATASET,
    Commands,
    ProgressLine,
    add_command,
    print_result,
)


def add(commands: Commands) -> None:
    add_command(
        commands,
        "reindex",
        "add restart indexes to JPEGs",
        "Copies a dataset and adds indexed restart markers to its JPEGs, so that the loader\n"
        "decodes only a crop. Pixels, labels, order and ids stay the same. For datasets packed\n"
        "with --encode copy or --restart off.",
        examples="""fastload reindex copied packed
        fastload reindex copied packed --jobs 8""",
        options={
            **DATASET,
            **NEW_DATASET,
            **JOBS,
        },
        run=run,
    )


def run(options: argparse.Namespace) -> int:
    from fastload._pack.datasets.reindex import reindex

    with ProgressLine("indexing", quiet=options.json) as line:
        result = reindex(options.dataset, options.dest, jobs=options.jobs, on_progress=line.update)
    print_result(options, result)
    return 0
