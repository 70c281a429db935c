"""Loaders with fork, spawn, forkserver and torch workers, some of which die or hang.

Every process gets the same batches or one clear error. Nothing hangs.
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch

import fastload
from fastload import transforms as T
from fastload._load.loader import DataLoader
from fastload.errors import WorkerDied
from tests.loading import backends, digest, needs_core, wait_until
from tests.packed_datasets import photo

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]
METHODS = ["fork", "spawn", "forkserver"]
N = 22


def make(packed: Path | str, backend: str = "auto", **options: Any) -> DataLoader:
    return DataLoader(
        packed,
        4,
        shuffle=True,
        transform=[T.RandomResizedCrop(16), T.HorizontalFlip()],
        seed=3,
        num_workers=2,
        **{"backend": backend, **options},
    )


@pytest.fixture(scope="module")
def expected(packed: Path) -> dict[str, list[str]]:
    return {
        backend: [digest(batch) for batch in make(packed, backend)]
        for backend in ("auto", "native", "reference")
        if backend != "native" or make(packed).backend.name == "native"
    }


def report(loader: Any, backend: str, answers: Any) -> None:
    """Runs in a child: sends the batches of the loader, or of a new one."""
    torch.set_num_threads(1)
    loader = make(loader, backend) if isinstance(loader, str) else loader
    answers.put([digest(batch) for batch in loader])
    answers.close()
    answers.join_thread()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("backend", backends())
def test_child_processes_get_the_same_batches(
    packed: Path, expected: dict[str, list[str]], method: str, made: str, backend: str
) -> None:
    context: Any = mp.get_context(method)
    loader = make(packed, backend)
    running = iter(loader)  # its threads are running when the child starts
    got = [digest(next(running))]
    loader.set_epoch(0)
    answers: Any = context.Queue()
    child = context.Process(
        target=report, args=(loader if made == "before" else str(packed), backend, answers)
    )
    child.start()
    got += [digest(batch) for batch in running]  # the parent continues meanwhile
    assert answers.get(timeout=600) == expected[backend]
    child.join(600)
    assert child.exitcode == 0
    assert got == expected[backend]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("used", [True, False], ids=["used before", "fresh"])
def test_torch_workers_get_the_same_batches(
    packed: Path, expected: dict[str, list[str]], method: str, workers: int, used: bool
) -> None:
    loader = make(packed)
    if used:
        next(iter(loader))
        loader.set_epoch(0)
    plain = torch.utils.data.DataLoader(
        loader.dataset,
        batch_sampler=loader.batch_sampler,
        collate_fn=loader.collate_fn,
        num_workers=workers,
        multiprocessing_context=method,
    )
    assert [digest(batch) for batch in plain] == expected["auto"]


def test_an_iterator_raises_in_a_forked_child(packed: Path) -> None:
    iterator = iter(make(packed))
    next(iterator)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            next(iterator)
        except WorkerDied as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)
    assert b"call iter(loader) in this process" in os.read(reading, 1000)
    os.close(reading)
    assert len(list(iterator)) == 5


def test_a_child_that_closes_the_loader_does_not_affect_the_parent(
    packed: Path, expected: dict[str, list[str]]
) -> None:
    loader = make(packed)
    iterator = iter(loader)
    got = [digest(next(iterator))]
    child = mp.get_context("fork").Process(target=loader.close)
    child.start()
    child.join(600)
    assert child.exitcode == 0
    assert got + [digest(batch) for batch in iterator] == expected["auto"]


class DyingDataset(torch.utils.data.Dataset[Any]):
    """Wraps the dataset of a loader. A worker that reaches sample 7 dies or hangs."""

    def __init__(self, view: Any, how: str) -> None:
        self._view, self._how = view, how

    def __len__(self) -> int:
        return len(self._view)

    def __getitems__(self, indices: list[int]) -> Any:
        if 7 in indices:
            if self._how == "exit":
                os._exit(0)
            if self._how == "hang":
                time.sleep(600)
            os.kill(os.getpid(), getattr(signal, self._how))
        return self._view.__getitems__(indices)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV", "SIGBUS", "exit", "hang"])
def test_a_dead_torch_worker_raises_and_leaves_no_process(packed: Path, how: str) -> None:
    loader = make(packed)
    plain = torch.utils.data.DataLoader(
        DyingDataset(loader.dataset, how),
        batch_sampler=loader.batch_sampler,
        collate_fn=loader.collate_fn,
        num_workers=2,
        multiprocessing_context="fork",
        timeout=3 if how in ("exit", "hang") else 300,  # torch notices only signals
    )
    iterator = iter(plain)
    pids = [worker.pid for worker in iterator._workers]  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"DataLoader worker|DataLoader timed out"):
        for _ in iterator:
            pass
    del iterator, plain
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert len(list(make(packed))) == 6


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("backend", backends())
def test_a_dead_feeder_thread_raises_immediately(packed: Path, backend: str) -> None:
    """An exception is raised in the thread from outside, while it waits for space in the queue."""
    others = threading.enumerate()
    iterator = iter(make(packed, backend, prefetch_factor=1, timeout=300))
    next(iterator)
    (feeder,) = [
        thread
        for thread in threading.enumerate()
        if thread.name == "fastload-feeder" and thread not in others
    ]
    assert wait_until(lambda: iterator._prefetcher.n_ready == 1)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(feeder.ident or 0), ctypes.py_object(SystemExit)
    )
    next(iterator)  # wakes the thread
    with pytest.raises(WorkerDied, match="feeder thread of the loader has exited"):
        list(iterator)  # the test fails if it waits until the timeout
    with pytest.raises(WorkerDied):  # again: this is not the end of the epoch
        next(iterator)
    assert len(list(make(packed, backend))) == 6


def test_a_timeout_names_the_sample_of_a_hanging_thread(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastload._decode import reference

    resume, load = threading.Event(), reference._load

    def hanging(batch: Any, row: int, slot: Any) -> Any:
        if int.from_bytes(bytes(batch.sources[row][16:24]), "little") == 7:
            resume.wait(600)
        return load(batch, row, slot)

    monkeypatch.setattr(reference, "_load", hanging)
    iterator, late = iter(make(packed, "reference", timeout=1)), ""
    # On a busy machine the other samples of the batch may not be decoded yet.
    while not re.search(r"\. Waiting for sample 7 \(shard-00000.lmdb, samples/\d+\)$", late):
        with pytest.raises(
            RuntimeError, match=r"^no batch within timeout=1 s. Waiting for sample"
        ) as error:
            list(iterator)
        late = str(error.value)
    resume.set()
    list(iterator)


def test_a_timeout_names_the_sample_that_a_native_thread_decodes(tmp_path: Path) -> None:
    """Decoding an image of 64 megapixels takes seconds, like a page fault on a lost file server."""
    needs_core()
    small = photo(64, 48, seed=1)
    noise = np.random.default_rng(0).integers(0, 256, (8000, 8000), np.uint8)
    samples = [
        {
            "image": simplejpeg.encode_jpeg(noise[..., None], 98, colorspace="GRAY")
            if number == 5
            else small
        }
        for number in range(8)
    ]
    fastload.pack(
        samples, tmp_path / "packed", fields={"image": "image"}, order="source", restart=0
    )
    loader = DataLoader(
        tmp_path / "packed",
        8,
        shuffle=False,
        transform=[T.Resize(64, 64)],
        timeout=0.1,
        exact=True,
        num_workers=1,
    )
    iterator, late = iter(loader), ""
    # On a busy machine the thread may not have reached the sample yet.
    while not re.search(r"\. Waiting for sample 5 \(shard-00000.lmdb, .*\)$", late):
        with pytest.raises(
            RuntimeError, match=r"^no batch within timeout=0.1 s. Waiting for sample"
        ) as error:
            next(iterator)  # the test fails if the batch arrives
        late = str(error.value)


def test_a_failing_decode_thread_raises_and_later_batches_arrive(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastload._decode import reference

    load = reference._load

    def failing(batch: Any, row: int, slot: Any) -> Any:
        if int.from_bytes(bytes(batch.sources[row][16:24]), "little") == 7:
            raise MemoryError("planted")
        return load(batch, row, slot)

    monkeypatch.setattr(reference, "_load", failing)
    iterator, good, bad = iter(make(packed, "reference")), 0, 0
    for _ in range(6):
        try:
            next(iterator)
            good += 1
        except MemoryError:
            bad += 1
    assert (good, bad) == (5, 1)
