"""The command ``fastload bench decode|load|io``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from fastload._cli.shared import (
    DATASET,
    SPLIT,
    Commands,
    Options,
    ProgressLine,
    add_command,
    byte_size,
    image_size,
    number,
    print_json,
    whole_number,
)
from fastload._common.cpus import available_cpus
from fastload.errors import ConfigError

_NUMBER: dict[str, Any] = {"type": whole_number(1), "metavar": "N"}
_SIZE: dict[str, Any] = {"type": image_size, "metavar": "HxW"}
_FIELD: Options = {"--field": {"metavar": "NAME", "help": "image field (default: the first)"}}
_DECODE: Options = {
    "--size": {
        **_SIZE,
        "action": "append",
        "help": "output size for whole images; can be repeated (default: 256)",
    },
    "--crop": {**_SIZE, "default": (224, 224), "help": "size of the random crops (default: 224)"},
    "--exact": {
        "choices": ("off", "on", "both"),
        "default": "both",
        "help": "decode at full resolution before resizing (default: both)",
    },
    "--threads": {
        **_NUMBER,
        "action": "append",
        "help": "number of threads; can be repeated (default: 1, 2, 4, ... all cores)",
    },
    "--backend": {
        "action": "append",
        "metavar": "NAME",
        "help": "decode backend; can be repeated (default: all that run on this machine)",
    },
    **_FIELD,
    "--samples": {**_NUMBER, "help": "number of samples (default: 256)"},
    "--plot": {
        "type": Path,
        "metavar": "OUT",
        "help": "write scaling curves to a .html, .svg or .png file",
    },
}
_LOAD: Options = {
    "--against": {
        "nargs": "+",
        "metavar": ("torch", "FOLDER"),
        "help": "also measure a torch DataLoader over image files",
    },
    "--compute": {
        "type": number(0.0, 3.6e6, "milliseconds, 0 or more"),
        "default": 0.0,
        "metavar": "MS",
        "help": "time that the consumer computes per batch (default: 0)",
    },
    "--busy": {"action": "store_true", "help": "the consumer computes on the CPU, not on a GPU"},
    "--batch-size": {**_NUMBER, "default": 64, "help": "samples per batch (default: %(default)s)"},
    "--size": {**_SIZE, "default": (224, 224), "help": "size of the random crops (default: 224)"},
    "--workers": {
        "type": whole_number(0),
        "action": "append",
        "metavar": "N",
        "help": "torch worker processes; can be repeated (default: 0, 1, 2, 4, ... all cores)",
    },
    "--threads": {**_NUMBER, "help": "fastload decode threads (default: chosen by the loader)"},
    **_FIELD,
    "--samples": {
        **_NUMBER,
        "default": 2000,
        "help": "without FOLDER: number of images exported as files (default: %(default)s)",
    },
}
_IO: Options = {
    "--bytes": {
        "type": byte_size,
        "metavar": "SIZE",
        "help": "maximum amount to read per measurement (default: 512MiB)",
    },
    "--readers": {
        **_NUMBER,
        "action": "append",
        "help": "number of readers; can be repeated (default: 1, 2, 4, 8, 16)",
    },
    "--warm-only": {"action": "store_true", "help": "do not drop the files from the page cache"},
    "--plot": {
        "type": Path,
        "metavar": "OUT",
        "help": "write MB/s over readers to a .html, .svg or .png file",
    },
}


def add(commands: Commands) -> None:
    bench = add_command(
        commands,
        "bench",
        "measure decoding, loading or the disk with a dataset",
        "Measures decoding, the whole loader, or the disk with a packed dataset, and reports the\n"
        "bottleneck in one sentence.",
        examples="""fastload bench decode packed --size 256 --plot scaling.html
        fastload bench load packed --split train --against torch --compute 50
        fastload bench io packed""",
        options={},
        run=None,
    )
    kinds = bench.add_subparsers(dest="kind", metavar="decode|load|io", required=True)
    add_command(
        kinds,
        "decode",
        "images/s of every decode backend",
        "Decodes images of the dataset with every backend that runs on this machine and with\n"
        "1, 2, 4, ... threads: as stored, as random crops, and resized. Reports median and\n"
        "quartiles over interleaved rounds, after a warm-up.",
        examples="fastload bench decode packed --size 256 --size 640x960 --plot scaling.png",
        options=_shared(5, "minimum seconds per measurement (default: 0.5)") | _DECODE,
        run=run_decode,
    )
    add_command(
        kinds,
        "load",
        "images/s of the whole loader, also compared with torch",
        "Loads random crops for a consumer that computes for a given time per batch.\n"
        "--against torch also measures a torch DataLoader that decodes with Pillow, with\n"
        "several worker counts, over FOLDER or over the dataset's images exported as files.",
        examples="fastload bench load packed --split train --against torch imagenet/train "
        "--compute 50",
        options=_shared(3, "seconds per measurement (default: 4)") | _LOAD,
        run=run_load,
    )
    add_command(
        kinds,
        "io",
        "read throughput of the disk",
        "Reads the shards sequentially, block-shuffled (like the loader) and record by\n"
        "record, with 1 to 16 readers. Measures with a warm and a cold page cache, and\n"
        "compares with the raw speed of the disk.",
        examples="fastload bench io packed --bytes 4GiB --plot disk.html",
        options=_shared(3, "maximum seconds per measurement (default: 3)") | _IO,
        run=run_io,
    )


def _shared(rounds: int, seconds: str) -> Options:
    """Returns the options of all benchmarks; ``rounds`` and ``seconds`` appear in their help."""
    return {
        **DATASET,
        **SPLIT,
        "--rounds": {**_NUMBER, "help": f"number of interleaved rounds (default: {rounds})"},
        "--seconds": {
            "type": number(1e-3, 3.6e6, "seconds, 0.001 or more"),
            "metavar": "S",
            "help": seconds,
        },
        "--quick": {"action": "store_true", "help": "fewer and shorter rounds"},
    }


def run_decode(options: argparse.Namespace) -> int:
    from fastload._store.dataset import open_dataset
    from fastload._tools.bench import charts
    from fastload._tools.bench.decode import measure
    from fastload._tools.bench.decode_work import standard_works
    from fastload._tools.bench.measure import thread_counts

    if options.plot:
        charts.check_plot_path(options.plot)
    quick = options.quick
    works = standard_works(
        options.size or [(256, 256)], crop=options.crop, exact="off" if quick else options.exact
    )
    with ProgressLine("bench decode", quiet=options.json) as line:
        report = measure(
            open_dataset(options.dataset, split=options.split),
            works,
            field=options.field,
            samples=options.samples or (64 if quick else 256),
            threads=sorted(set(options.threads or thread_counts(available_cpus()))),
            backends=options.backend,
            rounds=options.rounds or (3 if quick else 5),
            seconds=options.seconds or (0.1 if quick else 0.5),
            tick=line.update,
        )
    _print_report(options, report, axes=("threads", "images/s"))
    return 0


def run_load(options: argparse.Namespace) -> int:
    from fastload._store.dataset import open_dataset
    from fastload._tools.bench.load import (
        Consumer,
        Contestant,
        image_field,
        measure,
        torch_contestants,
    )

    dataset = open_dataset(options.dataset).select(options.split)
    consumer = Consumer(
        str(options.dataset),
        image_field(dataset, options.field),
        options.batch_size,
        options.size,
        options.compute,
        options.busy,
        seconds=options.seconds or (1.0 if options.quick else 4.0),
        split=options.split,
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
                tick=line.update,
            )
    _print_report(options, report)
    return 1 if any(name.startswith("fastload") for name in report.failed) else 0


def _folder_of(against: list[str]) -> Path | None:
    """Returns FOLDER of ``--against torch FOLDER``."""
    if against[0] != "torch" or len(against) > 2:
        raise ConfigError(
            f"--against {' '.join(against)}: expected 'torch', optionally followed by the folder "
            "of the original images"
        )
    return Path(against[1]) if len(against) == 2 else None


def run_io(options: argparse.Namespace) -> int:
    from fastload._store.dataset import open_dataset
    from fastload._tools.bench import charts, io

    if options.plot:
        charts.check_plot_path(options.plot)
    dataset = open_dataset(options.dataset, split=options.split)
    limit = options.bytes or (64 << 20 if options.quick else 512 << 20)
    blocks, files = io.places(dataset, most_bytes=limit)
    if not blocks:
        raise ConfigError(f"{options.dataset}: expected at least one sample to read, found none")
    with ProgressLine("bench io", quiet=options.json) as line:
        report = io.measure(
            blocks,
            files,
            dataset=str(options.dataset),
            readers=sorted(set(options.readers or (1, 2, 4, 8, 16))),
            rounds=options.rounds or (1 if options.quick else 3),
            most_s=options.seconds or (1.0 if options.quick else 3.0),
            cold=not options.warm_only,
            tick=line.update,
        )
    _print_report(options, report, axes=("readers", "MB/s"))
    return 0


def _print_report(
    options: argparse.Namespace, report: Any, *, axes: tuple[str, str] = ("", "")
) -> None:
    """Writes the plot, if requested, and prints the report; ``axes`` are the labels of the plot."""
    from fastload._tools.bench import charts
    from fastload._tools.bench.measure import in_one_line, machine, own_commit

    plot = getattr(options, "plot", None)
    if plot:
        charts.write_plots(
            plot,
            f"fastload bench {options.kind}",
            report.plots(),
            x_name=axes[0],
            y_name=axes[1],
            notes=[report.conclusion()],
            tables=[report.table().plain()],
        )
    if options.json:
        print_json({**report.as_json(), "commit": own_commit()})
        return
    print(in_one_line(machine()))
    report.table().show()
    if plot:
        print(f"Wrote {plot}")
