"""The command ``fastload pack``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastload._cli.shared import (
    JOBS,
    Commands,
    Options,
    ProgressLine,
    add_command,
    add_options,
    byte_size,
    print_result,
)
from fastload._common import formatting
from fastload._pack.sources.registry import FORMATS, source_options

if TYPE_CHECKING:
    from fastload._pack.options import PackProgress, PackResult
    from fastload._pack.sources.base import AnySource


EXECUTION: Options = {
    **JOBS,
    "--on-error": {
        "choices": ("stop", "skip"),
        "default": "stop",
        "help": "for a bad sample, stop and name it, or skip it and list it in "
        "DEST/pack-log.jsonl "
        "(default: %(default)s)",
    },
    "--max-bad": {
        "type": int,
        "metavar": "N",
        "help": "with --on-error skip: stop after more than N bad samples (default: no limit)",
    },
}


def add(commands: Commands) -> None:
    pack = add_command(
        commands,
        "pack",
        "pack a dataset into shards",
        "Packs a dataset into LMDB shards. By default, pixels stay the same and the order is\n"
        "shuffled once. Every record has a checksum. After Ctrl-C or a crash, the same command\n"
        "continues with the next sample.",
        examples="""fastload pack imagenet packed
        fastload pack labels.csv packed --points corners=x1,y1,x2,y2 --on-error skip""",
        options={
            "source": {
                "metavar": "SOURCE",
                "type": Path,
                "help": "folder of images, list (.csv, .jsonl), COCO .json, .tar shards, Parquet, "
                "...",
            },
            "dest": {
                "metavar": "DEST",
                "type": Path,
                "help": "new folder for the packed dataset",
            },
            "--format": {
                "metavar": "NAME",
                "help": f"format of SOURCE: {', '.join(FORMATS)} (default: detected)",
            },
        },
        run=run,
    )
    add_options(
        pack.add_argument_group("image encoding"),
        {
            "--encode": {
                "choices": ("keep", "copy", "jpeg", "raw", "auto"),
                "default": "keep",
                "help": "keep: same pixels, lossless; copy: same bytes, fastest to pack, crops "
                "decode slower; jpeg: re-encode; raw: uncompressed pixels; "
                "auto: measure, then choose keep or raw (default: %(default)s)",
            },
            "--quality": {
                "type": int,
                "default": 90,
                "metavar": "Q",
                "help": "JPEG quality for --encode jpeg, 1 to 100 (default: %(default)s)",
            },
            "--max-side": {
                "type": int,
                "default": 0,
                "metavar": "N",
                "help": "shrink images whose longer side exceeds N pixels, and scale their boxes, "
                "points and "
                "masks (default: never)",
            },
            "--resize": {
                "type": _size,
                "metavar": "WxH",
                "help": "resize every image to W x H pixels without keeping its aspect ratio "
                "(default: never)",
            },
            "--max-bits": {
                "type": int,
                "choices": (8, 16),
                "default": 16,
                "help": "bits per channel: 16 keeps images of 16 bits; 8 reduces them to their "
                "upper 8 bits (default: %(default)s)",
            },
            "--restart": {
                "type": _restart,
                "default": -1,
                "metavar": "auto|off|N",
                "help": "MCUs between JPEG restart markers, which let the loader decode only a "
                "crop "
                "(default: auto)",
            },
        },
    )
    add_options(
        pack.add_argument_group("order and shards"),
        {
            "--order": {
                "choices": ("shuffle", "source"),
                "default": "shuffle",
                "help": "order within each split: shuffle, with --seed, or source, as in SOURCE "
                "(default: %(default)s)",
            },
            "--seed": {
                "type": int,
                "default": 0,
                "metavar": "N",
                "help": "seed of the shuffle (default: %(default)s)",
            },
            "--shard-size": {
                "type": byte_size,
                "default": "512MiB",
                "metavar": "SIZE",
                "help": "size of one shard file, on average (default: %(default)s)",
            },
            "--block-size": {
                "type": byte_size,
                "default": "8MiB",
                "metavar": "SIZE",
                "help": "size of a block, which the loader reads in one piece (default: "
                "%(default)s)",
            },
        },
    )
    add_options(
        pack.add_argument_group("execution"),
        {
            **EXECUTION,
            "--dry-run": {
                "action": "store_true",
                "help": "list SOURCE and encode a few samples, print what would be packed, and "
                "write nothing",
            },
            "--part": {
                "type": _part,
                "metavar": "I/N",
                "help": "pack share I of N (from 0), while other processes or machines that share "
                "DEST pack the others; the one that completes the last share publishes "
                "(default: pack all)",
            },
            "--engine": {
                "choices": ("ray",),
                "help": "pack the parts as tasks of a Ray cluster that shares DEST: the one of "
                "RAY_ADDRESS, of this machine, or a new local one; --jobs sets the threads per "
                "task, default 1 (default: threads of this process)",
            },
        },
    )
    add_source_options(pack)


def add_source_options(pack: argparse.ArgumentParser) -> None:
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


def given_source_options(options: argparse.Namespace) -> dict[str, object]:
    """Returns the options on the command line. The format rejects options that it does not have."""
    given: dict[str, object] = {}
    for option in source_options():
        value = getattr(options, f"source_{option.argument}")
        if value is not None:
            given[option.argument] = dict(value) if option.repeated else value
    return given


def run(options: argparse.Namespace) -> int:
    from fastload._pack.options import PackOptions
    from fastload._pack.preview import preview_pack
    from fastload._pack.sources.detect import open_source

    chosen = {name: getattr(options, name) for name in PackOptions.__slots__}
    given = given_source_options(options)
    source = open_source(options.source, format=options.format, **given)
    if options.dry_run:
        print_result(options, preview_pack(source, PackOptions(**chosen)))
        return 0
    # Shown before hours of packing: keypoints detected as plain numbers would not be transformed.
    if not options.json:
        fields = ", ".join(
            f"{each.name}: {'list of ' * each.list}{each.kind}" for each in source.fields
        )
        sys.stderr.write(f"{options.source}: format {source.name}, fields {fields}\n")
    with ProgressLine("packing", quiet=options.json) as line:
        result = _pack(options, source, chosen, given, PackReporter(line))
    print_result(options, result)
    return 0


def _pack(
    options: argparse.Namespace,
    source: AnySource,
    chosen: dict[str, Any],
    given: dict[str, object],
    on_progress: Callable[[PackProgress], None],
) -> PackResult:
    from fastload._pack.options import PackOptions
    from fastload._pack.packer import Packer, pack, share_of

    if options.engine is not None:
        return pack(
            options.source,
            options.dest,
            format=options.format,
            source_options=given,
            on_progress=on_progress,
            part=options.part,
            engine=options.engine,
            **chosen,
        )
    return Packer(
        source,
        options.dest,
        PackOptions(**chosen),
        name=str(options.source.resolve()),
        source_options=given,
        on_progress=on_progress,
        choose_parts=None if options.part is None else share_of(options.part),
    ).run()


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
            if progress.resumed_at:
                kept = formatting.count(progress.resumed_at, "sample")
                self._line.note(f"Took over {kept} of an interrupted run")
        rate = (progress.done - self._first[1]) / max(now - self._first[0], 1e-3)
        self._line.update(
            progress.done,
            progress.total,
            f"{rate:.0f} samples/s, {formatting.byte_size(progress.bytes_in)} read, "
            f"{formatting.byte_size(progress.bytes_out)} written"
            + (f", {progress.skipped} skipped" if progress.skipped else "")
            + (f", {progress.retries} retries" if progress.retries else ""),
        )


def _size(text: str) -> tuple[int, int]:
    width, cross, height = text.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r}: expected WIDTHxHEIGHT, e.g. 960x640")
    return int(width), int(height)


def _part(text: str) -> tuple[int, int]:
    i, slash, n = text.partition("/")
    if not (slash and i.isdecimal() and n.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r}: expected I/N, for example 0/40 to 39/40")
    return int(i), int(n)


def _restart(text: str) -> int:
    named = {"auto": -1, "off": 0}
    if text not in named and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected auto, off, or a number of MCUs")
    return named[text] if text in named else int(text)
