"""T17: memory, open files and threads do not grow over many batches; buffer_bytes is correct.

Measures RssAnon, because RSS contains the mapped shards. CI loads some thousand batches,
FASTLOAD_LONG=1 loads 100,000.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload import transforms as T
from fastload._load.loader import DataLoader
from tests.fault.trials import LONG
from tests.forking import Zygote
from tests.loading import needs_core, pack_gray

BATCHES = 100_000 if LONG else 4_000
SLOPE = 16 if LONG else 120  # bytes per batch; a single page has more weight over few batches
LEAKED = 2048


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(
        tmp_path_factory.mktemp("logs"),
        ("tests.fault.test_loader_memory",),
        OMP_NUM_THREADS="1",
        MALLOC_ARENA_MAX="2",
    ) as started:
        yield started


@pytest.fixture(scope="module")
def tiny_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_gray(tmp_path_factory.mktemp("gray") / "packed", 64, side=16)


def anonymous() -> int:
    """Returns the anonymous memory of this process in bytes."""
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024


def run(folder: str, backend: str, batches: int, leak: bool) -> None:
    """Prints the memory slope over the last 90 % of the batches, and new threads and files.

    It is the smaller one of both halves: a leak grows all the time, an allocator only now and then.
    """
    torch.set_num_threads(1)
    loader = DataLoader(
        folder,
        4,
        shuffle=True,
        transform=[T.RandomResizedCrop(8), T.HorizontalFlip()],
        backend=backend,
        num_workers=1,
    )
    points, leaked, done, begun = [], [], 0, (0, 0)
    while done < batches:
        for _ in loader:
            done += 1
            if leak:
                leaked.append(bytes(LEAKED))
        if done > batches // 10:
            begun = begun if any(begun) else counts()
            points.append((done, anonymous()))
    halves = np.array_split(np.array(points, np.float64), 2)
    slope = min(float(np.polyfit(half[:, 0], half[:, 1], 1)[0]) for half in halves)
    print(
        f"slope {slope:.1f}, threads and files {tuple(np.subtract(counts(), begun).tolist())}, buffers {loader.stats().buffer_bytes}"
    )


def counts() -> tuple[int, int]:
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_memory_files_and_threads_do_not_grow(
    zygote: Zygote, tiny_images: Path, backend: str
) -> None:
    if backend == "native":
        needs_core()
    output = zygote.run(
        run,
        str(tiny_images),
        backend,
        BATCHES if backend == "native" else BATCHES // 4,
        False,
        timeout_s=1200,
    ).output
    print(output)
    found = re.search(r"slope (-?[0-9.]+), threads and files \((-?\d+), (-?\d+)\)", output)
    assert found, output
    assert float(found[1]) < SLOPE * (1 if backend == "native" else 4)
    assert abs(int(found[2])) <= 2  # one epoch ends while another one starts
    assert abs(int(found[3])) <= 2


def test_a_leak_is_detected(zygote: Zygote, tiny_images: Path) -> None:
    found = re.search(
        r"slope (-?[0-9.]+)",
        zygote.run(run, str(tiny_images), "auto", 2_000, True, timeout_s=600).output,
    )
    assert found
    assert float(found[1]) > 0.5 * LEAKED


def peak(folder: str, ahead: int) -> None:
    """Prints how much memory grows with the batches in flight, and buffer_bytes of the loader."""
    torch.set_num_threads(1)
    options: dict[str, Any] = {
        "transform": [T.Resize(256, 256)],
        "num_workers": 1,
        "prefetch_factor": ahead,
        "shuffle": True,
    }
    list(DataLoader(folder, 4, **options))  # everything that is allocated once
    before, most, loader = anonymous(), 0, DataLoader(folder, 32, **options)
    for _ in range(4):
        for _ in loader:
            most = max(most, anonymous())
    print(f"grown {most - before}, said {loader.stats().buffer_bytes}")


@pytest.mark.parametrize("ahead", [1, 6])
def test_memory_matches_buffer_bytes(zygote: Zygote, tiny_images: Path, ahead: int) -> None:
    output = zygote.run(peak, str(tiny_images), ahead, timeout_s=300).output
    found = re.search(r"grown (-?\d+), said (\d+)", output)
    assert found, output
    grown, said = int(found[1]), int(found[2])
    batch = 32 * 256 * 256
    assert batch <= said <= (ahead + 3) * (batch + 64)
    assert grown <= said + (8 << 20)  # Python, NumPy, rows of the decoder
