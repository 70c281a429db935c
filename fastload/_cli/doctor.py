"""The command ``fastload doctor``."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from fastload._cli.shared import Commands, add_command, add_options, number, print_result
from fastload._tools.doctor.loader.timing import short
from fastload.errors import ConfigError

SCRIPT_EXAMPLE = "fastload doctor --script train.py:make_loader,make_step --seconds 60"
_STYLES = {"BAD": "bold red", "WARN": "bold yellow", "INFO": "dim"}
FORM = "expected PATH:make_loader or PATH:make_loader,make_step, for example train.py:make_loader"


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
        "Exit code: 0 healthy, 1 something to fix, 2 wrong usage. With --require: 0 if all\n"
        "targets are met, else 1.",
        examples="""fastload doctor metrics.jsonl window.json
        fastload doctor batch4.jsonl batch8.jsonl
        fastload doctor metrics.jsonl window.json --require "util>=85 step_cv<10"
        fastload doctor --script train.py:make_loader,make_step
        fastload doctor --data /data/train""",
        options={
            "files": {
                "metavar": "FILE",
                "type": Path,
                "nargs": "*",
                "help": "metrics.jsonl or window.json",
            },
            "--data": {
                "type": Path,
                "metavar": "DIR",
                "help": "also measure the disk of this folder (reads for a few seconds)",
            },
            "--require": {
                "metavar": "TARGETS",
                "help": 'compare the files with targets, for example "util>=85 step_cv<10"; a '
                "target whose value is not known is not met. Names: util, step_cv, data_share, "
                "lost (%%), data_ms, step_ms (ms), it_s, samples_s, swap_mb_s",
            },
        },
        run=run,
    )
    add_options(
        doctor.add_argument_group("measuring a loader", f"Example: {SCRIPT_EXAMPLE}"),
        {
            "--script": {
                "metavar": "FILE.py:MAKE_LOADER[,MAKE_STEP]",
                "help": "call these functions of a script without arguments and measure the "
                "loader, with the "
                "training step if one is named",
            },
            "--seconds": {
                "type": number(1e-6, 86_400, "seconds, more than 0"),
                "default": 60.0,
                "metavar": "S",
                "help": "total measuring time in seconds (default: 60)",
            },
            "--migrate": {
                "action": "store_true",
                "help": "with --script: print the code that replaces the loader by fastload, "
                "measure nothing",
            },
        },
    )


def run(options: argparse.Namespace) -> int:
    if options.require is not None:
        return _run_require(options)
    if options.script or options.migrate:
        return _run_script(options)
    if options.files:
        from fastload._tools.doctor.examine import examine

        diagnosis = examine(*options.files)
        print_result(options, diagnosis, show)
        return 0 if diagnosis.healthy else 1
    from fastload._tools.doctor.machine import check_machine

    machine = check_machine(options.data)
    print_result(options, machine, show)
    return 1 if machine.bad else 0


def _run_require(options: argparse.Namespace) -> int:
    """Prints the diagnosis and each target; returns 1 if a target is missed."""
    from fastload._tools.doctor.examine import examine_runs, study_runs
    from fastload._tools.doctor.require import Checked, check_targets, parse_targets
    from fastload._tools.doctor.runs import read_files

    targets = parse_targets(options.require)
    if not options.files or options.script or options.migrate:
        raise ConfigError("--require needs files and no --script: metrics.jsonl, window.json")
    runs, windows = read_files(options.files)
    studies = study_runs(runs, windows)
    diagnosis = examine_runs(runs, windows, studies)
    checked = Checked(diagnosis, check_targets(targets, studies, windows))
    print_result(options, checked, show)
    return 0 if checked.passed else 1


def _run_script(options: argparse.Namespace) -> int:
    """Prints the diagnosis or the migration; returns 1 if the trainer waits for its loader."""
    from fastload._cli.doctor import call_script
    from fastload._tools.doctor.loader.diagnose import run_diagnosis
    from fastload._tools.migrate.migration import migrate

    if not options.script:
        raise ConfigError(f"--migrate needs --script, for example: {SCRIPT_EXAMPLE}")
    loader, step = call_script(options.script)
    if options.migrate:
        print_result(options, migrate(loader))
        return 0
    found = run_diagnosis(
        loader, step, options.seconds, (lambda _: None) if options.json else _show_phase
    )
    print_result(options, found, show)
    return 0 if found.healthy else 1


def _show_phase(text: str) -> None:
    sys.stderr.write(f"{text} ...\n")


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


def call_script(text: str) -> tuple[Any, Callable[[Any], object] | None]:
    """Returns the loader, and the step if one is named. Every failure is a one-line ConfigError.

    The functions are called without arguments, and ``make_step`` returns a function of one batch. A
    name may also refer to the loader itself.
    """
    file, _, names_text = text.rpartition(":")
    names = [name.strip() for name in names_text.split(",")]
    if not file or len(names) > 2 or not all(name.isidentifier() for name in names):
        raise ConfigError(f"--script {text!r:.120}: {FORM}")
    module = import_script(Path(file))
    loader, step = [*(_call(module, name, file) for name in names), None][:2]
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise ConfigError(
            f"{file}: {names[0]}() returned {type(loader).__name__}; expected an iterable loader"
        )
    if step is not None and not callable(step):
        raise ConfigError(
            f"{file}: {names[1]}() returned {type(step).__name__}; expected a function of one batch"
        )
    return loader, step


def import_script(path: Path) -> ModuleType:
    """Imports the script under its own name, so that worker processes can import it as well.

    Code under ``if __name__ == "__main__"`` does not run. The script's folder is put first in
    sys.path, as when the script is run. An existing module of the same name is not replaced.
    """
    if not path.is_file():
        raise ConfigError(f"--script: {path} does not exist")
    path = path.resolve()
    name = path.stem
    if not name.isidentifier() or name in sys.modules:
        name = f"fastload_script_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--script: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(
            f"--script: importing {path} raised {short(error)}. "
            "Put the training code under if __name__ == '__main__'."
        ) from error
    return module


def _call(module: ModuleType, name: str, file: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        known = sorted(
            each
            for each, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        )
        raise ConfigError(
            f"{file} has no function {name}; it defines {', '.join(known[:12]) or 'none'}"
        )
    if not callable(found) or hasattr(found, "__iter__"):
        return found
    try:
        return found()
    except Exception as error:
        raise ConfigError(
            f"{file}: {name}() raised {short(error)}. It is called without arguments."
        ) from error
