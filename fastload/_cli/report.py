"""The command ``fastload report``."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastload._cli.shared import Commands, ProgressLine, add_command, print_json


def add(commands: Commands) -> None:
    add_command(
        commands,
        "report",
        "write an HTML page with plots about a recorded run",
        "Writes one HTML page about a run: verdict and findings of the doctor, time per step,\n"
        "data wait, distribution of step times, ranks, GPU utilization and versions. The page is\n"
        "self-contained, so it can be mailed and printed.",
        examples="""fastload report metrics.jsonl window.json -o report.html
        fastload report metrics.jsonl --png plots""",
        options={
            "files": {
                "metavar": "FILE",
                "type": Path,
                "nargs": "+",
                "help": "metrics.jsonl files of one or several runs and ranks, and window.json "
                "files",
            },
            "-o, --out": {
                "type": Path,
                "default": Path("report.html"),
                "help": "file for the page (default: %(default)s)",
            },
            "--png": {
                "type": Path,
                "metavar": "DIR",
                "help": "also write each plot as a PNG file to this folder",
            },
        },
        run=run,
        json_help="print the written files and the diagnosis as JSON",
    )


def run(options: argparse.Namespace) -> int:
    from fastload._tools.report import write_report

    with ProgressLine("writing plots", quiet=options.json) as line:
        diagnosis, written = write_report(
            options.files, options.out, png=options.png, on_progress=line.update
        )
    if options.json:
        print_json({"written": [str(path) for path in written], "diagnosis": diagnosis.as_json()})
    else:
        print(diagnosis.verdict, *(f"Wrote {path}" for path in written), sep="\n")
    return 0
