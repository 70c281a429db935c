"""What benchmarks/trainers.py runs: the five trainers' data, one training in a process of its own, and the figures of its metrics.jsonl."""

from __future__ import annotations

import csv
import importlib
import itertools
import json
import multiprocessing
import os
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import fastload
from benchmarks.evenness import step_to_step, stolen_s, undisturbed
from examples.captcha import rows as captcha_rows
from examples.common import arguments, running
from fastload._common.metrics import StepRow
from fastload._tools.monitor.metrics_file import read_metrics
from fastload._tools.scenes import imagenet
from tools.makedata import captcha, gray, nuscenes, openlane

WAYS = ("plain", "fastload", "no loading")
EPOCHS = 2  # the loss is that of the second
FILLING = 4  # steps at the start of an epoch in which a loader's queue of batches fills
EMPTYING = 4  # steps at its end in which the queue empties
# Imported once, by the process of which every run is a copy: torch takes 3 s to import, and its optimizers another 2 s.
PRELOADED = ("torch._dynamo", "benchmarks.trainer_runs")


@dataclass(frozen=True, slots=True)
class Trainer:
    """One example, and how much of it is run."""

    letter: str
    about: str
    make: Callable[..., object]  # generates the pictures
    made: int  # so many different samples; an epoch repeats them
    batch_size: int
    steps: int  # an epoch
    train: str = "."  # where in the pictures the training samples are
    encode: str = "keep"


# Batches are such that a step takes 0.1 to 0.5 s on two cores: there are enough of them in a few seconds, and each lasts longer than most
# of a virtual machine's slow moments.
TRAINERS = {
    "lanes": Trainer("A", "1920x1280 to 960x720, polylines", openlane.make, 16, 2, 24),
    "bev": Trainer("B", "six cameras of 1600x900 to 704x256", nuscenes.make, 8, 1, 24),
    "gray": Trainer("C", "128x128 gray", gray.make, 320, 96, 24, "train", "raw"),
    "captcha": Trainer("D", "320x160, keypoints", captcha.make, 160, 24, 24),
    "classifier": Trainer("E", "photographs to 224x224", imagenet.make, 160, 48, 24, "train"),
}


@dataclass(frozen=True, slots=True)
class Trained:
    """One training. Times are of its steady steps only; variations of those among them that the host did not disturb."""

    loss: float  # mean of the last epoch
    samples_per_s: float
    waiting: float  # share of the time spent waiting for data
    variation: float  # of the step time: standard deviation over mean
    step_to_step: float  # the same without slow changes: benchmarks/evenness.py
    steps: int  # that count
    disturbed: int = 0  # of them


@dataclass(frozen=True, slots=True)
class Data:
    """One dataset in both forms."""

    source: Path
    packed: Path
    validation: tuple[Path, Path] | None = None  # source, packed

    def words(self, way: str) -> list[str]:
        """The arguments that name it."""
        number = 0 if way == "plain" else 1
        return [
            str((self.source, self.packed)[number]),
            *(["--val", str(self.validation[number])] if self.validation else []),
        ]


def prepare(name: str, trainer: Trainer, folder: Path) -> Data:
    """Pictures, made and packed; an epoch has exactly the steps that are wanted."""
    pictures = folder / "pictures"
    need = trainer.steps * trainer.batch_size
    trainer.make(pictures, n=min(trainer.made, need), jobs=os.cpu_count() or 1)
    source = pictures / trainer.train
    packed = folder / "packed"
    {"lanes": _repeat_frames, "bev": _repeat_rigs, "captcha": _repeat_rows}.get(
        name, _repeat_files
    )(source, need)
    if name == "captcha":
        fastload.pack(
            captcha_rows(str(source)), packed, fields={"image": "image", "points": "points"}
        )
    else:
        fastload.pack(source, packed, encode=trainer.encode)
    if name != "classifier":
        return Data(source, packed)
    fastload.pack(pictures / "val", folder / "packed-val")
    return Data(source, packed, (pictures / "val", folder / "packed-val"))


def _repeat_files(source: Path, need: int) -> None:
    """Class folders: further names of the same files."""
    files = sorted(source.rglob("*.jpg"))
    for number in range(len(files), need):
        file = files[number % len(files)]
        os.link(file, file.with_name(f"{file.stem}-{number}.jpg"))
    for file in files[need:]:
        file.unlink()


def _repeat_frames(source: Path, need: int) -> None:
    """A label file for each, with the same picture behind it."""
    files = sorted((source / "annotations").rglob("*.json"))
    for number in range(len(files), need):
        file = files[number % len(files)]
        shutil.copyfile(file, file.with_name(f"{file.stem}-{number}.json"))


def _repeat_rigs(source: Path, need: int) -> None:
    index = json.loads((source / "samples.json").read_text())
    again = itertools.islice(itertools.cycle(index["samples"]), need)
    index["samples"] = [
        {**sample, "token": f"{sample['token']}{number}"} for number, sample in enumerate(again)
    ]
    (source / "samples.json").write_text(json.dumps(index))


def _repeat_rows(source: Path, need: int) -> None:
    with (source / "labels.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    with (source / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([head, *itertools.islice(itertools.cycle(rows), need)])


def trained(
    name: str, trainer: Trainer, data: Data, way: str, *, seed: int, folder: Path
) -> Trained:
    """One run, in a process of its own; what it printed goes nowhere."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    metrics = folder / f"{name}-{way.replace(' ', '-')}-{seed}.jsonl"
    words = [
        *data.words(way),
        "--batch-size",
        str(trainer.batch_size),
        "--epochs",
        str(EPOCHS),
        "--seed",
        str(seed),
        "--every",
        "1",
        "--metrics",
        str(metrics),
    ]
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(name, words, way, there))
    process.start()
    there.close()
    try:
        losses, stolen = here.recv()
    except EOFError:
        losses = None
        stolen = []
    process.join()
    if process.exitcode or losses is None:
        raise SystemExit(
            f"examples.{name}, {way}: ended with exit code {process.exitcode}, what it said stands above"
        )
    return figures(read_metrics(metrics).steps, losses[-1], trainer.steps, stolen)


def _run(name: str, words: list[str], way: str, answer: Connection) -> None:
    """The child's side: what the example's own last lines do."""
    module = importlib.import_module(
        f"examples.{name}_torch" if way == "plain" else f"examples.{name}"
    )
    parser = arguments(None, batch_size=1, epochs=1)
    parser.add_argument("--val")
    parser.set_defaults(accumulate=4, compile=False, save_every=0, resume=None)
    with running(parser.parse_args(words)) as run:
        probe = _Probe(run.probe, again=way == "no loading")
        losses = module.train(replace(run, main=False, probe=cast(fastload.StepProbe, probe)))
        answer.send((losses, probe.stolen))


class _Probe:
    """A step probe that also looks at what the host takes. ``again``: its loader gives its first batch again and again."""

    def __init__(self, probe: fastload.StepProbe, *, again: bool) -> None:
        self._probe = probe
        self._once = again
        self.stolen: list[float] = []  # seconds of processor time, step by step

    def watch(self, loader: Any) -> Iterator[Any]:
        if self._once:
            n = len(loader)
            batches = iter(loader)
            loader = _Again(next(batches), n)
            del batches  # ends the loader's threads' work
        steps = iter(self._probe.watch(loader))
        before = 0.0
        for number in itertools.count():
            now = stolen_s()  # here the step before ends: the next batch is being asked for
            if number:
                self.stolen.append(now - before)
            before = now
            try:
                batch = next(steps)
            except StopIteration:
                return
            yield batch
            del batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._probe, name)


@dataclass(frozen=True, slots=True)
class _Again:
    batch: Any
    n: int

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(self.batch, self.n)


def figures(
    rows: Iterable[StepRow], loss: float, steps: int, stolen: Sequence[float] = ()
) -> Trained:
    """Of the steps in the middle of each epoch of ``steps``; of all where epochs are too short to have one.

    ``stolen``: what the host took during each step. Those in which it took much are left out of the variations, unless few would be left.
    """
    rows = list(rows)
    filling, emptying = (FILLING, EMPTYING) if steps >= 2 * (FILLING + EMPTYING) else (0, 0)
    steady = [row for row in rows if filling <= (row.iter - 1) % steps < steps - emptying]
    times = [row.iter_time or 0.0 for row in steady]
    waits = [row.data_time or 0.0 for row in steady]
    total = sum(times)
    counted = undisturbed(times, [stolen[row.iter - 1] for row in steady]) if stolen else times
    return Trained(
        loss,
        sum(row.samples or 0 for row in steady) / total,
        sum(waits) / total,
        statistics.pstdev(counted) / statistics.mean(counted),
        step_to_step(counted),
        len(steady),
        len(times) - len(counted),
    )
