"""`fastload monitor` without its command line: waits for the gate, measures a window, sums it up."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from fastload._common.cpus import available_cpus
from fastload._common.metrics import Row, RunRow, StepRow
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
    """(figures of these seconds, a note where there are none). Rows that lie partly in the window count with that part."""
    try:
        metrics = read_metrics(path)
    except ConfigError as error:
        return None, str(error)
    found = figures(metrics, started, started + seconds)
    return (
        ({"file": str(path), **found}, "")
        if found
        else (None, f"{path}: no rows of steps in these {seconds:.0f} s")
    )


def figures(metrics: Metrics, start: float, end: float) -> dict[str, Json]:
    """Steps a second of one rank, images a second of all, the mean wait, and ``rows``: [end, images of all ranks, seconds] of each row.

    Empty where no row with a date lies in the time.

    Rates are over the time from the first to the last row of each rank: the row that is due next is not written yet.
    """
    parts = [(row, share) for row in metrics.steps if (share := _share(row, start, end)) > 0]
    ranks = sorted({row.rank for row, _ in parts})
    if not ranks:
        return {}
    steps_per_s = 0.0
    images_per_s = 0.0
    for rank in ranks:
        mine = [(row, share) for row, share in parts if row.rank == rank]
        seconds = max(
            max(_span(row, start, end)[1] for row, _ in mine)
            - min(_span(row, start, end)[0] for row, _ in mine),
            1e-3,
        )
        steps_per_s += sum(row.steps * share for row, share in mine) / seconds / len(ranks)
        images_per_s += sum((row.samples or 0) * share for row, share in mine) / seconds
    counted = all(row.samples is not None for row, _ in parts)
    waits = [
        (row.data_time, row.steps * share) for row, share in parts if row.data_time is not None
    ]
    wait = (
        sum(each * weight for each, weight in waits) / sum(weight for _, weight in waits)
        if waits
        else None
    )
    # One rank's rows: ranks wait for each other, so the others' are the same figures again.
    whole: list[Json] = [
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
        "data_time": None if wait is None else round(wait, 6),
        "rows": whole,
    }


def pids_in(path: Path) -> list[int]:
    """The processes of the newest run, if it is this machine's."""
    try:
        metrics = read_metrics(path)
    except ConfigError:
        return []
    rows: list[Row] = newest([*metrics.runs])
    here = socket.gethostname()
    return [
        row.pid
        for row in rows
        if isinstance(row, RunRow) and row.host == here and row.pid is not None
    ]


def _share(row: StepRow, start: float, end: float) -> float:
    """How much of the row's time lies in [start, end]."""
    if row.time is None or row.iter_time is None:
        return 0.0
    if row.iter_time <= 0:
        return float(start <= row.time <= end)
    begun, ended = _span(row, start, end)
    return max(ended - begun, 0.0) / (row.steps * row.iter_time)


def _span(row: StepRow, start: float, end: float) -> tuple[float, float]:
    """The part of the row's time that lies in [start, end]; backwards where none does."""
    time = row.time or 0.0
    length = row.steps * (row.iter_time or 0.0)
    return max(time - length, start), min(time, end)


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """What to measure, for how long."""

    interval: float = 1.0  # seconds between two lines
    duration: float = 60.0
    hz: float = 10.0  # raw samples
    gpus: tuple[str, ...] | None = None
    pids: tuple[int, ...] = ()
    metrics: Path | None = None
    gate: GateRule | None = None


def measure(options: MonitorOptions, screen: Screen) -> Window:
    """Measures once; Ctrl-C ends it early with what there is. Raises GateClosed, and nothing for what the machine lacks."""
    try:
        seen = _wait(options, screen)
        metrics = options.metrics or (options.gate.file if options.gate is not None else None)
        pids = options.pids or tuple(pids_in(metrics) if metrics is not None else ())
        gpus, notes = open_gpus(options.gpus)
        try:
            return _measure(
                options, screen, gpus, pids=pids, notes=notes, metrics=metrics, gate=seen
            )
        finally:
            close_gpus()
    finally:
        screen.close()


def _wait(options: MonitorOptions, screen: Screen) -> dict[str, Json] | None:
    if options.gate is None:
        return None
    tree = ProcessTree(options.pids)
    return wait_for_gate(
        options.gate, report=screen.waiting, alive=lambda: tree.alive if options.pids else True
    )


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
        f"process {pid} is not there (or of another machine, or container)"
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
            notes.append(f"ended by Ctrl-C after {seconds:.1f} of {options.duration:g} s")
    windows = tuple(each.window(seconds) for each in sampler.gpus)
    training, note = (
        training_in(metrics, sampler.started, seconds) if metrics is not None else (None, "")
    )
    images = training["images"] if training is not None else None
    summary = summary_of_all(
        [(each.index, each.t, each.series["util"], each.summary) for each in windows],
        images if isinstance(images, float) else None,
    )
    notes += [
        *(each for gpu in gpus for each in gpu.notes),
        *sampler.notes,
        *([note] if note else []),
    ]
    return Window(
        round(sampler.started, 3),
        round(seconds, 3),
        options.hz,
        windows,
        sampler.host.window(),
        summary,
        tuple(dict.fromkeys(notes)),
        gate,
        training,
        _machine(),
    )


def _machine() -> dict[str, Json]:
    return {
        "host": socket.gethostname(),
        "cpus": available_cpus(),
        "cores": psutil.cpu_count() or 0,
        "driver": driver_version(),
        "ram_mb": round(psutil.virtual_memory().total / 2**20),
    }
