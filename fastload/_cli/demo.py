"""`fastload demo`: all of it on generated data, each step shown as the command that a user would type."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from dataclasses import asdict
from pathlib import Path

from fastload._cli.options import Commands, add_command, whole_number
from fastload._cli.output import ProgressLine, print_json
from fastload._common.native import native_status


def add(commands: Commands) -> None:
    demo = add_command(
        commands,
        "demo",
        "all of it in two minutes on generated data",
        "Generates images, packs them, checks every byte, shows what is there, measures, trains a few steps with the\n"
        "torch DataLoader and with fastload, and draws the report.",
        examples="fastload demo --dest /tmp/demo",
        json_help="print the result of every step as JSON",
    )
    demo.add_argument(
        "--dest",
        type=Path,
        default=Path("demo"),
        help="folder for everything it makes (default: %(default)s)",
    )
    demo.add_argument(
        "--images",
        type=whole_number(1),
        default=200,
        metavar="N",
        help="how many images (default: %(default)s)",
    )
    demo.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from fastload._common.cpus import available_cpus
    from fastload._tools import demo
    from fastload._tools.scenes import imagenet

    dest = demo.empty_folder(options.dest)
    images = dest / "pictures"
    packed = dest / "packed"
    steps = _Steps(quiet=options.json)
    steps.announce(
        f"generate {options.images} images in {images}",
        "photo-like JPEGs in class folders, as large as real photographs of their size",
    )
    with ProgressLine("generating", quiet=options.json) as line:
        made = imagenet.make(
            images, n=options.images, jobs=available_cpus(), on_progress=line.update_of
        )
    steps.result(str(made))
    for command, why in _commands(dest, images, packed):
        code = steps.command(command, why)
        if code:
            return code
    steps.announce(
        f"python: loader = fastload.DataLoader({str(packed)!r}, batch_size=32, shuffle=True, transform=[...])",
        "the one changed line; two epochs",
    )
    loaded = demo.load_epochs(packed)
    steps.result(str(loaded), {"epochs": [asdict(epoch) for epoch in loaded.epochs]})
    steps.announce(
        "python: for images, labels in probe.watch(loader): ...",
        "a few training steps with the torch DataLoader and with fastload, timed",
    )
    trained = []
    for training in demo.train(images, packed, dest):
        steps.result(str(training))
        trained.append(training)
    steps.results["training"] = [training.as_json() for training in trained]
    files = [str(training.metrics) for training in trained]
    code = steps.command(
        ["report", *files, "-o", str(dest / "report.html")],
        "where the time of a step goes, with the old loader and the new one, as a page",
    )
    if code:
        return code
    if options.json:
        print_json({"dest": str(dest), **steps.results})
    else:
        print(
            f"\nAll of it is in {dest}. Next: fastload pack YOUR_DATA packed, then change one line of your trainer (README.md)."
        )
    return 0


def _commands(dest: Path, images: Path, packed: Path) -> list[tuple[list[str], str]]:
    fastest = ["--backend", "native"] if native_status() else []
    plot = ["--plot", str(dest / "decode.html")]
    return [
        (
            ["pack", str(images), str(packed)],
            "same pixels, checksummed, shuffled; a killed pack resumes when it is started again",
        ),
        (["verify", str(packed), "--deep"], "every byte, every record, every image"),
        (["inspect", str(packed)], "what is in it"),
        (
            ["inspect", str(packed), "--sheet", str(dest / "sheet.png")],
            "a page of samples with their labels",
        ),
        (
            ["bench", "decode", str(packed), "--quick", *fastest, *plot],
            "what this machine decodes, and what limits it",
        ),
    ]


class _Steps:
    """Shows each step and its result, or keeps the results for ``--json``."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self.results: dict[str, object] = {}

    def announce(self, command: str, why: str) -> None:
        if not self._quiet:
            print(f"\n$ {command}\n  # {why}", flush=True)

    def result(self, text: str, results: dict[str, object] | None = None) -> None:
        self.results |= results or {}
        if not self._quiet:
            print(text)

    def command(self, arguments: list[str], why: str) -> int:
        """Runs `fastload WORDS`; its exit code."""
        from fastload._cli import main

        line = f"fastload {' '.join(arguments)}"
        self.announce(line, why)
        if not self._quiet:
            return main(arguments)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = main([*arguments, "--json"])
        self.results[line] = json.loads(printed.getvalue() or "{}")
        return code
