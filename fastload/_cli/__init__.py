"""The command ``fastload``.

Each module has ``add(commands)`` and a function that returns the exit code.

Exit codes: 0 success, 1 a check failed or the work could not be done, 2 wrong usage, 130
interrupted. The parser is argparse: typer 0.29 replaced click with a private copy, and such changes
must not break the command line.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from fastload._common.native import native_status
from fastload._version import __version__
from fastload.errors import ConfigError, FastloadError

COMMANDS = (
    *("pack", "append", "merge", "filter", "export", "reindex", "diff"),
    *("verify", "inspect", "bench"),
    *("selftest", "monitor", "doctor", "report", "demo"),
)


def parser() -> argparse.ArgumentParser:
    """Returns the parser. ``main`` removes ``--debug`` first, so that it may be at any position."""
    top = argparse.ArgumentParser(
        prog="fastload",
        description="Packs image datasets and loads them for PyTorch training without data stalls.",
        epilog="Start with 'fastload demo'. 'fastload COMMAND --help' shows options and examples.",
    )
    top.add_argument(
        "--version",
        action="store_true",
        help="print the version and the status of the native core",
    )
    top.add_argument("--debug", action="store_true", help="print the traceback of an error")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(f"fastload._cli.{name}").add(commands)
        commands.choices[name].set_defaults(own=commands.choices[name])
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line ``argv`` (default: ``sys.argv``) and returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    try:
        return _run([word for word in words if word != "--debug"])
    except KeyboardInterrupt as interrupt:
        sys.stderr.write(f"fastload: {str(interrupt) or 'interrupted'}\n")
        return 130
    except BrokenPipeError:  # for example `fastload inspect ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        sys.stderr.write(f"fastload: {_one_line(error)}\n")
        return 2 if isinstance(error, ConfigError) else 1


def _one_line(error: Exception) -> str:
    if isinstance(error, FastloadError):
        return str(error)
    if isinstance(error, OSError):  # such as missing permissions or a full disk
        return f"{error}. Use --debug to see where."
    reason = " ".join(str(error).split())
    return f"internal error: {type(error).__name__}: {reason}. Use --debug for the traceback."


def _run(words: Sequence[str]) -> int:
    top = parser()
    try:
        options, unknown = top.parse_known_args(words)
        if unknown:  # reported by the parser of the command, with the usage of that command
            getattr(options, "own", top).error(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as stop:  # --help, or a usage error that argparse has already printed
        return stop.code if isinstance(stop.code, int) else 2
    if options.version:
        print(f"fastload {__version__}\n{native_status()}")
        return 0
    if options.command is None:
        top.print_help()
        return 2
    run: Callable[[argparse.Namespace], int] = options.run
    return run(options)
