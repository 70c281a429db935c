"""The child of `fastload bench load`: one loader, and a consumer that computes for a given time with each batch.

python -m fastload._tools.bench.consume '{"kind": "fastload", "dataset": "packed", ...}'
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch

from fastload._tools.bench.children import cpu_s, serve


def main() -> None:
    """Serves rounds: each takes ``batches`` batches after the first ``warm`` ones."""
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(1)

    def make() -> tuple[dict[str, Any], Callable[[str], dict[str, Any]]]:
        loader = make_loader(spec)
        batches = endless(loader)
        return {"kind": spec["kind"]}, lambda _: consume(batches, spec)

    serve(make)


def make_loader(spec: dict[str, Any]) -> Any:
    """What ``kind`` names: fastload over the packed dataset, or torch over image files."""
    size = tuple(spec["size"])
    if spec["kind"] == "fastload":
        import fastload
        from fastload import transforms as T

        steps = [T.RandomResizedCrop(size), T.HorizontalFlip(), T.Normalize(0.45, 0.225)]
        return fastload.DataLoader(
            spec["dataset"],
            batch_size=spec["batch_size"],
            shuffle=True,
            drop_last=True,
            transform=steps,
            fields=(spec["field"],),
            num_workers=spec["workers"],
            backend=spec["backend"],
        )
    from fastload._tools.bench.image_files import FolderImages, image_files

    images = FolderImages(image_files(Path(spec["folder"])), size)
    workers = spec["workers"]
    return torch.utils.data.DataLoader(
        images,
        spec["batch_size"],
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        persistent_workers=workers > 0,
    )


def endless(loader: Any) -> Iterator[Any]:
    """Epoch after epoch; whatever is first in an epoch, starting workers too, is part of what users wait for."""
    while True:
        n = 0
        for batch in loader:
            n += 1
            yield batch
        if not n:
            raise SystemExit("the dataset has less than one batch: take a smaller --batch-size")


def consume(batches: Iterator[Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Seconds waited for each batch and between the ends of batches."""
    for _ in range(spec["warm"]):
        next(batches)
    waits: list[float] = []
    steps: list[float] = []
    n = 0
    family = psutil.Process()
    cpu = cpu_s(family)
    begin = last = time.perf_counter()
    for _ in range(spec["batches"]):
        requested = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - requested)
        images = batch if isinstance(batch, torch.Tensor) else next(iter(batch.values()))
        n += len(images) * (images.shape[1] if images.dim() == 5 else 1)
        compute(spec["compute_ms"] / 1e3, busy=spec["busy"])
        now = time.perf_counter()
        steps.append(now - last)
        last = now
        del batch, images
        if now - begin > spec["seconds"] and len(steps) >= 3:
            break
    return {
        "waits_s": waits,
        "steps_s": steps,
        "n": n,
        "seconds": last - begin,
        "cpu_s": cpu_s(family) - cpu,
    }


def compute(seconds: float, *, busy: bool) -> None:
    """As on a GPU (this thread sleeps), or on the processor itself."""
    if not busy:
        time.sleep(seconds)
        return
    end = time.perf_counter() + seconds
    square = torch.ones(64, 64)
    while time.perf_counter() < end:
        torch.mm(square, square)


if __name__ == "__main__":
    main()
