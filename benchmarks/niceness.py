"""Speed and variation of the loader by the niceness of its decode threads.

    python -m benchmarks.niceness [--nicer 0,5,10,19] [--rounds 12] [--busy]

The constant is kNiceIncrement in native/pool/pool.cpp. Needs Linux and root or CAP_SYS_NICE. The
consumer takes batches of 64 (RandomResizedCrop 224 of the photographs of the corpus) and does
nothing else; with --busy it computes between them on all CPUs, like a trainer on the CPU. Every
round loads an epoch with each niceness, in reverse order in every second round. *variation* is from
one batch to the next (benchmarks/evenness.py).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

import fastload
from benchmarks.evenness import step_to_step, tail
from benchmarks.loads import RRC, pack_photos
from benchmarks.machine import describe, spread

BATCH = 64


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nicer", default="0,5,10,19", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--copies", type=int, default=8, help="copies of each photograph of the corpus"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--busy", action="store_true", help="compute between batches")
    options = parser.parse_args(argv)
    for key, value in describe("torch").items():
        print(f"{key:>12}: {value}")
    nicer = [int(each) for each in options.nicer.split(",")]
    with tempfile.TemporaryDirectory() as name:
        loader = fastload.DataLoader(
            pack_photos(Path(name), options.copies),
            BATCH,
            shuffle=True,
            drop_last=True,
            transform=RRC,
            num_workers=options.threads,
        )
        found = compare(
            loader, nicer, options.rounds, _computing() if options.busy else lambda: None
        )
    print(
        f"\nmedians [quartiles] of {options.rounds} epochs of "
        f"{len(loader) - loader.ahead - 1} intervals"
    )
    for each, epochs in found.items():
        print(
            f"  niceness +{each:2}: "
            f"{spread([1e3 * float(np.mean(gaps)) for gaps in epochs])} ms per batch, "
            f"variation {spread([100 * step_to_step(gaps) for gaps in epochs])} %, "
            f"p99 / p50 {tail(epochs):.2f}"
        )
    return 0


def compare(
    loader: fastload.DataLoader, nicer: Sequence[int], rounds: int, step: Callable[[], object]
) -> dict[int, list[list[float]]]:
    """Niceness to the intervals between batches of each epoch."""
    found: dict[int, list[list[float]]] = {each: [] for each in nicer}
    gaps_of(loader, step)  # starts threads, fills caches
    for turn in range(rounds):
        for each in nicer if turn % 2 == 0 else reversed(nicer):
            for thread in decode_threads():
                os.setpriority(
                    os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, 0) + each)
                )
            loader.set_epoch(turn)
            found[each].append(gaps_of(loader, step))
    return found


def gaps_of(loader: fastload.DataLoader, step: Callable[[], object]) -> list[float]:
    """The intervals of one epoch without its first, prefetched batches."""
    times = []
    for _ in loader:
        times.append(time.perf_counter())
        step()
    return np.diff(times[loader.ahead :]).tolist()


def decode_threads() -> list[int]:
    """The threads of the native core in this process, found by their name."""
    return [
        int(task.name)
        for task in Path("/proc/self/task").iterdir()
        if (task / "comm").read_text().strip() == "fastload-decode"
    ]


def _computing() -> Callable[[], object]:
    """Computes for about as long as loading a batch takes."""
    images = torch.randn(16, 32, 56, 56)
    filters = torch.randn(32, 32, 3, 3)
    return lambda: [torch.nn.functional.conv2d(images, filters, padding=1) for _ in range(6)]


if __name__ == "__main__":
    sys.exit(main())
