"""`fastload doctor --script train.py:make_loader[,make_step]`: the loader of a trainer, diagnosed (fastload/_cli/doctor.py wires it in)."""

from __future__ import annotations

import argparse
import sys

from fastload.errors import ConfigError

EXAMPLE = "fastload doctor --script train.py:make_loader,make_step --seconds 60"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds --script, --seconds and --migrate; ``options.script`` is None where nothing of this was asked for."""
    group = parser.add_argument_group("the loader you have today", f"Example: {EXAMPLE}")
    group.add_argument(
        "--script",
        metavar="FILE.py:MAKE_LOADER[,MAKE_STEP]",
        help="call these functions of a script (without arguments) and diagnose the loader, with the step it feeds",
    )
    group.add_argument(
        "--seconds",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="how long to measure (default: 60)",
    )
    group.add_argument(
        "--migrate",
        action="store_true",
        help="with --script: print how to move that loader to fastload instead",
    )


def run_script(options: argparse.Namespace) -> int:
    """Prints the diagnosis, or the migration; 1 where the trainer waits for its loader (verdict "loader")."""
    from fastload._tools.diagnose.script import call_script

    as_json = bool(getattr(options, "json", False))
    if not options.script:
        raise ConfigError(f"--migrate and --seconds go with --script, e.g. {EXAMPLE}")
    loader, step = call_script(options.script)
    if options.migrate:
        from fastload._tools.migrate.run import migrate

        migration = migrate(loader)
        _show(str(migration), migration.to_json(), as_json=as_json)
        return 0
    from fastload._tools.diagnose.run import diagnose

    if not as_json:
        sys.stderr.write(f"measuring for about {options.seconds:.0f} s ...\n")
    found = diagnose(loader, step, seconds=options.seconds)
    _show(str(found), found.to_json(), as_json=as_json)
    return 1 if found.verdict == "loader" else 0


def _show(text: str, told: dict[str, object], *, as_json: bool) -> None:
    from fastload._cli.options import print_json

    if as_json:
        print_json(told)
    else:
        sys.stdout.write(text + "\n")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, more than 0")
    return value
