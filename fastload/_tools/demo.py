"""The last part of `fastload demo`: a few training steps with the loader people have and with fastload, recorded for the report."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SIDE = 160
BATCH = 32


def train(pictures: Path, packed: Path, dest: Path, *, epochs: int = 3) -> list[Path]:
    """Trains with both loaders for a few epochs each; returns the metrics.jsonl of each."""
    import torch

    torch.manual_seed(0)
    written = []
    for name, loader in (
        ("torch", _torch_loader(pictures)),
        ("fastload", _fastload_loader(packed)),
    ):
        path = dest / f"{name}.jsonl"
        steps, seconds, waited = _steps(loader, path, epochs=epochs)
        print(
            f"{name:>8}: {steps} steps in {seconds:.1f} s, {steps * BATCH / seconds:.0f} images/s, {waited / seconds:.0%} of the time "
            "waiting for data"
        )
        written.append(path)
    return written


def _steps(loader: Iterable[Any], path: Path, *, epochs: int) -> tuple[int, float, float]:
    """Steps, seconds, and seconds of waiting; the first epoch, in which workers start, is recorded but not told."""
    import fastload

    step = _step()
    n, waited, begin = 0, 0.0, 0.0
    with fastload.StepProbe(path, every=1) as probe:
        for epoch in range(epochs):
            begin = time.perf_counter() if epoch == 1 else begin
            asked = time.perf_counter()
            for images, labels in probe.watch(loader):
                if epoch:
                    n, waited = n + 1, waited + time.perf_counter() - asked
                with probe.stage("forward"):
                    step(images, labels)
                asked = time.perf_counter()
    close = getattr(loader, "close", None)
    if close is not None:
        close()
    return n, time.perf_counter() - begin, waited


def _step() -> Any:
    """A small conv net and its optimizer, on the GPU where there is one."""
    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    widths = (3, 16, 32, 64)
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.ReLU()) for a, b in itertools.pairwise(widths)
    ]
    model = nn.Sequential(
        *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _torch_loader(pictures: Path) -> Any:
    import torch

    from fastload._common.cpus import available_cpus
    from fastload._tools.bench.export import image_files
    from fastload._tools.bench.torchfolder import FolderImages

    paths = image_files(pictures / "train")
    classes = sorted({path.parent.name for path in paths})

    class Labelled(FolderImages):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index), classes.index(paths[index].parent.name)

    return torch.utils.data.DataLoader(
        Labelled(paths, (SIDE, SIDE)),
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=available_cpus(),
        persistent_workers=True,
    )


def _fastload_loader(packed: Path) -> Any:
    import fastload
    from fastload import transforms as T

    steps = [T.RandomResizedCrop(SIDE), T.HorizontalFlip(), T.Normalize(0.45, 0.225)]
    return fastload.DataLoader(
        packed,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        transform=steps,
        fields=("image", "label"),
    )
