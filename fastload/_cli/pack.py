"""The command ``fastload pack``."""

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
        "Packs a dataset into LMDB shards. By default, pixels stay the same and the order is\n"
        "shuffled once. Every record has a checksum. An interrupted pack resumes when the same\n"
        "command runs again.",
        examples="""fastload pack imagenet/train packed/train
        fastload pack labels.csv packed --points corners=x1,y1,x2,y2 --on-error skip""",
    )
    pack.add_argument(
        "source",
        metavar="SOURCE",
        type=Path,
        help="folder of images, list (.csv, .jsonl), COCO .json, .tar shards, Parquet, ...",
    )
    pack.add_argument("dest", metavar="DEST", type=Path, help="new folder for the packed dataset")
    pack.add_argument(
        "--format",
        metavar="NAME",
        help=f"format of SOURCE: {', '.join(FORMATS)} (default: detected)",
    )
    stored = pack.add_argument_group("image encoding")
    stored.add_argument(
        "--encode",
        choices=("keep", "jpeg", "raw", "auto"),
        default="keep",
        help="keep: same pixels, lossless; jpeg: re-encode; raw: uncompressed pixels; "
        "auto: measure, then choose keep or raw (default: %(default)s)",
    )
    stored.add_argument(
        "--quality",
        type=int,
        default=90,
        metavar="Q",
        help="JPEG quality for --encode jpeg, 1 to 100 (default: %(default)s)",
    )
    stored.add_argument(
        "--max-side",
        type=int,
        default=0,
        metavar="N",
        help="shrink images whose longer side exceeds N pixels, and scale their boxes, points and "
        "masks (default: never)",
    )
    stored.add_argument(
        "--resize",
        type=_size,
        metavar="WxH",
        help="resize every image to W x H pixels without keeping its aspect ratio (default: never)",
    )
    stored.add_argument(
        "--restart",
        type=_restart,
        default=-1,
        metavar="auto|off|N",
        help="MCUs between JPEG restart markers, which let the loader decode only a crop "
        "(default: auto)",
    )
    order = pack.add_argument_group("order and shards")
    order.add_argument(
        "--order",
        choices=("shuffle", "source"),
        default="shuffle",
        help="shuffle: one seeded shuffle of all samples; source: the order of SOURCE "
        "(default: %(default)s)",
    )
    order.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the shuffle (default: %(default)s)",
    )
    order.add_argument(
        "--shard-size",
        type=byte_size,
        default="512MiB",
        metavar="SIZE",
        help="maximum size of one shard file (default: %(default)s)",
    )
    order.add_argument(
        "--block-size",
        type=byte_size,
        default="8MiB",
        metavar="SIZE",
        help="size of a block, which the loader reads in one piece (default: %(default)s)",
    )
    run_options = pack.add_argument_group("execution")
    run_options.add_argument(
        "--jobs",
        type=int,
        default=0,
        metavar="N",
        help="number of threads (default: all cores available to this process)",
    )
    run_options.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="for a bad sample, stop and name it, or skip it and list it in DEST/pack-log.jsonl "
        "(default: %(default)s)",
    )
    run_options.add_argument(
        "--max-bad",
        type=int,
        metavar="N",
        help="with --on-error skip: stop after more than N bad samples (default: no limit)",
    )
    _add_source_options(pack)
    pack.set_defaults(run=run)


def _add_source_options(pack: argparse.ArgumentParser) -> None:
    group = pack.add_argument_group("options of the source format (see docs/sources.md)")
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
    """Returns the options on the command line. The format rejects options that it does not have."""
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

    settings = PackOptions(**{name: getattr(options, name) for name in PackOptions.__slots__})
    source = open_source(options.source, format=options.format, **_source_options(options))
    # Shown before hours of packing: keypoints detected as plain numbers would not be transformed.
    if not options.json:
        fields = ", ".join(
            f"{each.name}: {'list of ' * each.list}{each.kind}" for each in source.fields
        )
        sys.stderr.write(f"{options.source}: format {source.name}, fields {fields}\n")
    with ProgressLine("packing", quiet=options.json) as line:
        result = Packer(
            source,
            options.dest,
            settings,
            name=str(options.source.resolve()),
            on_progress=PackReporter(line),
        ).run()
    if options.json:
        print_json(result.as_json())
    else:
        print(result)
    return 0


class PackReporter:
    """Shows the progress of a pack: rate, bytes read and written, skipped samples."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line
        self._first: tuple[float, int] | None = None

    def __call__(self, progress: PackProgress) -> None:
        self._line.title = progress.stage
        if progress.stage != "packing":
            self._line.update(progress.done)
            return
        now = time.monotonic()
        if self._first is None:
            self._first = (now, progress.done - 1)
        rate = (progress.done - self._first[1]) / max(now - self._first[0], 1e-3)
        self._line.total = progress.total
        self._line.update(
            progress.done,
            f"{rate:.0f} samples/s, {formatting.byte_size(progress.bytes_in)} read, "
            f"{formatting.byte_size(progress.bytes_out)} written"
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
