"""Implements `fastload monitor`: waits for the gate, measures one window and summarizes it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from fastload._common.cpus import available_cpus
from fastload._common.metrics import RunRow, StepRow
from fastload._common.nvml import Gpu, close_gpus, driver_version, open_gpus
from fastload._common.strict_json import Json
from fastload._tools.monitor.gate import GateRule, wait_for_gate
from fastload._tools.monitor.metrics_file import Metrics, newest, read_metrics
from fastload._tools.monitor.sampling import ProcessTree, Sampler
from fastload._tools.monitor.screens import Screen
from fastload._tools.monitor.series import summary_of_all
from fastload._tools.monitor.window import Window
from fastload.errors import ConfigError


def training_in(path: Path, started: float, seconds: float) -> tuple[dict[str, Json] | None, str]:
    """Returns (training figures of the window, ""), or (None, why there are none)."""
    try:
        metrics = read_metrics(path)
    except ConfigError as error:
        return None, str(error)
    found = figures(metrics, started, started + seconds)
    if not found:
        return None, f"{path}: no step rows in the {seconds:.0f} s of the window"
    return {"file": str(path), **found}, ""


def figures(metrics: Metrics, start: float, end: float) -> dict[str, Json]:
    """Returns steps/s per rank, images/s of all ranks and the mean wait, or {} without rows.

    A row that overlaps the window counts with the overlapping part. Rates cover the time from the
    first to the last row of a rank, because the next row is not written yet. ``rows`` has
    [end, images of all ranks, seconds] per row.
    """
    parts = [(row, share) for row in metrics.steps if (share := _share(row, start, end)) > 0]
    ranks = sorted({row.rank for row, _ in parts})
    if not ranks:
        return {}
    steps_per_s = 0.0
    images_per_s = 0.0
    for rank in ranks:
        mine = [(row, share) for row, share in parts if row.rank == rank]
        begins, ends = zip(*(_overlap(row, start, end) for row, _ in mine), strict=True)
        seconds = max(max(ends) - min(begins), 1e-3)
        steps_per_s += sum(row.steps * share for row, share in mine) / seconds / len(ranks)
        images_per_s += sum((row.samples or 0) * share for row, share in mine) / seconds
    counted = all(row.samples is not None for row, _ in parts)
    waits = [
        (row.data_time, row.steps * share) for row, share in parts if row.data_time is not None
    ]
    n_waits = sum(weight for _, weight in waits)
    # The rows of one rank are enough: ranks wait for each other, so all rows are alike.
    rows: list[Json] = [
        [
            round((row.time or 0.0) - start, 3),
            row.samples * len(ranks),
            round(row.steps * (row.iter_time or 0.0), 6),
        ]
        for row, share in parts
        if share > 0.999 and row.rank == ranks[0] and row.samples is not None
    ]
    return {
        "ranks": len(ranks),
        "it_per_s": round(steps_per_s, 4),
        "images_per_s": round(images_per_s, 3) if counted else None,
        "images": round(images_per_s * (end - start), 1) if counted else None,
        "data_time": round(sum(wait * n for wait, n in waits) / n_waits, 6) if waits else None,
        "rows": rows,
    }


def pids_in(path: Path) -> list[int]:
    """Returns the processes of the newest run in a metrics file, if they run on this machine."""
    try:
        metrics = read_metrics(path)
    except ConfigError:
        return []
    here = socket.gethostname()
    return [
        row.pid
        for row in newest(metrics.runs)
        if isinstance(row, RunRow) and row.host == here and row.pid is not None
    ]


def _share(row: StepRow, start: float, end: float) -> float:
    """Returns the part of the row's time that lies in [start, end], from 0 to 1."""
    if row.time is None or row.iter_time is None:
        return 0.0
    if row.iter_time <= 0:
        return float(start <= row.time <= end)
    begun, ended = _overlap(row, start, end)
    return max(ended - begun, 0.0) / (row.steps * row.iter_time)


def _overlap(row: StepRow, start: float, end: float) -> tuple[float, float]:
    """Intersects the row's time with [start, end]. The result is reversed without an overlap."""
    time = row.time or 0.0
    length = row.steps * (row.iter_time or 0.0)
    return max(time - length, start), min(time, end)


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """Options of `fastload monitor`."""

    interval: float = 1.0  # seconds between two updates of the screen
    duration: float = 60.0  # seconds
    hz: float = 10.0  # samples per second
    gpus: tuple[str, ...] | None = None
    pids: tuple[int, ...] = ()
    metrics: Path | None = None
    gate: GateRule | None = None


def measure(options: MonitorOptions, screen: Screen) -> Window:
    """Measures one window. Ctrl-C ends it early and keeps the samples so far.

    Raises GateClosed if the gate does not open. Missing devices only add notes.
    """
    try:
        gate = None
        if options.gate is not None:
            tree = ProcessTree(options.pids)
            gate = wait_for_gate(
                options.gate,
                report=screen.waiting,
                alive=lambda: tree.alive if options.pids else True,
            )
        metrics = options.metrics or (options.gate.file if options.gate is not None else None)
        pids = options.pids or tuple(pids_in(metrics) if metrics is not None else ())
        gpus, notes = open_gpus(options.gpus)
        try:
            return _measure(
                options, screen, gpus, pids=pids, notes=notes, metrics=metrics, gate=gate
            )
        finally:
            close_gpus()
    finally:
        screen.close()


def _measure(
    options: MonitorOptions,
    screen: Screen,
    gpus: Sequence[Gpu],
    *,
    pids: Sequence[int],
    notes: list[str],
    metrics: Path | None,
    gate: dict[str, Json] | None,
) -> Window:
    sampler = Sampler(gpus, pids, hz=options.hz)
    notes += [
        f"process {pid} is not running on this machine or is in another container"
        for pid in sampler.host.host.tree.missing
    ]
    seconds = options.duration
    with sampler:
        try:
            shown = 0.0
            while shown < options.duration:
                shown = min(max(shown + options.interval, sampler.elapsed), options.duration)
                sampler.wait(shown)
                screen.show(sampler, options.duration)
        except KeyboardInterrupt:
            seconds = min(sampler.elapsed, options.duration)
            notes.append(f"stopped by Ctrl-C after {seconds:.1f} of {options.duration:g} s")
    windows = tuple(each.window(seconds) for each in sampler.gpus)
    training, why_none = (
        training_in(metrics, sampler.started, seconds) if metrics is not None else (None, "")
    )
    images = training["images"] if training is not None else None
    notes += [*(each for gpu in gpus for each in gpu.notes), *sampler.notes, why_none]
    return Window(
        round(sampler.started, 3),
        round(seconds, 3),
        options.hz,
        windows,
        sampler.host.window(),
        summary_of_all(
            [(each.index, each.t, each.series["util"], each.summary) for each in windows],
            images if isinstance(images, float) else None,
        ),
        tuple(dict.fromkeys(note for note in notes if note)),
        gate,
        training,
        {
            "host": socket.gethostname(),
            "cpus": available_cpus(),
            "cores": psutil.cpu_count() or 0,
            "driver": driver_version(),
            "ram_mb": round(psutil.virtual_memory().total / 2**20),
        },
    )
