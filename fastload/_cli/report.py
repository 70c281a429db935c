"""`fastload report`: a recorded run as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastload._cli.options import Commands, add_command
from fastload._cli.output import ProgressLine, print_json


def add(commands: Commands) -> None:
    report = add_command(
        commands,
        "report",
        "a recorded run as one page with plots",
        "Writes one HTML page about a run: the doctor's verdict, where each step's time goes, waiting for data, step times,\n"
        "ranks, GPU utilization, findings and versions. The page needs no network and no script: mail it, print it.",
        examples="""fastload report metrics.jsonl window.json -o report.html
        fastload report metrics.jsonl --png plots""",
        json_help="print what was written and the diagnosis as JSON",
    )
    report.add_argument(
        "files",
        metavar="FILE",
        type=Path,
        nargs="+",
        help="metrics.jsonl of a run (or its ranks), window.json",
    )
    report.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("report.html"),
        help="the page (default: %(default)s)",
    )
    report.add_argument(
        "--png", type=Path, metavar="DIR", help="also write each plot as a PNG into this folder"
    )
    report.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from fastload._tools.report import write_report

    with ProgressLine("writing plots", quiet=options.json) as line:
        diagnosis, written = write_report(
            options.files, options.out, png=options.png, on_progress=line.update_of
        )
    if options.json:
        print_json({"written": [str(path) for path in written], "diagnosis": diagnosis.as_json()})
    else:
        print(diagnosis.verdict)
        for path in written:
            print(f"written: {path}")
    return 0
