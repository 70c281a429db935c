"""Runs the trainers of benchmarks/trainers.py: datasets, one process per training, its figures."""

from __future__ import annotations

import copy
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
EPOCHS = 2  # the loss is taken from the second
FILLING = 4  # steps at the start of an epoch in which the prefetch queue fills
EMPTYING = 4  # steps at its end in which the queue drains
HELD = 8  # batches that "no loading" keeps in memory and repeats
# Imported once by the fork server: torch takes 3 s to import, and its optimizers another 2 s.
PRELOADED = ("torch._dynamo", "benchmarks.trainer_runs")


@dataclass(frozen=True, slots=True)
class Trainer:
    """One example and the size of its run."""

    letter: str
    about: str
    make: Callable[..., object]  # generates the images
    made: int  # number of different samples, which an epoch repeats
    batch_size: int
    steps: int  # per epoch
    train: str = "."  # subfolder with the samples of the training split
    encode: str = "keep"


# With these batch sizes a step takes 0.1 to 0.5 s on two cores: a few seconds contain enough steps,
# and a step lasts longer than most slow moments of a virtual machine.
TRAINERS = {
    "lanes": Trainer(
        "A", "1920x1280 to 960x720, polylines", openlane.make, 16, 2, 24, "annotations/training"
    ),
    "bev": Trainer("B", "six cameras of 1600x900 to 704x256", nuscenes.make, 8, 1, 24),
    "gray": Trainer("C", "128x128 gray", gray.make, 320, 96, 24, "train", "raw"),
    "captcha": Trainer("D", "320x160, keypoints", captcha.make, 160, 24, 24),
    "classifier": Trainer("E", "photographs to 224x224", imagenet.make, 160, 48, 24, "train"),
}


@dataclass(frozen=True, slots=True)
class Trained:
    """One training run. Times cover the steady steps, variations the undisturbed ones of them."""

    loss: float  # mean of the last epoch
    samples_per_s: float
    waiting: float  # share of the time spent waiting for data
    variation: float  # standard deviation of the step time divided by its mean
    step_to_step: float  # the same without slow changes (benchmarks/evenness.py)
    steps: int  # number of steady steps
    disturbed: int = 0  # how many of them the host disturbed


@dataclass(frozen=True, slots=True)
class Data:
    """One dataset as files and packed."""

    source: Path
    packed: Path


def prepare(name: str, trainer: Trainer, folder: Path) -> Data:
    """Generates and packs images, so that an epoch has exactly ``trainer.steps`` steps."""
    images = folder / "images"
    need = trainer.steps * trainer.batch_size
    trainer.make(images, n=min(trainer.made, need), jobs=os.cpu_count() or 1)
    packed = folder / "packed"
    {"lanes": _repeat_frames, "bev": _repeat_rigs, "captcha": _repeat_rows}.get(
        name, _repeat_files
    )(images / trainer.train, need)
    if name == "captcha":
        fastload.pack(
            captcha_rows(str(images)), packed, fields={"image": "image", "points": "points"}
        )
    else:
        fastload.pack(images, packed, encode=trainer.encode)
    return Data(images, packed)


def _repeat_files(source: Path, need: int) -> None:
    """Adds hard links to the files of class folders."""
    files = sorted(source.rglob("*.jpg"))
    for number in range(len(files), need):
        file = files[number % len(files)]
        os.link(file, file.with_name(f"{file.stem}-{number}.jpg"))
    for file in files[need:]:
        file.unlink()


def _repeat_frames(source: Path, need: int) -> None:
    """Copies label files, which keep referring to the same images."""
    files = sorted(source.rglob("*.json"))
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
    """Runs one training in its own process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    metrics = folder / f"{name}-{way.replace(' ', '-')}-{seed}.jsonl"
    words = [
        str(data.source if way == "plain" else data.packed),
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
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(name, words, way, sender))
    process.start()
    sender.close()
    try:
        losses, stolen = receiver.recv()
    except EOFError:
        losses = None
        stolen = []
    process.join()
    if process.exitcode or losses is None:
        raise SystemExit(
            f"examples.{name}, {way}: the process ended with exit code {process.exitcode}; see its "
            "output above"
        )
    return figures(read_metrics(metrics).steps, losses[-1], trainer.steps, stolen)


def _run(name: str, words: list[str], way: str, answer: Connection) -> None:
    """Runs in the child process, like the last lines of the example."""
    module = importlib.import_module(
        f"examples.{name}_torch" if way == "plain" else f"examples.{name}"
    )
    parser = arguments(None, batch_size=1, epochs=1)
    parser.set_defaults(accumulate=4, compile=False, save_every=0, resume=None)
    with running(parser.parse_args(words)) as run:
        probe = _Probe(run.probe, repeat=way == "no loading")
        losses = module.train(replace(run, main=False, probe=cast(fastload.StepProbe, probe)))
        answer.send((losses, probe.stolen))


class _Probe:
    """A step probe that also records the CPU time that the host takes during each step.

    With ``repeat``, the loader returns its first HELD batches again and again. A single batch would
    change the training itself: the model soon fits it, and the time of a step depends on that.
    """

    def __init__(self, probe: fastload.StepProbe, *, repeat: bool) -> None:
        self._probe = probe
        self._repeat = repeat
        self.stolen: list[float] = []  # CPU seconds per step

    def watch(self, loader: Any) -> Iterator[Any]:
        if self._repeat:
            n = len(loader)
            batches = iter(loader)
            # Copied: the loader's buffers are freed, and its threads end with the iterator.
            loader = _Repeated(copy.deepcopy(list(itertools.islice(batches, HELD))), n)
            del batches
        steps = iter(self._probe.watch(loader))
        before = 0.0
        for number in itertools.count():
            now = stolen_s()  # the previous step ends when the next batch is requested
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
class _Repeated:
    batches: list[Any]
    n: int

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(itertools.cycle(self.batches), self.n)


def figures(
    rows: Iterable[StepRow], loss: float, steps: int, stolen: Sequence[float] = ()
) -> Trained:
    """Figures of the steps in the middle of each epoch, or of all steps if epochs are too short.

    ``stolen`` is the CPU time that the host took during each step. Disturbed steps do not count for
    the variations, unless more than half would be excluded.
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
