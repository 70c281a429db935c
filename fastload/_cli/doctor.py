"""`fastload doctor`: what is slow, why, and what to do."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fastload._cli.options import Commands, print_json
from fastload._tools.diagnose import command

_STYLES = {"BAD": "bold red", "LOOK": "bold yellow", "INFO": "dim"}


def add(commands: Commands) -> None:
    """Adds `fastload doctor`."""
    doctor = commands.add_parser(
        "doctor",
        help="why does the GPU wait, and what helps",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="With files: says what slows a recorded run down: evidence, share of the time, one fix, and the speed without it.\n"
        "Takes what fastload.StepProbe writes, or any JSON lines with iter and iter_time (or time), and a window of\n"
        "fastload monitor. Two runs are compared; files of several ranks are one run. With --script: measures the loader you\n"
        "have today, torch's or any other, and says what to change. With neither: looks at the machine.\n"
        "Exit code: 0 healthy, 1 something to repair, 2 used wrongly.",
        epilog="Example: fastload doctor metrics.jsonl window.json\n"
        "         fastload doctor batch4.jsonl batch8.jsonl\n"
        "         fastload doctor --script train.py:make_loader,make_step\n"
        "         fastload doctor --data /data/train",
    )
    doctor.add_argument(
        "files", metavar="FILE", type=Path, nargs="*", help="metrics.jsonl of a run, window.json"
    )
    doctor.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="measure the disk that holds this folder (reads for some seconds)",
    )
    doctor.add_argument("--json", action="store_true", help="print the result as JSON")
    command.add_options(doctor)
    doctor.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Examines the files, the loader of a script, or the machine."""
    if options.script or options.migrate:
        return command.run_script(options)
    if options.files:
        from fastload._tools.doctor import examine

        diagnosis = examine(*options.files)
        print_json(diagnosis.as_json()) if options.json else show(str(diagnosis))
        return 0 if diagnosis.healthy else 1
    from fastload._tools.doctor.machine import check_machine

    machine = check_machine(options.data)
    print_json(machine.as_json()) if options.json else show(str(machine))
    return 1 if machine.bad else 0


def show(text: str) -> None:
    """Plain when piped; on a terminal the verdict is bold and severities have colours."""
    if not sys.stdout.isatty():
        print(text)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for place, line in enumerate(text.split("\n")):
        styled = Text(line, style="bold" if not place else "")
        for word, style in _STYLES.items():
            styled.highlight_regex(rf"^(\d+\. {word}|{word.lower()} )", style)
        console.print(styled, soft_wrap=True)
