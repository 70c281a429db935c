"""`fastload monitor` without its command line: waits for the gate, measures a window, sums it up."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from fastload._common.cpus import available_cpus
from fastload._common.nvml import Gpu, close_gpus, driver_version, open_gpus
from fastload._common.strict_json import Json
from fastload._tools.monitor.gate import GateRule, wait_for_gate
from fastload._tools.monitor.host import ProcessTree
from fastload._tools.monitor.sampling import Sampler
from fastload._tools.monitor.screens import Screen
from fastload._tools.monitor.series import summary_of_all
from fastload._tools.monitor.training import pids_in, training_in
from fastload._tools.monitor.window import Window


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
        options.gate, tell=screen.waiting, alive=lambda: tree.alive if options.pids else True
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
