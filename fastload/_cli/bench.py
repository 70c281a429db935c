"""`fastload bench decode|load|io`: what this machine can do with a dataset."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastload._cli.bench_run import run_decode, run_io, run_load
from fastload._cli.options import Commands, byte_size

_RAW = argparse.RawDescriptionHelpFormatter


def add(commands: Commands) -> None:
    """Adds `fastload bench` with its three benchmarks."""
    bench = commands.add_parser(
        "bench",
        help="what this machine can do with a dataset",
        formatter_class=_RAW,
        description="Measures decoding, the whole loader, or the disk, with a packed dataset; says in one sentence what the limit is.",
        epilog="Example: fastload bench decode packed/train --size 256 --plot scaling.html\n"
        "         fastload bench load packed/train --against torch --compute 50\n"
        "         fastload bench io packed/train",
    )
    kinds = bench.add_subparsers(dest="kind", metavar="decode|load|io", required=True)
    _add_decode(kinds)
    _add_load(kinds)
    _add_io(kinds)


def _common(
    parser: argparse.ArgumentParser, *, rounds: int, seconds: float, seconds_help: str
) -> None:
    parser.add_argument(
        "dataset", metavar="DATASET", type=Path, help="folder that fastload pack wrote"
    )
    parser.add_argument(
        "--rounds",
        type=positive,
        default=None,
        metavar="N",
        help=f"interleaved rounds that count (default: {rounds})",
    )
    parser.add_argument(
        "--seconds",
        type=seconds_of,
        default=None,
        metavar="S",
        help=f"{seconds_help} (default: {seconds:g})",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a first impression: fewer and shorter rounds"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _add_decode(kinds: Commands) -> None:
    decode = kinds.add_parser(
        "decode",
        help="images/s of every backend that runs here",
        formatter_class=_RAW,
        description="Decodes images of the dataset with each backend that runs here, with 1, 2, 4 ... threads: as stored, as random\n"
        "crops, and resized. Warm-up does not count; rounds are interleaved; median and quartiles are shown.",
        epilog="Example: fastload bench decode packed/train --size 256 --size 640x960 --plot scaling.png",
    )
    _common(decode, rounds=5, seconds=0.5, seconds_help="shortest time of one measurement")
    decode.add_argument(
        "--size",
        type=size_of,
        action="append",
        metavar="HxW",
        help="resize whole images to this; may be given again (default: 256)",
    )
    decode.add_argument(
        "--crop",
        type=size_of,
        default=(224, 224),
        metavar="HxW",
        help="of the random crops (default: 224)",
    )
    decode.add_argument(
        "--exact",
        choices=("off", "on", "both"),
        default="both",
        help="decode at full scale before resizing (default: both)",
    )
    decode.add_argument(
        "--threads",
        type=positive,
        action="append",
        metavar="N",
        help="may be given again (default: 1, 2, 4 ... all cores)",
    )
    decode.add_argument(
        "--backend",
        action="append",
        metavar="NAME",
        help="may be given again (default: all that run here)",
    )
    decode.add_argument("--field", metavar="NAME", help="which image field (default: the first)")
    decode.add_argument(
        "--samples",
        type=positive,
        default=None,
        metavar="N",
        help="how many samples (default: 256)",
    )
    decode.add_argument(
        "--plot", type=Path, metavar="OUT", help="scaling curves as .html, .svg or .png"
    )
    decode.set_defaults(run=run_decode)


def _add_load(kinds: Commands) -> None:
    load = kinds.add_parser(
        "load",
        help="the whole loader with a consumer, against the one you have",
        formatter_class=_RAW,
        description="Loads random crops for a consumer that computes for a while with each batch. --against torch runs a plain torch\n"
        "DataLoader beside it, decoding with Pillow, with the worker counts people try, over FOLDER or over the dataset's\n"
        "images as files.",
        epilog="Example: fastload bench load packed/train --against torch imagenet/train --compute 50 --batch-size 128",
    )
    _common(load, rounds=3, seconds=4.0, seconds_help="length of one measurement")
    load.add_argument(
        "--against",
        nargs="+",
        metavar=("torch", "FOLDER"),
        help="also a torch DataLoader over image files",
    )
    load.add_argument(
        "--compute",
        type=milliseconds,
        default=0.0,
        metavar="MS",
        help="how long the consumer computes with a batch (default: 0)",
    )
    load.add_argument(
        "--busy", action="store_true", help="the consumer computes on the CPU, not on a GPU"
    )
    load.add_argument(
        "--batch-size", type=positive, default=64, metavar="N", help="(default: %(default)s)"
    )
    load.add_argument(
        "--size",
        type=size_of,
        default=(224, 224),
        metavar="HxW",
        help="of the random crops (default: 224)",
    )
    load.add_argument(
        "--workers",
        type=not_negative,
        action="append",
        metavar="N",
        help="worker processes of torch, may be given again (default: 0, 1, 2, 4 ... all cores)",
    )
    load.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="decode threads of fastload (default: decided by the loader)",
    )
    load.add_argument("--field", metavar="NAME", help="which image field (default: the first)")
    load.add_argument(
        "--samples",
        type=positive,
        default=2000,
        metavar="N",
        help="without FOLDER: most images that are written out as files (default: %(default)s)",
    )
    load.set_defaults(run=run_load)


def _add_io(kinds: Commands) -> None:
    io = kinds.add_parser(
        "io",
        help="how fast the disk gives the records",
        formatter_class=_RAW,
        description="Reads the shards in sequence, block-shuffled (as the loader does) and record by record at random, with 1 to 16\n"
        "readers, from memory and cold from the disk (dropped from memory before each measurement; checked), beside\n"
        "the raw speed of the disk.",
        epilog="Example: fastload bench io packed/train --bytes 4GiB --plot disk.html",
    )
    _common(io, rounds=3, seconds=3.0, seconds_help="longest time of one measurement")
    io.add_argument(
        "--bytes",
        type=byte_size,
        default=None,
        metavar="SIZE",
        help="read at most this much each time (default: 512MiB)",
    )
    io.add_argument(
        "--readers",
        type=positive,
        action="append",
        metavar="N",
        help="may be given again (default: 1, 2, 4, 8, 16)",
    )
    io.add_argument("--warm-only", action="store_true", help="leave the page cache as it is")
    io.add_argument(
        "--plot", type=Path, metavar="OUT", help="MB/s over readers as .html, .svg or .png"
    )
    io.set_defaults(run=run_io)


def positive(text: str) -> int:
    """1 or more."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number, 1 or more")
    return int(text)


def not_negative(text: str) -> int:
    """0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number, 0 or more")
    return int(text)


def size_of(text: str) -> tuple[int, int]:
    """``224`` or ``640x960`` (height x width)."""
    sides = text.lower().split("x")
    if not all(side.isdecimal() and 1 <= int(side) <= 16384 for side in sides) or len(sides) > 2:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a size such as 224 or 640x960 (height x width)"
        )
    return int(sides[0]), int(sides[-1])


def seconds_of(text: str) -> float:
    """More than 0, at most an hour."""
    return _real(text, "seconds", least=1e-3)


def milliseconds(text: str) -> float:
    """0 or more."""
    return _real(text, "milliseconds", least=0.0)


def _real(text: str, unit: str, *, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= 3.6e6:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {unit}, {least:g} or more")
    return value
