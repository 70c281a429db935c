"""The command ``fastload filter``."""

from __future__ import annotations

import argparse

from fastload._cli.shared import (
    DATASET,
    NEW_DATASET,
    SELECTION,
    Commands,
    ProgressLine,
    add_command,
    print_result,
)


def add(commands: Commands) -> None:
    add_command(
        commands,
        "filter",
        "copy selected samples",
        "Copies the selected samples into a new dataset, without decoding an image. Classes keep\n"
        "their numbers. --split, --where and --limit apply in this order.",
        examples="""fastload filter packed cats --where "label == 'cat' and width >= 64"
        fastload filter packed small --split train --limit 1000""",
        options={
            **DATASET,
            **NEW_DATASET,
            **SELECTION,
        },
        run=run,
    )


def run(options: argparse.Namespace) -> int:
    from fastload._pack.datasets.filtering import filter_dataset

    with ProgressLine("filtering", quiet=options.json) as line:
        result = filter_dataset(
            options.dataset,
            options.dest,
            where=options.where,
            split=options.split,
            limit=options.limit,
            on_progress=line.update,
        )
    print_result(options, result)
    return 0
