"""`fastload doctor`: what is slow, why, and what to do."""

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
        "why does the GPU wait, and what helps",
        "With files: says what slows a recorded run down: evidence, share of the time, one fix, and the speed without it.\n"
        "Takes what fastload.StepProbe writes, or any JSON lines with iter and iter_time (or time), and a window of\n"
        "fastload monitor. Two runs are compared; files of several ranks are one run. With --script: measures the loader you\n"
        "have today, torch's or any other, and says what to change. With neither: looks at the machine.\n"
        "Exit code: 0 healthy, 1 something to repair, 2 used wrongly.",
        examples="""fastload doctor metrics.jsonl window.json
        fastload doctor batch4.jsonl batch8.jsonl
        fastload doctor --script train.py:make_loader,make_step
        fastload doctor --data /data/train""",
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
    group = doctor.add_argument_group("the loader you have today", f"Example: {SCRIPT_EXAMPLE}")
    group.add_argument(
        "--script",
        metavar="FILE.py:MAKE_LOADER[,MAKE_STEP]",
        help="call these functions of a script (without arguments) and diagnose the loader, with the step it feeds",
    )
    group.add_argument(
        "--seconds",
        type=_SECONDS,
        default=60.0,
        metavar="S",
        help="how long to measure (default: 60)",
    )
    group.add_argument(
        "--migrate",
        action="store_true",
        help="with --script: print how to move that loader to fastload instead",
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
    """Prints the diagnosis, or the migration; 1 where the trainer waits for its loader."""
    from fastload._tools.doctor.loader.diagnose import diagnose
    from fastload._tools.doctor.loader.script import call_script
    from fastload._tools.migrate.migration import migrate

    if not options.script:
        raise ConfigError(f"--migrate and --seconds go with --script, e.g. {SCRIPT_EXAMPLE}")
    loader, step = call_script(options.script)
    if options.migrate:
        migration = migrate(loader)
        print_json(migration.as_json()) if options.json else print(migration)
        return 0
    if not options.json:
        sys.stderr.write(f"measuring for about {options.seconds:.0f} s ...\n")
    found = diagnose(loader, step, seconds=options.seconds)
    print_json(found.as_json()) if options.json else show(str(found))
    return 0 if found.healthy else 1


def show(text: str) -> None:
    """Plain when piped; on a terminal the verdict is bold and severities have colors."""
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
