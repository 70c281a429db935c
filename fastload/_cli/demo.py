"""The command ``fastload demo``."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from dataclasses import asdict
from pathlib import Path

from fastload._cli.shared import Commands, ProgressLine, add_command, print_json, whole_number
from fastload._common.native import native_status


def add(commands: Commands) -> None:
    add_command(
        commands,
        "demo",
        "try every command on generated data, in two minutes",
        "Generates images, packs, verifies and inspects them, measures the decoding speed,\n"
        "trains a few steps with the torch DataLoader and with fastload, and writes a report.",
        examples="fastload demo --dest /tmp/demo",
        json_help="print the result of every step as JSON",
        options={
            "--dest": {
                "type": Path,
                "default": Path("demo"),
                "help": "folder for all files of the demo (default: %(default)s)",
            },
            "--images": {
                "type": whole_number(1),
                "default": 200,
                "metavar": "N",
                "help": "number of training images (default: %(default)s)",
            },
        },
        run=run,
    )


def run(options: argparse.Namespace) -> int:
    from fastload._common.cpus import available_cpus
    from fastload._tools import demo
    from fastload._tools.scenes import imagenet

    dest = demo.empty_folder(options.dest)
    images = dest / "images"
    packed = dest / "packed"
    steps = _Steps(quiet=options.json)
    steps.announce(
        f"generate {options.images} images in {images}",
        "JPEGs in class folders with the file sizes of real photos",
    )
    with ProgressLine("generating", quiet=options.json) as line:
        made = imagenet.make(
            images, n=options.images, jobs=available_cpus(), on_progress=line.update
        )
    steps.result(str(made))
    for command, why in _commands(dest, images, packed):
        code = steps.command(command, why)
        if code:
            return code
    steps.announce(
        f"python: loader = fastload.DataLoader({str(packed)!r}, split='train', batch_size=32, "
        "shuffle=True, transform=[...])",
        "the only line of a trainer that changes; load two epochs",
    )
    epochs, stats = demo.load_epochs(packed)
    lines = [f"epoch {number}: {epoch}" for number, epoch in enumerate(epochs)]
    steps.result("\n".join([*lines, stats]))
    steps.results["epochs"] = [asdict(epoch) for epoch in epochs]
    steps.announce(
        "python: for images, labels in probe.watch(loader): ...",
        "train and time a few steps with the torch DataLoader and with fastload",
    )
    trained = []
    for training in demo.train(images, packed, dest):
        steps.result(str(training))
        trained.append(training)
    steps.results["training"] = [asdict(training) for training in trained]
    code = steps.command(
        ["report", *(training.metrics for training in trained), "-o", str(dest / "report.html")],
        "write a page that compares the step times of both loaders",
    )
    if code:
        return code
    if options.json:
        print_json({"dest": str(dest), **steps.results})
    else:
        print(
            f"\nAll files are in {dest}. Next: run 'fastload pack YOUR_DATA packed' and change "
            "one line of your trainer (README.md)."
        )
    return 0


def _commands(dest: Path, images: Path, packed: Path) -> list[tuple[list[str], str]]:
    fastest = ["--backend", "native"] if native_status() else []
    plot = ["--plot", str(dest / "decode.html")]
    return [
        (
            ["pack", str(images), str(packed)],
            "lossless, with checksums; rerun the command to resume an interrupted pack",
        ),
        (["verify", str(packed), "--deep"], "check every byte, record and image"),
        (["inspect", str(packed)], "show fields, classes and image sizes"),
        (
            ["inspect", str(packed), "--sheet", str(dest / "sheet.png")],
            "draw samples with their labels",
        ),
        (
            ["bench", "decode", str(packed), "--quick", *fastest, *plot],
            "measure the decoding speed of this machine",
        ),
    ]


class _Steps:
    """Prints each step and its result, or collects the results for ``--json``."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self.results: dict[str, object] = {}

    def announce(self, command: str, why: str) -> None:
        if not self._quiet:
            print(f"\n$ {command}\n  # {why}", flush=True)

    def result(self, text: str) -> None:
        if not self._quiet:
            print(text)

    def command(self, arguments: list[str], why: str) -> int:
        """Runs `fastload` with these arguments and returns its exit code."""
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
