"""The command ``fastload report``."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastload._cli.options import Commands, add_command
from fastload._cli.output import ProgressLine, print_json


def add(commands: Commands) -> None:
    report = add_command(
        commands,
        "report",
        "write an HTML page with plots about a recorded run",
        "Writes one HTML page about a run: verdict and findings of the doctor, time per step,\n"
        "data wait, distribution of step times, ranks, GPU utilization and versions. The page is\n"
        "self-contained, so it can be mailed and printed.",
        examples="""fastload report metrics.jsonl window.json -o report.html
        fastload report metrics.jsonl --png plots""",
        json_help="print the written files and the diagnosis as JSON",
    )
    report.add_argument(
        "files",
        metavar="FILE",
        type=Path,
        nargs="+",
        help="metrics.jsonl files of one or several runs and ranks, and window.json files",
    )
    report.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("report.html"),
        help="file for the page (default: %(default)s)",
    )
    report.add_argument(
        "--png", type=Path, metavar="DIR", help="also write each plot as a PNG file to this folder"
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
            print(f"Wrote {path}")
    return 0
