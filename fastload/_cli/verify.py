"""The command ``fastload verify``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fastload._cli.options import Commands, add_command, add_dataset, whole_number
from fastload._cli.output import ProgressLine, print_json

if TYPE_CHECKING:
    from fastload._store.verify import VerifyProgress


def add(commands: Commands) -> None:
    verify = add_command(
        commands,
        "verify",
        "check a dataset for damage",
        "Compares sizes and digests of all files, then checks every record: checksum, id,\n"
        "fields, and the values in the columns. Reports shard, record and original file of\n"
        "each fault.\n"
        "Exit code: 0 no faults, 1 faults found, 2 wrong usage.",
        examples="fastload verify packed/train --deep",
    )
    add_dataset(verify)
    verify.add_argument(
        "--deep",
        action="store_true",
        help="also decode every image and mask; decoder warnings count as faults",
    )
    verify.add_argument(
        "--shard",
        type=whole_number(0),
        metavar="N",
        help="check only shard number N, and all columns (default: all shards)",
    )
    verify.add_argument(
        "--jobs",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="number of threads (default: all cores available to this process)",
    )
    verify.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from fastload._store.verify import verify

    line = ProgressLine("verifying", quiet=options.json)

    def show(progress: VerifyProgress) -> None:
        line.total = progress.total
        line.update(progress.done, f"{progress.faults} faults" if progress.faults else "")

    with line:
        report = verify(
            options.dataset,
            deep=options.deep,
            jobs=options.jobs,
            shard=options.shard,
            on_progress=show,
        )
    if options.json:
        print_json(report.as_json())
    else:
        print(report)
    return 0 if report.ok else 1
