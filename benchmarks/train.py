"""Trains a small CNN on generated images with torch's DataLoader and with fastload.

    python -m benchmarks.train [--seeds 8] [--epochs 4] [--json out.json]

Takes about 4 minutes on 2 cores and compares accuracy, time and waiting of three loaders: torch
(image files, Pillow, full permutation), fastload with its defaults (block shuffle, scaled
decoding), and fastload with shuffle="full" and exact=True, which shows the effect of block shuffle
and DCT scaling on accuracy. Uses CUDA if available.

Runs with the same seed start from the same weights, so accuracies are compared seed by seed
(benchmarks/accuracy.py). The validation images are a generated dataset of their own: with the 160
of the training set's split, their number alone would cause a standard error of 4 points.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

import fastload
from benchmarks.accuracy import BASE, verdict
from fastload import transforms as T
from fastload._common.cpus import available_cpus
from fastload._common.tables import Table
from fastload._tools.bench.load import random_crop
from fastload._tools.bench.measure import commit, in_one_line, machine, number, spread, versions
from fastload._tools.scenes import imagenet

SIDE = 64
MEAN, STD = 0.45, 0.25
SCALE = (0.35, 1.0)
Batches = Callable[[int], Iterable[tuple[torch.Tensor, torch.Tensor]]]  # of an epoch


@dataclass(frozen=True, slots=True)
class Trained:
    """One run."""

    accuracy: float  # on the validation images
    epoch_s: float  # median without the first epoch
    waiting: float  # share of the time spent waiting for data
    loss: float  # mean of the last epoch


class ImageFolder(torch.utils.data.Dataset[Any]):
    """Class folders like in torchvision: Pillow, random resized crop, flip, normalize."""

    def __init__(self, root: Path, *, train: bool) -> None:
        classes = sorted(path.name for path in root.iterdir())
        self.files = [
            (path, classes.index(path.parent.name)) for path in sorted(root.rglob("*.jpg"))
        ]
        self.train = train

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[index]
        with Image.open(path) as file:
            image = file.convert("RGB")
            box = random_crop(image.width, image.height, scale=SCALE) if self.train else None
            small = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)
        pixels = (
            torch.from_numpy(np.array(small))
            .permute(2, 0, 1)
            .float()
            .div_(255)
            .sub_(MEAN)
            .div_(STD)
        )
        return (pixels.flip(2) if self.train and torch.rand(()) < 0.5 else pixels), label


def torch_loader(root: Path, *, batch_size: int, seed: int) -> Batches:
    loader = torch.utils.data.DataLoader(
        ImageFolder(root / "train", train=True),
        batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=available_cpus(),
        persistent_workers=True,
        generator=torch.Generator().manual_seed(seed),
    )
    return lambda _: loader


def fastload_loader(
    packed: Path, *, batch_size: int, seed: int, shuffle: bool | str = True, exact: bool = False
) -> Batches:
    steps = [T.RandomResizedCrop(SIDE, scale=SCALE), T.HorizontalFlip(), T.Normalize(MEAN, STD)]
    loader = fastload.DataLoader(
        packed,
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=True,
        seed=seed,
        transform=steps,
        exact=exact,
        fields=("image", "label"),
    )
    return lambda _: loader


def net(n_classes: int) -> nn.Module:
    widths = (3, 24, 48, 96, 96)
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
        for a, b in itertools.pairwise(widths)
    ]
    return nn.Sequential(
        *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], n_classes)
    )


def train(
    batches: Batches,
    validation: Sequence[tuple[torch.Tensor, torch.Tensor]],
    *,
    epochs: int,
    n_classes: int,
    seed: int,
    steps: int,
) -> Trained:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    model = net(n_classes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-3, total_steps=epochs * steps)
    times = []
    waited = 0.0
    total = 0.0
    losses = list[torch.Tensor]()
    for epoch in range(epochs):
        begin = requested = time.perf_counter()
        losses = []
        for images, labels in batches(epoch):
            waited += time.perf_counter() - requested
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            plan.step()
            losses.append(loss.detach())
            requested = time.perf_counter()
        times.append(time.perf_counter() - begin)
        total += times[-1]
    return Trained(
        accuracy(model, validation, device),
        statistics.median(times[1:] or times),
        waited / total,
        float(torch.stack(losses).mean()),
    )


def accuracy(
    model: nn.Module, validation: Sequence[tuple[torch.Tensor, torch.Tensor]], device: str
) -> float:
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(images.to(device)).argmax(1).cpu() == labels).sum())
            for images, labels in validation
        )
    return right / sum(len(labels) for _, labels in validation)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=800)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--validation", type=int, default=600, help="number of validation images")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    here = machine()
    print(in_one_line(here))
    with tempfile.TemporaryDirectory() as name:
        runs = compare(Path(name), options)
    show(runs, options)
    if options.json:
        report = {
            "machine": here,
            "versions": versions("pillow"),
            "commit": commit(Path(__file__).parent),
            "images": options.images,
            "validation": options.validation,
            "epochs": options.epochs,
            "batch_size": options.batch_size,
            "side": SIDE,
            "runs": {
                name: [
                    {
                        "accuracy": run.accuracy,
                        "epoch_s": run.epoch_s,
                        "waiting": run.waiting,
                        "loss": run.loss,
                    }
                    for run in trained
                ]
                for name, trained in runs.items()
            },
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def compare(folder: Path, options: argparse.Namespace) -> dict[str, list[Trained]]:
    """Trains with each loader for each seed, interleaved."""
    imagenet.make(
        folder / "images", n=options.images, n_classes=options.classes, jobs=available_cpus()
    )
    fastload.pack(folder / "images" / "train", folder / "packed")
    imagenet.make(
        folder / "validation",
        n=options.validation,
        n_classes=options.classes,
        jobs=available_cpus(),
        seed=1,
    )
    held = ImageFolder(folder / "validation" / "train", train=False)
    images, labels = zip(*(held[i] for i in range(len(held))), strict=True)
    validation = [(torch.stack(images), torch.tensor(labels))]
    size = options.batch_size
    steps = options.images // options.batch_size
    makers: dict[str, Callable[[int], Batches]] = {
        BASE: lambda seed: torch_loader(folder / "images", batch_size=size, seed=seed),
        "fastload": lambda seed: fastload_loader(folder / "packed", batch_size=size, seed=seed),
        "fastload, full shuffle, exact": lambda seed: fastload_loader(
            folder / "packed", batch_size=size, seed=seed, shuffle="full", exact=True
        ),
    }
    runs: dict[str, list[Trained]] = {name: [] for name in makers}
    for seed in range(options.seeds):
        for name, maker in makers.items():
            sys.stderr.write(f"seed {seed}: {name} ...\n")
            runs[name].append(
                train(
                    maker(seed),
                    validation,
                    epochs=options.epochs,
                    n_classes=options.classes,
                    seed=seed,
                    steps=steps,
                )
            )
    return runs


def show(runs: dict[str, list[Trained]], options: argparse.Namespace) -> None:
    table = Table(
        f"training on {options.images} images, {options.epochs} epochs, {options.seeds} seeds",
        ("loader", "accuracy", "epoch s", "waiting", "loss"),
    )
    for name, trained in runs.items():
        values = [run.accuracy for run in trained]
        table.rows.append(
            (
                name,
                f"{statistics.mean(values):.1%} [{min(values):.1%}-{max(values):.1%}]",
                str(spread([run.epoch_s for run in trained])),
                f"{statistics.mean(run.waiting for run in trained):.0%}",
                number(statistics.mean(run.loss for run in trained)),
            )
        )
    table.notes = [verdict({name: [run.accuracy for run in own] for name, own in runs.items()})]
    table.show()


if __name__ == "__main__":
    sys.exit(main())
