"""Statistics of the loader, and the adaptation of threads and prefetch depth."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from fastload import transforms as T
from fastload._decode.backend import STAGES
from fastload._load.batch import PendingBatch
from fastload._load.buffers import BufferPool
from fastload._load.decoder import Decoder
from fastload._load.loader import DataLoader
from fastload._load.scaling import (
    INITIAL_THREADS,
    MAX_BUFFER_BYTES,
    MAX_DEPTH,
    PATIENCE,
    RECENT,
    DepthScaler,
    ThreadScaler,
)
from fastload._load.stats import StatsCollector
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload.errors import ConfigError
from tests.loading import needs_core, png, spots, wait_until
from tests.packed_datasets import encoded, pack_samples

N = 30


def make(packed: Path, **options: Any) -> DataLoader:
    return DataLoader(packed, **{"batch_size": 4, "transform": [T.Resize(16, 16)], **options})


@pytest.mark.parametrize("batches", [1, 3, 200])
def test_each_batch_adds_its_own_finish_time(batches: int) -> None:
    """Times are counted together, but each batch keeps its own time."""
    collector = StatsCollector()
    assert STAGES[-1] == "finish"
    for number in range(batches):
        collector.decoded(
            np.full((2, len(STAGES)), 1000, np.uint32), 10, 2e-9 * (number % 3) * 1000
        )
        collector.add_time("plan", 1e-6 * (1 + number % 3))
    stages = collector.snapshot(threads=1, buffer_bytes=0, bad=0).stages
    more = np.mean([number % 3 for number in range(batches)])
    assert stages["decode"].mean == pytest.approx(1e-6)
    assert stages["finish"].mean == pytest.approx(1e-6 * (1 + more), rel=1e-3)
    assert (stages["finish"].count, stages["plan"].count) == (2 * batches, batches)
    assert stages["plan"].mean == pytest.approx(1e-6 * (1 + more), rel=1e-3)
    assert stages["plan"].max == pytest.approx(1e-6 * min(batches, 3), rel=1e-3)


def test_counts_and_times_are_plausible(packed: Path) -> None:
    loader = make(packed)
    before = loader.stats()
    assert (before.batches, before.samples, before.images_per_s, before.buffer_bytes) == (
        0,
        0,
        0.0,
        0,
    )
    for _ in range(2):
        list(loader)
    stats = loader.stats()
    assert (stats.batches, stats.samples, stats.bad) == (16, 2 * N, 0)
    dataset = open_dataset(packed)
    assert stats.bytes_read == 2 * sum(len(dataset.raw(i, "image")) for i in range(N))
    assert stats.images_per_s > 0
    assert 0 <= stats.queue_depth <= 3
    assert list(stats.stages) == [*STAGES, "plan", "copy", "wait"]
    assert {name: stage.count for name, stage in stats.stages.items()} == {
        **dict.fromkeys(STAGES, 2 * N),
        "plan": 16,
        "copy": 16,
        "wait": 16,
    }
    for name, stage in stats.stages.items():
        assert 0 <= stage.p50 <= stage.p99 <= stage.max, name
        assert stage.mean <= stage.max, name
    for name in ("decode", "finish", "plan", "copy", "wait"):
        assert stats.stages[name].mean > 0, name
    assert "60 samples in 16 batches" in str(stats)


def test_python_work_on_a_batch_counts_as_finish(packed: Path) -> None:
    waited_s = 0.02

    def slow(samples: list[Any], generator: torch.Generator | None = None) -> list[Any]:
        threading.Event().wait(waited_s)
        return samples

    list(loader := make(packed, batch_size=10, collate_fn=slow))
    assert loader.stats().stages["finish"].mean >= waited_s / 10
    colors = make(packed, batch_size=10, transform=[T.Resize(200, 200), T.ColorJitter(hue=0.2)])
    plain = make(packed, batch_size=10, transform=[T.Resize(200, 200)])
    list(colors)
    list(plain)
    assert colors.stats().stages["finish"].mean > plain.stats().stages["finish"].mean


def test_images_of_all_cameras_count(tmp_path: Path) -> None:
    samples = [
        {"images": [encoded(png(spots(16, 16, [(4, 4)]))) for _ in range(3)]} for _ in range(4)
    ]
    loader = DataLoader(
        pack_samples(tmp_path / "rig", (Field("images", "image", list=True),), samples), 2
    )
    list(loader)
    stats = loader.stats()
    assert (stats.samples, stats.stages["decode"].count, loader.images_per_sample) == (4, 12, 3)


def test_percentiles_are_accurate_to_ten_percent() -> None:
    collector = StatsCollector()
    for milliseconds in range(1, 1001):
        collector.add_time("copy", milliseconds / 1000)
    stage = collector.snapshot(threads=1, buffer_bytes=0, bad=0).stages["copy"]
    assert stage.mean == pytest.approx(0.5005, rel=1e-6)
    assert stage.max == pytest.approx(1.0, rel=1e-6)
    assert stage.p50 == pytest.approx(0.5, rel=0.1)
    assert stage.p99 == pytest.approx(0.99, rel=0.1)


def test_finish_time_is_divided_among_the_images_of_a_batch() -> None:
    collector = StatsCollector()
    times = np.zeros((4, len(STAGES)), np.uint32)
    times[:, STAGES.index("finish")] = 1000
    collector.decoded(times, 10, finish_s=8e-6)
    stage = collector.snapshot(threads=1, buffer_bytes=0, bad=0).stages["finish"]
    assert stage.mean == pytest.approx(3e-6)
    assert stage.count == 4
    collector.decoded(np.empty((0, len(STAGES)), np.uint32), 0, finish_s=1.0)  # labels only
    assert collector.snapshot(threads=1, buffer_bytes=0, bad=0).stages["finish"].count == 4


def test_threads_start_low_and_double_while_the_consumer_waits() -> None:
    needs_core()
    backend = Decoder("native", threads=ThreadScaler.initial(13, fixed=False), budget=13)
    scaler = ThreadScaler(backend, fixed=False)
    assert backend.threads == INITIAL_THREADS == 4
    found = []
    for _ in range(4 * PATIENCE):
        scaler.delivered(waited=True)
        found.append(backend.threads)
    assert found == [4] * (PATIENCE - 1) + [8] * PATIENCE + [13] * (
        2 * PATIENCE + 1
    )  # never more than the budget
    backend.close()


def test_occasional_waits_do_not_add_threads() -> None:
    needs_core()
    backend = Decoder("native", threads=4, budget=16)
    scaler = ThreadScaler(backend, fixed=False)
    for _ in range(20):
        for waited in [True] * (PATIENCE - 1) + [False]:
            scaler.delivered(waited=waited)
    assert backend.threads == 4
    fixed = ThreadScaler(backend, fixed=True)  # the user set num_workers
    for _ in range(20):
        fixed.delivered(waited=True)
    assert backend.threads == ThreadScaler.initial(4, fixed=True) == 4
    backend.close()


def test_a_thread_limit_of_the_system_does_not_stop_training() -> None:
    class Limited:
        budget = 16
        n_attempts = 0
        threads_given = 5

        @property
        def threads(self) -> int:
            return self.threads_given

        @threads.setter
        def threads(self, n: int) -> None:
            self.n_attempts += 1
            raise ConfigError(f"cannot start decode thread 6 of {n}")

    backend = Limited()
    scaler = ThreadScaler(cast(Decoder, backend), fixed=False)
    for _ in range(4 * PATIENCE):
        scaler.delivered(waited=True)
    assert backend.n_attempts == 1


def test_a_stall_adds_a_prefetched_batch_and_a_slow_loader_does_not() -> None:
    ring = BufferPool(5)
    scaler = DepthScaler(3, ring, fixed=False)
    assert not any(
        scaler.delivered(0) for _ in range(100)
    )  # the consumer always waits, so the loader is too slow
    assert not any(scaler.delivered(ready) for ready in (1, 2, 3, 1))
    assert scaler.delivered(0)
    assert (scaler.depth, ring.keep) == (4, 6)
    assert not any(
        scaler.delivered(ready) for ready in (0, 1, 2, 0)
    )  # two ready of four are not all
    for _ in range(20):
        scaler.delivered(8)
        scaler.delivered(0)
    assert scaler.depth == MAX_DEPTH
    fixed = DepthScaler(3, ring, fixed=True)
    assert not any(fixed.delivered(ready) for ready in (3, 0, 3, 0))
    scaler = DepthScaler(3, ring, fixed=False)
    assert not any(
        scaler.delivered(ready) for ready in (*range(3), *[1] * RECENT, 0)
    )  # all were ready, but long ago
    scaler.delivered(3)
    scaler.started()
    assert not scaler.delivered(0)  # the first batch of a pass
    held = [
        ring.tensor((MAX_BUFFER_BYTES // 8,), torch.uint8) for _ in range(7)
    ]  # never written, so it uses no memory
    scaler.delivered(3)
    assert not scaler.delivered(0)
    assert len(held) == 7


def test_the_loader_prefetches_more_after_a_stall(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"batch_size": 2, "shuffle": True, "fields": ("id",)}
    expected = [batch["id"].tolist() for batch in make(packed, **options, prefetch_factor=1)]
    loader = make(packed, **options)
    finish = loader.pipeline.finish
    gate = threading.Event()
    late = threading.Event()

    def slow(pending: PendingBatch, collate: Any) -> Any:
        if late.is_set():
            gate.wait(300)
        return finish(pending, collate)

    monkeypatch.setattr(loader.pipeline, "finish", slow)
    found = []
    iterator = iter(loader)
    for number in range(len(loader)):
        if number == 4:
            assert wait_until(lambda: iterator._prefetcher.n_ready == loader.ahead)
            late.set()
        if late.is_set() and iterator._prefetcher.n_ready == 0 and not gate.is_set():
            threading.Timer(0.05, gate.set).start()
        found.append(next(iterator)["id"].tolist())
    assert found == expected
    assert 3 < loader.ahead <= MAX_DEPTH
    iterator = iter(loader)
    assert wait_until(lambda: iterator._prefetcher.n_ready == loader.ahead)


def test_the_loader_adapts_its_threads(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_core()
    monkeypatch.setattr("fastload._load.options.available_cpus", lambda: 6)
    hungry = make(packed, batch_size=1)
    finish = hungry.pipeline.finish
    wanted = threading.Semaphore(0)

    def late(pending: PendingBatch, collate: Any) -> Any:
        wanted.acquire(timeout=300)
        return finish(pending, collate)

    monkeypatch.setattr(hungry.pipeline, "finish", late)
    iterator = iter(hungry)
    get = iterator._prefetcher.get

    def wait(timeout_s: float | None) -> Any:
        wanted.release()  # the consumer found no ready batch
        return get(timeout_s)

    monkeypatch.setattr(iterator._prefetcher, "get", wait)
    found = []
    for _ in range(2 * PATIENCE + 1):
        next(iterator)
        found.append(hungry.stats().threads)
    assert found == [4] * (PATIENCE - 1) + [6] * (PATIENCE + 2)  # six CPUs
    patient = make(packed, batch_size=1)
    iterator = iter(patient)
    for _ in range(N - 3):
        assert wait_until(lambda: iterator._prefetcher.n_ready > 0)
        next(iterator)
    assert patient.stats().threads == 4
    assert make(packed, num_workers=5).stats().threads == 5


def test_a_loader_without_native_threads_has_nothing_to_adapt(packed: Path) -> None:
    loader = make(packed, backend="reference", num_workers=3)
    list(loader)
    assert loader.stats().threads == 3
    assert torch.is_tensor(next(iter(loader))[0])
