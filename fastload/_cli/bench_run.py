"""What `fastload bench` does once its options are known."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from fastload._cli.options import ProgressLine, print_json
from fastload.errors import ConfigError

if TYPE_CHECKING:
    from fastload._common.tables import Table
    from fastload._store.dataset import Dataset
    from fastload._tools.bench.load import Contestant


def run_decode(options: argparse.Namespace) -> int:
    """Measures decoding."""
    from fastload._common.cpus import available_cpus
    from fastload._store.dataset import open_dataset
    from fastload._tools.bench import plot
    from fastload._tools.bench.decode import Key, measure
    from fastload._tools.bench.measure import Rounds, thread_counts
    from fastload._tools.bench.works import works_for

    if options.plot:
        plot.check(options.plot)
    works = works_for(
        options.size or [(256, 256)],
        crop=options.crop,
        exact="off" if options.quick else options.exact,
    )
    rounds: Rounds[Key] = Rounds(
        options.rounds or (3 if options.quick else 5),
        options.seconds or (0.1 if options.quick else 0.5),
    )
    with ProgressLine("bench decode", None, quiet=options.json) as line:
        report = measure(
            open_dataset(options.dataset),
            works,
            field=options.field,
            samples=options.samples or (64 if options.quick else 256),
            threads=sorted(set(options.threads or thread_counts(available_cpus()))),
            backends=options.backend,
            rounds=rounds,
            tick=_ticking(line),
        )
    if options.plot:
        plots = {
            name: report.curves(name) for name in dict.fromkeys(row.work for row in report.rows)
        }
        plot.write(
            options.plot,
            "fastload bench decode",
            plots,
            x_name="threads",
            y_name="images/s",
            notes=[report.limit()],
            tables=[report.table().plain()],
        )
    _tell(options, report.as_json(), report.table())
    return 0


def run_load(options: argparse.Namespace) -> int:
    """Measures the loader with a consumer."""
    from fastload._store.dataset import open_dataset
    from fastload._tools.bench.load import Consumer, measure

    dataset = open_dataset(options.dataset)
    field = _image_field(dataset, options.field)
    consumer = Consumer(
        str(options.dataset),
        field,
        options.batch_size,
        options.size,
        options.compute,
        options.busy,
        seconds=options.seconds or (1.0 if options.quick else 4.0),
    )
    if len(dataset) < options.batch_size:
        raise ConfigError(
            f"{options.dataset} has {len(dataset)} samples, less than a batch of {options.batch_size}: take a smaller "
            "--batch-size"
        )
    with tempfile.TemporaryDirectory(prefix="fastload-bench-") as folder:
        contestants = _contestants(options, dataset, Path(folder))
        del dataset
        with ProgressLine("bench load", None, quiet=options.json) as line:
            report = measure(
                consumer,
                contestants,
                rounds=options.rounds or (1 if options.quick else 3),
                tick=_ticking(line),
            )
    _tell(options, report.as_json(), report.table())
    return 1 if any(name.startswith("fastload") for name in report.failed) else 0


def _contestants(options: argparse.Namespace, dataset: Dataset, folder: Path) -> list[Contestant]:
    from fastload._common.cpus import available_cpus
    from fastload._tools.bench.export import export_images, image_files
    from fastload._tools.bench.load import Contestant
    from fastload._tools.bench.measure import thread_counts

    found = [Contestant("fastload", "fastload", options.threads)]
    if not options.against:
        return found
    if options.against[0] != "torch" or len(options.against) > 2:
        raise ConfigError(
            f"--against {' '.join(options.against)}: expected 'torch', and perhaps the folder of the original images"
        )
    if len(options.against) == 2:
        folder = Path(options.against[1])
        count = len(image_files(folder))
    else:
        count = export_images(dataset, folder, field=options.field, most=options.samples)
    if count < options.batch_size:
        raise ConfigError(
            f"{folder} has {count} images, less than a batch of {options.batch_size}: take a smaller --batch-size"
        )
    counts = options.workers or (
        [available_cpus()] if options.quick else [0, *thread_counts(available_cpus())]
    )
    return found + [
        Contestant(f"torch, {n} workers", "torch", n, folder=str(folder))
        for n in sorted(set(counts))
    ]


def _image_field(dataset: Dataset, name: str | None) -> str:
    images = [each.name for each in dataset.fields if each.kind.is_image]
    if not images or (name is not None and name not in images):
        raise ConfigError(
            f"image field {name or ''!r:.40}: {dataset.path} has {', '.join(images) or 'none'}"
        )
    return name or images[0]


def run_io(options: argparse.Namespace) -> int:
    """Measures the disk."""
    from fastload._store.dataset import open_dataset
    from fastload._tools.bench import io, plot

    if options.plot:
        plot.check(options.plot)
    dataset = open_dataset(options.dataset)
    blocks, files = io.places(
        dataset, most_bytes=options.bytes or (64 << 20 if options.quick else 512 << 20)
    )
    if not blocks:
        raise ConfigError(f"{options.dataset} has no samples: nothing to read")
    del dataset  # pages that are mapped stay in memory
    with ProgressLine("bench io", None, quiet=options.json) as line:
        report = io.measure(
            blocks,
            files,
            dataset=str(options.dataset),
            readers=sorted(set(options.readers or (1, 2, 4, 8, 16))),
            rounds=options.rounds or (1 if options.quick else 3),
            most_s=options.seconds or (1.0 if options.quick else 3.0),
            cold=not options.warm_only,
            tick=_ticking(line),
        )
    if options.plot:
        plots = {
            name: report.curves(cold=cold)
            for name, cold in (("cold", True), ("warm", False))
            if any(row.cold is cold for row in report.rows)
        }
        plot.write(
            options.plot,
            "fastload bench io",
            plots,
            x_name="readers",
            y_name="MB/s",
            notes=[report.verdict()],
            tables=[report.table().plain()],
        )
    _tell(options, report.as_json(), report.table())
    return 0


class _ticking:  # noqa: N801 - a function with a memory
    """Moves the progress bar; its length is known with the first measurement."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line

    def __call__(self, done: int, total: int) -> None:
        self._line.total = total
        self._line.update(done)


def _tell(options: argparse.Namespace, found: dict[str, object], table: Table) -> None:
    from fastload._tools.bench.machine import commit, in_one_line, machine

    if options.json:
        here = Path(__file__).resolve().parents[2]
        print_json(
            {**found, "commit": commit(here) if (here / "benchmarks").is_dir() else ""}
        )  # of fastload's own checkout
        return
    print(in_one_line(machine()))
    table.show()
    if getattr(options, "plot", None):
        print(f"plotted: {options.plot}")
