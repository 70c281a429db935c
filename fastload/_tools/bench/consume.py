"""The child process of `fastload bench load`: one loader, and a consumer of its batches.

The consumer computes for a given time per batch.

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
    spec = json.loads(sys.argv[1])
    torch.set_num_threads(1)

    def make() -> tuple[dict[str, Any], Callable[[str], dict[str, Any]]]:
        batches = endless(make_loader(spec))
        return {"kind": spec["kind"]}, lambda _: consume(batches, spec)

    serve(make)


def make_loader(spec: dict[str, Any]) -> Any:
    """Makes a fastload loader of the packed dataset, or a torch DataLoader of image files."""
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

    return torch.utils.data.DataLoader(
        FolderImages(image_files(Path(spec["folder"])), size),
        spec["batch_size"],
        shuffle=True,
        num_workers=spec["workers"],
        drop_last=True,
        persistent_workers=spec["workers"] > 0,
    )


def endless(loader: Any) -> Iterator[Any]:
    """Batches of one epoch after the other.

    The start of an epoch, including the start of its workers, counts as waiting time.
    """
    while len(loader):
        yield from loader
    raise SystemExit("the dataset has less than one batch: pass a smaller --batch-size")


def consume(batches: Iterator[Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Runs one round of up to ``batches`` batches, after ``warm`` batches that do not count.

    Returns the seconds that each batch took to arrive (``waits_s``) and each step (``steps_s``).
    """
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
    """Spends ``seconds``: sleeping, as if a GPU computed, or ``busy`` on the CPU."""
    if not busy:
        time.sleep(seconds)
        return
    end = time.perf_counter() + seconds
    square = torch.ones(64, 64)
    while time.perf_counter() < end:
        torch.mm(square, square)


if __name__ == "__main__":
    main()
