"""`fastload verify`: is a dataset still what was packed?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fastload._cli.options import Commands, add_command, whole_number
from fastload._cli.output import ProgressLine, print_json

if TYPE_CHECKING:
    from fastload._store.verify import VerifyProgress


def add(commands: Commands) -> None:
    verify = add_command(
        commands,
        "verify",
        "check every byte of a dataset",
        "Compares sizes and digests of all files, then reads every record: checksum, number, fields, and whether the\n"
        "columns agree with it. Names the shard, the record and the original file of whatever is wrong.\n"
        "Exit code: 0 fine, 1 something is wrong, 2 used wrongly.",
        examples="fastload verify packed/train --deep",
    )
    verify.add_argument(
        "dataset", metavar="DATASET", type=Path, help="folder that fastload pack wrote"
    )
    verify.add_argument(
        "--deep",
        action="store_true",
        help="also decode every image; a warning of the decoder counts as damage",
    )
    verify.add_argument(
        "--shard",
        type=whole_number(0),
        metavar="N",
        help="only shard number N (the columns are checked anyway)",
    )
    verify.add_argument(
        "--jobs",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="threads (default: every core this process may use)",
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
