"""The command ``fastload doctor``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fastload._cli.options import Commands, add_command, duration
from fastload._cli.output import print_json
from fastload.errors import ConfigError

SCRIPT_EXAMPLE = "fastload doctor --script train.py:make_loader,make_step --seconds 60"
_SECONDS = duration("seconds", least=1e-6, most=86_400, range_text="more than 0")
_STYLES = {"BAD": "bold red", "WARN": "bold yellow", "INFO": "dim"}


def add(commands: Commands) -> None:
    doctor = add_command(
        commands,
        "doctor",
        "find out why the GPU waits and what helps",
        "With files: finds what slows a recorded run down, with evidence, share of the time, one\n"
        "fix and the speed without it. Files are the output of fastload.StepProbe, or JSON lines\n"
        "with iter and iter_time (or time), and a window of fastload monitor. Several runs are\n"
        "compared; files of several ranks are one run. With --script: measures a loader of any\n"
        "kind and suggests changes. Without files and --script: checks the machine.\n"
        "Exit code: 0 healthy, 1 something to fix, 2 wrong usage.",
        examples="""fastload doctor metrics.jsonl window.json
        fastload doctor batch4.jsonl batch8.jsonl
        fastload doctor --script train.py:make_loader,make_step
        fastload doctor --data /data/train""",
    )
    doctor.add_argument(
        "files", metavar="FILE", type=Path, nargs="*", help="metrics.jsonl or window.json"
    )
    doctor.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="also measure the disk of this folder (reads for a few seconds)",
    )
    group = doctor.add_argument_group("measuring a loader", f"Example: {SCRIPT_EXAMPLE}")
    group.add_argument(
        "--script",
        metavar="FILE.py:MAKE_LOADER[,MAKE_STEP]",
        help="call these functions of a script without arguments and measure the loader, with the "
        "training step if one is named",
    )
    group.add_argument(
        "--seconds",
        type=_SECONDS,
        default=60.0,
        metavar="S",
        help="total measuring time in seconds (default: 60)",
    )
    group.add_argument(
        "--migrate",
        action="store_true",
        help="with --script: print the code that replaces the loader by fastload, measure nothing",
    )
    doctor.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.script or options.migrate:
        return _run_script(options)
    if options.files:
        from fastload._tools.doctor.examine import examine

        diagnosis = examine(*options.files)
        print_json(diagnosis.as_json()) if options.json else show(str(diagnosis))
        return 0 if diagnosis.healthy else 1
    from fastload._tools.doctor.machine import check_machine

    machine = check_machine(options.data)
    print_json(machine.as_json()) if options.json else show(str(machine))
    return 1 if machine.bad else 0


def _run_script(options: argparse.Namespace) -> int:
    """Prints the diagnosis or the migration; returns 1 if the trainer waits for its loader."""
    from fastload._tools.doctor.loader.diagnose import run_diagnosis
    from fastload._tools.doctor.loader.script import call_script
    from fastload._tools.migrate.migration import migrate

    if not options.script:
        raise ConfigError(f"--migrate needs --script, for example: {SCRIPT_EXAMPLE}")
    loader, step = call_script(options.script)
    if options.migrate:
        migration = migrate(loader)
        print_json(migration.as_json()) if options.json else print(migration)
        return 0
    show_phase = _ignore if options.json else _show_phase
    found = run_diagnosis(loader, step, options.seconds, show_phase)
    print_json(found.as_json()) if options.json else show(str(found))
    return 0 if found.healthy else 1


def _show_phase(text: str) -> None:
    sys.stderr.write(f"{text} ...\n")


def _ignore(_: str) -> None:
    """Replaces ``_show_phase`` if only JSON may be written."""


def show(text: str) -> None:
    """Prints plain text to a pipe; on a terminal, the verdict is bold and severities colored."""
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
