"""The Python steps of `fastload demo`: load two epochs, then train with torch and with fastload."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fastload
from fastload import transforms as T
from fastload._common.cpus import available_cpus
from fastload._tools.bench.load import FolderImages, image_files
from fastload.errors import ConfigError

MARKER = ".fastload-demo"  # marks a folder of a demo, which the next demo may delete
SIDE = 160
BATCH_SIZE = 32


def empty_folder(dest: Path) -> Path:
    """Deletes the files of an earlier demo in ``dest``. Raises ConfigError for other files."""
    if dest.exists() and not dest.is_dir():
        raise ConfigError(f"--dest {dest} is a file: expected a folder")
    if dest.is_dir() and any(dest.iterdir()):
        if not (dest / MARKER).exists():
            raise ConfigError(
                f"--dest {dest} has files that are not from a demo: choose another folder"
            )
        shutil.rmtree(dest)
    dest.mkdir(parents=True, exist_ok=True)
    (dest / MARKER).touch()
    return dest


@dataclass(frozen=True, slots=True)
class LoadedEpoch:
    n_images: int
    seconds: float
    last_batch: str  # shape and type

    def __str__(self) -> str:
        return f"{self.n_images} images in {self.seconds:.2f} s, last batch {self.last_batch}"


def load_epochs(packed: Path) -> tuple[list[LoadedEpoch], str]:
    """Loads two epochs of random crops; also returns the statistics of the loader."""
    steps = [T.RandomResizedCrop(224), T.HorizontalFlip(), T.ToDtype("float32")]
    loader = fastload.DataLoader(
        packed, split="train", batch_size=32, shuffle=True, transform=steps
    )
    epochs = []
    for _ in range(2):
        started = time.perf_counter()
        n_images = 0
        for images, _labels in loader:
            n_images += len(images)
        last_batch = f"{tuple(images.shape)} {str(images.dtype).removeprefix('torch.')}"
        epochs.append(LoadedEpoch(n_images, time.perf_counter() - started, last_batch))
    stats = str(loader.stats())
    loader.close()
    return epochs, stats


@dataclass(frozen=True, slots=True)
class Training:
    """A few epochs with one loader.

    The figures exclude the first epoch, in which the workers start.
    """

    loader: str
    metrics: str  # file
    n_steps: int
    seconds: float
    waited_s: float

    def __str__(self) -> str:
        return (
            f"{self.loader:>8}: {self.n_steps} steps in {self.seconds:.1f} s, "
            f"{self.n_steps * BATCH_SIZE / self.seconds:.0f} images/s, "
            f"{100 * self.waited_s / self.seconds:.0f} % of the time waiting for data"
        )


def train(images: Path, packed: Path, dest: Path, *, epochs: int = 3) -> Iterator[Training]:
    """Trains with both loaders and writes a metrics file for each."""
    torch.manual_seed(0)
    for name, loader in (("torch", _torch_loader(images)), ("fastload", _fastload_loader(packed))):
        yield _train_with(name, loader, dest / f"{name}.jsonl", epochs=epochs)


def _train_with(name: str, loader: Iterable[Any], metrics: Path, *, epochs: int) -> Training:
    model = _Model()
    n_steps = 0
    waited_s = 0.0
    started = 0.0
    with fastload.StepProbe(metrics, every=1) as probe:
        for epoch in range(epochs):
            if epoch == 1:
                started = time.perf_counter()
            requested = time.perf_counter()
            for images, labels in probe.watch(loader):
                if epoch:
                    n_steps += 1
                    waited_s += time.perf_counter() - requested
                with probe.stage("forward"):
                    model.step(images, labels)
                requested = time.perf_counter()
    if isinstance(loader, fastload.DataLoader):
        loader.close()
    return Training(name, str(metrics), n_steps, time.perf_counter() - started, waited_s)


class _Model:
    """A small convolutional network with its optimizer, on the GPU if there is one."""

    def __init__(self) -> None:
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        widths = (3, 16, 32, 64)
        blocks = [
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.ReLU())
            for a, b in itertools.pairwise(widths)
        ]
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))
        self._model = nn.Sequential(*blocks, *head).to(self._device)
        self._loss = nn.CrossEntropyLoss()
        self._optimizer = torch.optim.SGD(self._model.parameters(), 0.01)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        loss = self._loss(self._model(images.to(self._device)), labels.to(self._device))
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def _torch_loader(images: Path) -> Any:
    paths = image_files(images / "train")
    classes = sorted({path.parent.name for path in paths})

    class LabeledImages(FolderImages):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index), classes.index(paths[index].parent.name)

    return torch.utils.data.DataLoader(
        LabeledImages(paths, (SIDE, SIDE)),
        BATCH_SIZE,
        shuffle=True,
        drop_last=True,
        num_workers=available_cpus(),
        persistent_workers=True,
    )


def _fastload_loader(packed: Path) -> Any:
    return fastload.DataLoader(
        packed,
        split="train",
        batch_size=BATCH_SIZE,
        shuffle=True,
        drop_last=True,
        transform=[T.RandomResizedCrop(SIDE), T.HorizontalFlip(), T.Normalize(0.45, 0.225)],
    )
