"""The `fastload` command: one module per command, each with `add(commands)` and a function that returns the exit code.

Exit codes: 0 done, 1 the thing checked is bad or could not be done, 2 used wrongly, 130 interrupted.
argparse, not typer: typer 0.29 replaced click by a private copy, and a command line must not break with such news.
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

COMMANDS = ("pack", "verify", "inspect", "bench", "selftest", "monitor", "doctor", "report", "demo")


def parser() -> argparse.ArgumentParser:
    """The whole command line. `--debug` may stand anywhere: main() removes it before parsing."""
    top = argparse.ArgumentParser(
        prog="fastload",
        description="Takes the waiting out of training: packs image datasets and feeds them, decoded, to PyTorch.",
        epilog="Start with: fastload demo. Every command: --help shows an example, --debug the traceback of an error.",
    )
    top.add_argument(
        "--version",
        action="store_true",
        help="print the version and whether the native core is here",
    )
    top.add_argument(
        "--debug", action="store_true", help="show the traceback of an error; may stand anywhere"
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(f"fastload._cli.{name}").add(commands)
        commands.choices[name].set_defaults(own=commands.choices[name])
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (the process's own by default) and returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    try:
        return _run([word for word in words if word != "--debug"])
    except KeyboardInterrupt:
        sys.stderr.write("fastload: interrupted\n")
        return 130
    except BrokenPipeError:  # `fastload inspect ... | head`: the reader has seen enough
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
    if isinstance(error, OSError):  # a file that may not be read, a full disk
        return f"{error}; --debug shows where"
    reason = " ".join(str(error).split())
    return f"internal error: {type(error).__name__}: {reason}; --debug shows the traceback"


def _run(words: Sequence[str]) -> int:
    top = parser()
    try:
        options, unknown = top.parse_known_args(words)
        if unknown:  # said by the command it was meant for, with that one's options, not by the top
            getattr(options, "own", top).error(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as stop:  # --help, or a usage error that argparse has printed
        return stop.code if isinstance(stop.code, int) else 2
    if options.version:
        print(f"fastload {__version__}\n{native_status()}")
        return 0
    if options.command is None:
        top.print_help()
        return 2
    run: Callable[[argparse.Namespace], int] = options.run
    return run(options)
