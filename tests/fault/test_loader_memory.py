"""T17: anonymous memory, open files and threads stay where they are over many batches; buffers are what the loader says they are.

RssAnon, never RSS: the shards' own map counts in RSS. CI loads some thousand batches, FASTLOAD_LONG=1 100,000."""

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
SLOPE = 16 if LONG else 120  # bytes a batch; over few batches a page here and there weighs more
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
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_gray(tmp_path_factory.mktemp("gray") / "packed", 64, side=16)


def anonymous() -> int:
    """Bytes."""
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024


def run(folder: str, backend: str, batches: int, leak: bool) -> None:
    """Prints the slope of the anonymous memory over the last 90 % of the batches, and how many threads and files came."""
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
    x, y = np.array(points, np.float64).T
    slope = float(np.polyfit(x, y, 1)[0])
    print(
        f"slope {slope:.1f}, threads and files {tuple(np.subtract(counts(), begun).tolist())}, buffers {loader.stats().buffer_bytes}"
    )


def counts() -> tuple[int, int]:
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_memory_files_and_threads_stay(zygote: Zygote, packed: Path, backend: str) -> None:
    if backend == "native":
        needs_core()
    output = zygote.run(
        run,
        str(packed),
        backend,
        BATCHES if backend == "native" else BATCHES // 4,
        False,
        timeout_s=1200,
    ).output
    print(output)
    found = re.search(r"slope (-?[0-9.]+), threads and files \((-?\d+), (-?\d+)\)", output)
    assert found, output
    assert float(found[1]) < SLOPE * (1 if backend == "native" else 4)
    assert abs(int(found[2])) <= 2  # of one epoch ending, of another beginning
    assert abs(int(found[3])) <= 2


def test_a_leak_is_seen(zygote: Zygote, packed: Path) -> None:
    found = re.search(
        r"slope (-?[0-9.]+)",
        zygote.run(run, str(packed), "auto", 2_000, True, timeout_s=600).output,
    )
    assert found
    assert float(found[1]) > 0.5 * LEAKED


def peak(folder: str, ahead: int) -> None:
    """Prints by how much memory grows with the batches in flight, and what the loader says."""
    torch.set_num_threads(1)
    options: dict[str, Any] = {
        "transform": [T.Resize(256, 256)],
        "num_workers": 1,
        "prefetch_factor": ahead,
        "shuffle": True,
    }
    list(DataLoader(folder, 4, **options))  # everything that is made once
    before, most, loader = anonymous(), 0, DataLoader(folder, 32, **options)
    for _ in range(4):
        for _ in loader:
            most = max(most, anonymous())
    print(f"grown {most - before}, said {loader.stats().buffer_bytes}")


@pytest.mark.parametrize("ahead", [1, 6])
def test_memory_is_what_the_loader_says(zygote: Zygote, packed: Path, ahead: int) -> None:
    output = zygote.run(peak, str(packed), ahead, timeout_s=300).output
    found = re.search(r"grown (-?\d+), said (\d+)", output)
    assert found, output
    grown, said = int(found[1]), int(found[2])
    batch = 32 * 256 * 256
    assert batch <= said <= (ahead + 3) * (batch + 64)
    assert grown <= said + (8 << 20)  # Python, numpy, the decoder's own rows
