"""``backend="auto"`` on a GPU: measures the backends on the first batches of the user's data.

Measurements are stored for the next run. The code runs on any device. On the CPU only tests use it,
because the native core is always chosen there.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._common.metrics import LoaderStats
from fastload._common.nested import map_tensors
from fastload._decode.registry import AUTO, GPU_BACKENDS, default_cpu_backend
from fastload._decode.selftest_record import hardware_passed
from fastload._decode.selftest_record import key as versions
from fastload._load.backend_choice import (
    Candidate,
    Measured,
    choose,
    from_json,
    load_record,
    store_record,
    to_json,
)
from fastload._load.batch import unwrap
from fastload._load.buffers import BufferPool
from fastload._load.decoder import BackendChoice, Decoder
from fastload._load.faults import FaultPolicy
from fastload._load.pipeline import Driver, Pipeline
from fastload._load.records import read_records
from fastload._load.spec import LoadSpec
from fastload._load.stats import StatsCollector
from fastload._load.transfer import Transfer
from fastload._store.dataset import Dataset
from fastload.errors import FastloadError

_WARM_UP = 2  # batches that are not counted
_MIN_BATCHES = 4
_MAX_BATCHES = 24
_ENOUGH_S = 0.7  # no batch is started after this time
_DISTINCT = 8  # different batches; they are loaded repeatedly
_ALONE_S = 0.3  # duration of the probe without a loader
_LEARN_FROM = 50  # delivered batches before the duration of the training step is recorded
USUAL_BATCH = 32  # batch size if the loader does not know it


@dataclass(frozen=True, slots=True)
class Bench:
    """The data and options of a measurement; the same as those of the loader."""

    dataset: Dataset
    spec: LoadSpec
    transfer: Transfer
    batch_size: int
    ahead: int
    budget: int  # threads

    def key(self) -> dict[str, str]:
        """Returns what a measurement is valid for: data, plan, batch, threads, GPU, versions.

        It includes the backends that may use the JPEG engine: a revoked self-test ends the choice.
        """
        device = self.transfer.device
        return {
            **versions(device),
            "device": device.type,
            "jpeg_engine": ",".join(name for name in GPU_BACKENDS if hardware_passed(name, device)),
            "content": self.dataset.manifest.content,
            "plan": json.dumps(self.spec.describe()),
            "batch": str(self.batch_size),
            "threads": str(self.budget),
        }

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """Yields a few batches of the first samples in an endless cycle."""
        for number in itertools.cycle(range(_DISTINCT)):
            yield np.arange(
                number * self.batch_size, (number + 1) * self.batch_size, dtype=np.int64
            ) % len(self.dataset)


def measured_choice(requested: str, bench: Bench) -> BackendChoice | None:
    """Chooses a backend for ``auto`` on a GPU from stored or new measurements.

    Returns None if there is no choice: another backend than "auto", the CPU, or no images.
    """
    if requested != AUTO or bench.transfer.device.type == "cpu" or not bench.spec.images:
        return None
    key = bench.key()
    known = load_record(key) or {}
    measured = from_json(known.get("measured"))
    skipped = known.get("skipped")
    if measured is None or not isinstance(skipped, dict):
        found = candidates(bench.transfer.device)
        skipped = found.skipped
        measured = measure_all(found.usable, bench, probe=True)
        store_record(key, {"measured": to_json(measured), "skipped": skipped})
    step = known.get("step_s")
    decision = choose(
        measured,
        cpus=bench.budget,
        step_s=step if isinstance(step, float) else None,
        skipped=skipped,
    )
    if os.environ.get("FASTLOAD_QUIET") != "1":
        sys.stderr.write(f"fastload: backend='auto' uses {decision.candidate}: {decision.why}\n")
    return BackendChoice(
        decision.candidate.name, requested, "", decision.candidate.hardware, decision.why
    )


def learn_step(bench: Bench, stats: LoaderStats) -> None:
    """Records the duration of the training step for the next choice, after enough batches."""
    images = sum(each.items for each in bench.spec.images)
    if stats.batches < _LEARN_FROM or not stats.images_per_s or not images:
        return
    key = bench.key()
    known = load_record(key)
    if known is not None:
        iteration_s = stats.samples * images / stats.images_per_s / stats.batches
        step_s = max(0.0, iteration_s - stats.stages["wait"].mean)
        store_record(key, {**known, "step_s": float(step_s)})


class Candidates(NamedTuple):
    """The backends to measure, and the reasons why others cannot run."""

    usable: list[Candidate]
    skipped: dict[str, str]


def candidates(device: torch.device) -> Candidates:
    """Finds the backends that can run on this machine, starting with the CPU backend."""
    usable = [Candidate(default_cpu_backend().name)]
    skipped: dict[str, str] = {}
    for name, entry in GPU_BACKENDS.items():
        for hardware in (False, True) if device.type == "cuda" else (False,):
            why = entry.load().missing(device, hardware=hardware)
            if not why and hardware and not hardware_passed(name, device):
                why = "'fastload selftest --device cuda' has not passed on this machine"
            if not why:
                usable.append(Candidate(name, hardware))
            elif not hardware or name not in skipped:  # one reason per package is enough
                skipped[str(Candidate(name, hardware))] = why
    return Candidates(usable, skipped)


def measure_all(usable: Sequence[Candidate], bench: Bench, *, probe: bool) -> list[Measured]:
    """Measures each candidate on the same batches, which are read first to exclude the disk."""
    for ids in itertools.islice(bench.batches(), _DISTINCT):
        read_records(bench.dataset, ids, check_crc=True)
    return [
        measure(candidate, bench, probe=Probe(bench.transfer.device) if probe else None)
        for candidate in usable
    ]


def measure(candidate: Candidate, bench: Bench, *, probe: Probe | None) -> Measured:
    """Measures the cost of a batch. If the candidate fails, the result contains the reason."""
    try:
        backend = Decoder(
            AUTO,
            threads=bench.budget,
            budget=bench.budget,
            device=bench.transfer.device,
            choice=BackendChoice(candidate.name, AUTO, "", candidate.hardware),
        )
    except FastloadError as error:
        return Measured(candidate, failure=str(error))
    pipeline = Pipeline(
        bench.dataset,
        bench.spec,
        backend,
        seed=0,
        buffers=BufferPool(bench.ahead + 2),
        stats=StatsCollector(),
        faults=FaultPolicy("substitute", None),
        transfer=bench.transfer,
    )
    try:
        warm_up = _WARM_UP + bench.ahead
        _run(pipeline, bench, fewest=warm_up, most=warm_up)
        run = partial(_run, pipeline, bench, fewest=_MIN_BATCHES, most=_MAX_BATCHES)
        return _timed(candidate, run, probe)
    except (FastloadError, RuntimeError) as error:  # CUDA and DALI raise RuntimeError
        return Measured(candidate, failure=f"{type(error).__name__}: {error}".splitlines()[0][:200])
    finally:
        backend.close()


def _timed(candidate: Candidate, run: Callable[[], int], probe: Probe | None) -> Measured:
    alone = probe.beside(lambda: time.sleep(_ALONE_S))[1] if probe else None
    cpu_before = time.process_time()
    started = time.perf_counter()
    n, beside = probe.beside(run) if probe else (run(), None)
    wall_s = time.perf_counter() - started
    host_s = time.process_time() - cpu_before
    if alone is None or beside is None:
        return Measured(candidate, wall_s / n, host_s / n)
    lost = max(0.0, 1.0 - beside.per_s / alone.per_s) if alone.per_s else 0.0
    return Measured(candidate, wall_s / n, max(0.0, host_s - beside.cpu_s) / n, lost * wall_s / n)


def _run(pipeline: Pipeline, bench: Bench, *, fewest: int, most: int) -> int:
    """Loads batches with the prefetch depth of the loader; returns their number."""
    driver = Driver(pipeline)
    batches = bench.batches()
    started = time.perf_counter()
    n_done = 0
    last = None
    while n_done < fewest or (n_done < most and time.perf_counter() - started < _ENOUGH_S):
        while len(driver.in_flight) < bench.ahead:
            driver.start(next(batches))
        last = bench.transfer.receive(unwrap(driver.finish_oldest()).data)
        n_done += 1
    while driver.in_flight:  # they were started, so their time is included
        last = bench.transfer.receive(unwrap(driver.finish_oldest()).data)
        n_done += 1
    map_tensors(last, lambda tensor: tensor.reshape(-1)[:1].cpu())  # waits for queued GPU work
    return n_done


@dataclass(frozen=True, slots=True)
class ProbeSpeed:
    """The speed of the probe."""

    per_s: float  # matrix products per second
    cpu_s: float  # CPU time of the thread that queued them


class Probe:
    """Computes matrix products in place of a training step.

    The slowdown of the probe next to a loader is the GPU time that the loader uses.
    """

    def __init__(self, device: torch.device) -> None:
        side, dtype = (4096, torch.float16) if device.type == "cuda" else (256, torch.float32)
        self._a = torch.ones((side, side), dtype=dtype, device=device)

    def beside(self, work: Callable[[], Any]) -> tuple[Any, ProbeSpeed]:
        """Runs ``work`` while another thread computes products; returns result and speed."""
        stop = threading.Event()
        found: list[ProbeSpeed] = []
        thread = threading.Thread(
            target=self._products, args=(stop, found), name="fastload-probe", daemon=True
        )
        thread.start()
        try:
            result = work()
        finally:
            stop.set()
            thread.join()
        if not found:
            raise RuntimeError(f"measuring a backend: the probe failed on {self._a.device}")
        return result, found[0]

    def _products(self, stop: threading.Event, found: list[ProbeSpeed]) -> None:
        n = 0
        cpu_before = time.thread_time()
        started = time.perf_counter()
        while not stop.is_set():
            torch.mm(self._a, self._a)[0, :1].cpu()  # waits for the product
            n += 1
        per_s = n / (time.perf_counter() - started)
        found.append(ProbeSpeed(per_s, time.thread_time() - cpu_before))
