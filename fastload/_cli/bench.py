"""`fastload bench decode|load|io`: what this machine can do with a dataset."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fastload._cli.options import (
    Commands,
    add_command,
    byte_size,
    duration,
    image_size,
    whole_number,
)
from fastload._cli.output import ProgressLine, print_json
from fastload.errors import ConfigError

if TYPE_CHECKING:
    from fastload._common.tables import Table

_SECONDS = duration("seconds", least=1e-3, most=3.6e6, range_text="0.001 or more")
_MILLISECONDS = duration("milliseconds", least=0.0, most=3.6e6, range_text="0 or more")


class Report(Protocol):
    """What each of the three benchmarks returns."""

    def table(self) -> Table: ...
    def as_json(self) -> dict[str, object]: ...


def add(commands: Commands) -> None:
    bench = add_command(
        commands,
        "bench",
        "what this machine can do with a dataset",
        "Measures decoding, the whole loader, or the disk, with a packed dataset; says in one sentence what the limit is.",
        examples="""fastload bench decode packed/train --size 256 --plot scaling.html
        fastload bench load packed/train --against torch --compute 50
        fastload bench io packed/train""",
        json_help="",
    )
    kinds = bench.add_subparsers(dest="kind", metavar="decode|load|io", required=True)
    _add_decode(kinds)
    _add_load(kinds)
    _add_io(kinds)


def _add_common(
    parser: argparse.ArgumentParser, *, rounds: int, seconds: float, seconds_help: str
) -> None:
    parser.add_argument(
        "dataset", metavar="DATASET", type=Path, help="folder that fastload pack wrote"
    )
    parser.add_argument(
        "--rounds",
        type=whole_number(1),
        metavar="N",
        help=f"interleaved rounds that count (default: {rounds})",
    )
    parser.add_argument(
        "--seconds",
        type=_SECONDS,
        metavar="S",
        help=f"{seconds_help} (default: {seconds:g})",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a first impression: fewer and shorter rounds"
    )


def _add_decode(kinds: Commands) -> None:
    decode = add_command(
        kinds,
        "decode",
        "images/s of every backend that runs here",
        "Decodes images of the dataset with each backend that runs here, with 1, 2, 4 ... threads: as stored, as random\n"
        "crops, and resized. Warm-up does not count; rounds are interleaved; median and quartiles are shown.",
        examples="fastload bench decode packed/train --size 256 --size 640x960 --plot scaling.png",
    )
    _add_common(decode, rounds=5, seconds=0.5, seconds_help="shortest time of one measurement")
    decode.add_argument(
        "--size",
        type=image_size,
        action="append",
        metavar="HxW",
        help="resize whole images to this; may be given again (default: 256)",
    )
    decode.add_argument(
        "--crop",
        type=image_size,
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
        type=whole_number(1),
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
        "--samples", type=whole_number(1), metavar="N", help="how many samples (default: 256)"
    )
    decode.add_argument(
        "--plot", type=Path, metavar="OUT", help="scaling curves as .html, .svg or .png"
    )
    decode.set_defaults(run=run_decode)


def _add_load(kinds: Commands) -> None:
    load = add_command(
        kinds,
        "load",
        "the whole loader with a consumer, against the one you have",
        "Loads random crops for a consumer that computes for a while with each batch. --against torch runs a plain torch\n"
        "DataLoader beside it, decoding with Pillow, with the worker counts people try, over FOLDER or over the dataset's\n"
        "images as files.",
        examples="fastload bench load packed/train --against torch imagenet/train --compute 50 --batch-size 128",
    )
    _add_common(load, rounds=3, seconds=4.0, seconds_help="length of one measurement")
    load.add_argument(
        "--against",
        nargs="+",
        metavar=("torch", "FOLDER"),
        help="also a torch DataLoader over image files",
    )
    load.add_argument(
        "--compute",
        type=_MILLISECONDS,
        default=0.0,
        metavar="MS",
        help="how long the consumer computes with a batch (default: 0)",
    )
    load.add_argument(
        "--busy", action="store_true", help="the consumer computes on the CPU, not on a GPU"
    )
    load.add_argument(
        "--batch-size", type=whole_number(1), default=64, metavar="N", help="(default: %(default)s)"
    )
    load.add_argument(
        "--size",
        type=image_size,
        default=(224, 224),
        metavar="HxW",
        help="of the random crops (default: 224)",
    )
    load.add_argument(
        "--workers",
        type=whole_number(0),
        action="append",
        metavar="N",
        help="worker processes of torch, may be given again (default: 0, 1, 2, 4 ... all cores)",
    )
    load.add_argument(
        "--threads",
        type=whole_number(1),
        metavar="N",
        help="decode threads of fastload (default: decided by the loader)",
    )
    load.add_argument("--field", metavar="NAME", help="which image field (default: the first)")
    load.add_argument(
        "--samples",
        type=whole_number(1),
        default=2000,
        metavar="N",
        help="without FOLDER: most images that are written out as files (default: %(default)s)",
    )
    load.set_defaults(run=run_load)


def _add_io(kinds: Commands) -> None:
    io = add_command(
        kinds,
        "io",
        "how fast the disk gives the records",
        "Reads the shards in sequence, block-shuffled (as the loader does) and record by record at random, with 1 to 16\n"
        "readers, from memory and cold from the disk (dropped from memory before each measurement; checked), beside\n"
        "the raw speed of the disk.",
        examples="fastload bench io packed/train --bytes 4GiB --plot disk.html",
    )
    _add_common(io, rounds=3, seconds=3.0, seconds_help="longest time of one measurement")
    io.add_argument(
        "--bytes",
        type=byte_size,
        metavar="SIZE",
        help="read at most this much each time (default: 512MiB)",
    )
    io.add_argument(
        "--readers",
        type=whole_number(1),
        action="append",
        metavar="N",
        help="may be given again (default: 1, 2, 4, 8, 16)",
    )
    io.add_argument("--warm-only", action="store_true", help="leave the page cache as it is")
    io.add_argument(
        "--plot", type=Path, metavar="OUT", help="MB/s over readers as .html, .svg or .png"
    )
    io.set_defaults(run=run_io)


def run_decode(options: argparse.Namespace) -> int:
    from fastload._common.cpus import available_cpus
    from fastload._store.dataset import open_dataset
    from fastload._tools.bench import charts
    from fastload._tools.bench.decode import Key, measure
    from fastload._tools.bench.decode_work import standard_works
    from fastload._tools.bench.measure import Rounds, thread_counts

    if options.plot:
        charts.check_plot_path(options.plot)
    quick = options.quick
    rounds: Rounds[Key] = Rounds(
        options.rounds or (3 if quick else 5), options.seconds or (0.1 if quick else 0.5)
    )
    works = standard_works(
        options.size or [(256, 256)], crop=options.crop, exact="off" if quick else options.exact
    )
    with ProgressLine("bench decode", quiet=options.json) as line:
        report = measure(
            open_dataset(options.dataset),
            works,
            field=options.field,
            samples=options.samples or (64 if quick else 256),
            threads=sorted(set(options.threads or thread_counts(available_cpus()))),
            backends=options.backend,
            rounds=rounds,
            tick=line.update_of,
        )
    if options.plot:
        charts.write_plots(
            options.plot,
            "fastload bench decode",
            report.plots(),
            x_name="threads",
            y_name="images/s",
            notes=[report.conclusion()],
            tables=[report.table().plain()],
        )
    _print_report(options, report)
    return 0


def run_load(options: argparse.Namespace) -> int:
    from fastload._common.cpus import available_cpus
    from fastload._store.dataset import open_dataset
    from fastload._tools.bench.image_files import image_field
    from fastload._tools.bench.load import Consumer, Contestant, measure, torch_contestants

    dataset = open_dataset(options.dataset)
    consumer = Consumer(
        str(options.dataset),
        image_field(dataset, options.field),
        options.batch_size,
        options.size,
        options.compute,
        options.busy,
        seconds=options.seconds or (1.0 if options.quick else 4.0),
    )
    consumer.check_batch_fits(len(dataset), str(options.dataset), "samples")
    contestants = [Contestant("fastload", "fastload", options.threads)]
    with tempfile.TemporaryDirectory(prefix="fastload-bench-") as exported:
        if options.against:
            contestants += torch_contestants(
                dataset,
                consumer,
                _folder_of(options.against),
                exported=Path(exported),
                workers=options.workers or ([available_cpus()] if options.quick else None),
                limit=options.samples,
            )
        del dataset
        with ProgressLine("bench load", quiet=options.json) as line:
            report = measure(
                consumer,
                contestants,
                rounds=options.rounds or (1 if options.quick else 3),
                tick=line.update_of,
            )
    _print_report(options, report)
    return 1 if any(name.startswith("fastload") for name in report.failed) else 0


def _folder_of(against: list[str]) -> Path | None:
    """The folder after `--against torch`."""
    if against[0] != "torch" or len(against) > 2:
        raise ConfigError(
            f"--against {' '.join(against)}: expected 'torch', and perhaps the folder of the original images"
        )
    return Path(against[1]) if len(against) == 2 else None


def run_io(options: argparse.Namespace) -> int:
    from fastload._store.dataset import open_dataset
    from fastload._tools.bench import charts, io

    if options.plot:
        charts.check_plot_path(options.plot)
    dataset = open_dataset(options.dataset)
    limit = options.bytes or (64 << 20 if options.quick else 512 << 20)
    blocks, files = io.places(dataset, most_bytes=limit)
    if not blocks:
        raise ConfigError(f"{options.dataset} has no samples: nothing to read")
    del dataset  # pages that are mapped stay in memory
    with ProgressLine("bench io", quiet=options.json) as line:
        report = io.measure(
            blocks,
            files,
            dataset=str(options.dataset),
            readers=sorted(set(options.readers or (1, 2, 4, 8, 16))),
            rounds=options.rounds or (1 if options.quick else 3),
            most_s=options.seconds or (1.0 if options.quick else 3.0),
            cold=not options.warm_only,
            tick=line.update_of,
        )
    if options.plot:
        charts.write_plots(
            options.plot,
            "fastload bench io",
            report.plots(),
            x_name="readers",
            y_name="MB/s",
            notes=[report.conclusion()],
            tables=[report.table().plain()],
        )
    _print_report(options, report)
    return 0


def _print_report(options: argparse.Namespace, report: Report) -> None:
    from fastload._tools.bench.machine import in_one_line, machine, own_commit

    if options.json:
        print_json({**report.as_json(), "commit": own_commit()})
        return
    print(in_one_line(machine()))
    report.table().show()
    if getattr(options, "plot", None):
        print(f"plotted: {options.plot}")
