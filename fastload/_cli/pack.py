"""`fastload pack`: a dataset into shards."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastload._cli.options import Commands, add_command, byte_size
from fastload._cli.output import ProgressLine, print_json
from fastload._common import formatting
from fastload._pack.sources.registry import FORMATS, source_options

if TYPE_CHECKING:
    from fastload._pack.packer import PackProgress


def add(commands: Commands) -> None:
    pack = add_command(
        commands,
        "pack",
        "pack a dataset into shards",
        "Packs a dataset into LMDB shards: same pixels, checksummed, order shuffled. A killed pack resumes where it stopped\n"
        "when the same command is started again.",
        examples="""fastload pack imagenet/train packed/train
        fastload pack labels.csv packed --points corners=x1,y1,x2,y2 --on-error skip""",
    )
    pack.add_argument(
        "source",
        metavar="SOURCE",
        type=Path,
        help="folder, list (.csv, .jsonl), COCO .json, .tar shards, Parquet ...",
    )
    pack.add_argument("dest", metavar="DEST", type=Path, help="new folder for the packed dataset")
    pack.add_argument(
        "--format",
        metavar="NAME",
        help=f"what SOURCE is, where it cannot be told by looking: {', '.join(FORMATS)}",
    )
    what = pack.add_argument_group("what is stored")
    what.add_argument(
        "--encode",
        choices=("keep", "jpeg", "raw", "auto"),
        default="keep",
        help="keep: same pixels, lossless (default); jpeg: re-encode; raw: pixels; auto: measure and choose keep or raw",
    )
    what.add_argument(
        "--quality", type=int, default=90, help="of re-encoded JPEGs (default: %(default)s)"
    )
    what.add_argument(
        "--max-side",
        type=int,
        default=0,
        metavar="N",
        help="shrink larger images; boxes, points and masks go with them (default: never)",
    )
    what.add_argument(
        "--resize",
        type=_size,
        metavar="WxH",
        help="scale every image to this size, whatever its ratio (default: never)",
    )
    what.add_argument(
        "--restart",
        type=_restart,
        default=-1,
        metavar="auto|off|N",
        help="MCUs between restart markers, which let the loader cut a crop out of the file (default: auto)",
    )
    order = pack.add_argument_group("order and files")
    order.add_argument(
        "--order",
        choices=("shuffle", "source"),
        default="shuffle",
        help="default: one seeded shuffle of everything",
    )
    order.add_argument("--seed", type=int, default=0, help="of the shuffle (default: %(default)s)")
    order.add_argument(
        "--shard-size",
        type=byte_size,
        default="512MiB",
        metavar="SIZE",
        help="of one file (default: %(default)s)",
    )
    order.add_argument(
        "--block-size",
        type=byte_size,
        default="8MiB",
        metavar="SIZE",
        help="read in one go (default: %(default)s)",
    )
    run_options = pack.add_argument_group("running")
    run_options.add_argument(
        "--jobs",
        type=int,
        default=0,
        metavar="N",
        help="threads (default: every core this process may use)",
    )
    run_options.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="a bad image: stop and name it (default), or skip it and list it in DEST/pack-log.jsonl",
    )
    run_options.add_argument(
        "--max-bad",
        type=int,
        metavar="N",
        help="with --on-error skip: stop at more than N bad images (default: no limit)",
    )
    _add_source_options(pack)
    pack.set_defaults(run=run)


def _add_source_options(pack: argparse.ArgumentParser) -> None:
    group = pack.add_argument_group("the source (which format has which: docs/sources.md)")
    for option in source_options():
        how: dict[str, Any] = {
            "type": _argument_type(option.parse),
            "metavar": option.metavar or option.argument.upper(),
        }
        if option.repeated:
            how["action"] = "append"
        if option.is_switch:
            how = {"action": "store_true", "default": None}
        group.add_argument(
            option.command_flag, dest=f"source_{option.argument}", help=option.help, **how
        )


def _argument_type(parse: Callable[[str], object]) -> Callable[[str], object]:
    def parsed(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def _source_options(options: argparse.Namespace) -> dict[str, object]:
    """The options that were given; the format refuses one that it lacks, by name."""
    given: dict[str, object] = {}
    for option in source_options():
        value = getattr(options, f"source_{option.argument}")
        if value is not None:
            given[option.argument] = dict(value) if option.repeated else value
    return given


def run(options: argparse.Namespace) -> int:
    from fastload._pack.options import PackOptions
    from fastload._pack.packer import Packer
    from fastload._pack.sources.detect import open_source

    settings = PackOptions(
        encode=options.encode,
        quality=options.quality,
        max_side=options.max_side,
        resize=options.resize,
        restart=options.restart,
        order=options.order,
        seed=options.seed,
        shard_size=options.shard_size,
        block_size=options.block_size,
        on_error=options.on_error,
        max_bad=options.max_bad,
        jobs=options.jobs,
    )
    source = open_source(options.source, format=options.format, **_source_options(options))
    # Before hours of packing: keypoints that came out as numbers are not moved by any transform
    if not options.json:
        fields = ", ".join(
            f"{each.name}: {'list of ' * each.list}{each.kind}" for each in source.fields
        )
        sys.stderr.write(f"{options.source}: {source.name}, with {fields}\n")
    with PackReporter(quiet=options.json) as reporter:
        result = Packer(
            source, options.dest, settings, name=str(options.source.resolve()), on_progress=reporter
        ).run()
    if options.json:
        print_json(result.as_json())
    else:
        print(result)
    return 0


class PackReporter:
    """Shows a pack's progress: rate, time left, bytes in and out, what was skipped."""

    def __init__(self, *, quiet: bool) -> None:
        self._line = ProgressLine("packing", quiet=quiet)
        self._first: tuple[float, int] | None = None

    def __enter__(self) -> PackReporter:
        self._line.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._line.__exit__(None, None, None)

    def __call__(self, progress: PackProgress) -> None:
        """To be called with every sample."""
        now = time.monotonic()
        if progress.stage != "packing":
            self._line.title = progress.stage
            self._line.update(progress.done)
            return
        if self._first is None:
            self._first = (now, progress.done - 1)
        rate = (progress.done - self._first[1]) / max(now - self._first[0], 1e-3)
        self._line.title = "packing"
        self._line.total = progress.total
        self._line.update(
            progress.done,
            f"{rate:.0f}/s, {formatting.byte_size(progress.bytes_in)} in, {formatting.byte_size(progress.bytes_out)} out"
            + (f", {progress.skipped} skipped" if progress.skipped else ""),
        )


def _size(text: str) -> tuple[int, int]:
    width, cross, height = text.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r}: expected WIDTHxHEIGHT, e.g. 960x640")
    return int(width), int(height)


def _restart(text: str) -> int:
    named = {"auto": -1, "off": 0}
    if text not in named and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected auto, off, or a number of MCUs")
    return named[text] if text in named else int(text)
