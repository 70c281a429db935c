"""The command ``fastload verify``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fastload._cli.shared import (
    DATASET,
    JOBS,
    Commands,
    ProgressLine,
    add_command,
    print_result,
    whole_number,
)

if TYPE_CHECKING:
    from fastload._store.verify import VerifyProgress


def add(commands: Commands) -> None:
    add_command(
        commands,
        "verify",
        "check a dataset for damage",
        "Compares sizes and digests of all files, then checks every record: checksum, id,\n"
        "fields, and the values in the columns. Reports shard, record and original file of\n"
        "each fault.\n"
        "Exit code: 0 no faults, 1 faults found, 2 wrong usage.",
        examples="fastload verify packed --deep",
        options={
            **DATASET,
            "--deep": {
                "action": "store_true",
                "help": "also decode every image and mask; decoder warnings count as faults",
            },
            "--shard": {
                "type": whole_number(0),
                "metavar": "N",
                "help": "check only shard number N, and all columns (default: all shards)",
            },
            **JOBS,
        },
        run=run,
    )


def run(options: argparse.Namespace) -> int:
    from fastload._store.verify import verify

    line = ProgressLine("verifying", quiet=options.json)

    def show(progress: VerifyProgress) -> None:
        faults = f"{progress.faults} faults" if progress.faults else ""
        line.update(progress.done, progress.total, faults)

    with line:
        report = verify(
            options.dataset,
            deep=options.deep,
            jobs=options.jobs,
            shard=options.shard,
            on_progress=show,
        )
    print_result(options, report)
    return 0 if report.ok else 1
