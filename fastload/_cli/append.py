"""The command ``fastload append``."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastload._cli.pack import EXECUTION, PackReporter, add_source_options, given_source_options
from fastload._cli.shared import (
    DATASET,
    Commands,
    ProgressLine,
    add_command,
    add_options,
    print_result,
)
from fastload._pack.sources.registry import FORMATS


def add(commands: Commands) -> None:
    append = add_command(
        commands,
        "append",
        "pack more samples into a dataset",
        "Packs SOURCE into an existing dataset, with the options that it was packed with. Old\n"
        "shards do not change. After a crash, the dataset is the old or the new one, and the\n"
        "same command continues. Programs that have the dataset open keep the old samples.",
        examples="fastload append packed photos/tuesday",
        options={
            **DATASET,
            "source": {
                "metavar": "SOURCE",
                "type": Path,
                "help": "what fastload pack reads, with the same fields as DATASET",
            },
            "--format": {
                "metavar": "NAME",
                "help": f"format of SOURCE: {', '.join(FORMATS)} (default: detected)",
            },
        },
        run=run,
    )
    add_options(append.add_argument_group("execution"), EXECUTION)
    add_source_options(append)


def run(options: argparse.Namespace) -> int:
    from fastload._pack.datasets.merge import append

    with ProgressLine("packing", quiet=options.json) as line:
        result = append(
            options.dataset,
            options.source,
            format=options.format,
            source_options=given_source_options(options),
            on_error=options.on_error,
            max_bad=options.max_bad,
            jobs=options.jobs,
            on_progress=PackReporter(line),
        )
    print_result(options, result)
    return 0
