"""Recorded runs as arrays, and the readers of metrics.jsonl and window.json.

The files may be damaged or hostile. Implausible values are dropped and counted, never used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastload._common.formatting import printable
from fastload._common.metrics import EventRow, RunRow, SlowStep, StepRow
from fastload._tools.doctor.limits import MAX_FILE_BYTES, MAX_ROW_STEPS, MAX_SECONDS, MAX_STEP
from fastload._tools.monitor.metrics_file import Metrics, read_metrics
from fastload._tools.monitor.window import FORMAT, Window, read_window
from fastload.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_STAGES = 16  # stages of the loader or of the step in one file
MAX_RANKS = 4096
_MAX_AMOUNT = 1e18  # samples, bytes
_HEADER = ("host", "gpu", "device", "world", "batch_size", "python", "torch", "fastload", "time")


@dataclass(frozen=True, slots=True)
class Rank:
    """The rows of one rank in file order. NaN marks an unknown value.

    Each row is the mean of ``steps`` steps; the last of them has the number ``iter``.
    """

    rank: int
    session: Ints  # increases by one where the run was restarted
    time: Floats  # Unix time at the end of the last step
    iter: Ints
    steps: Ints
    data_time: Floats  # seconds per step spent waiting for the batch
    data_time_max: Floats
    iter_time: Floats  # seconds per step, waiting included
    iter_time_max: Floats
    stage_times: Mapping[str, Floats]
    data_probe: Mapping[str, Floats]  # mean seconds per sample, by stage of the loader
    data_probe_max: Mapping[str, Floats]
    samples: Floats  # in these steps
    swap_bytes: Floats  # since the previous row
    slow: tuple[tuple[SlowStep, ...], ...]

    @property
    def seconds(self) -> Floats:
        return self.steps * self.iter_time


@dataclass(frozen=True, slots=True)
class Run:
    """One training run with all its ranks."""

    name: str
    ranks: tuple[Rank, ...]
    events: tuple[EventRow, ...] = ()
    header: Mapping[str, str | int | float] = field(default_factory=dict)
    foreign: bool = False  # another tool wrote the rows
    notes: tuple[str, ...] = ()  # oddities in the files


def samples(values: Iterable[float | None]) -> Floats:
    """The monitor's samples as an array; NaN where a value is missing or implausible."""
    return np.array([_plausible(value, 1e15) for value in values], np.float64)


def n_cores(window: Window) -> int:
    return max(map(len, window.host.cpu), default=0)


def mean_of(values: Floats, weights: NDArray[np.generic] | None = None) -> float:
    """Mean of the known values; NaN if there are none. Weights are steps or seconds, at least 0."""
    weight = np.ones(len(values)) if weights is None else np.asarray(weights, np.float64)
    known = np.isfinite(values) & (weight > 0)
    return float(np.average(values[known], weights=weight[known])) if known.any() else math.nan


def weighted_median(values: Floats, weights: Ints) -> float:
    """The value at which half of the weight is reached; NaN without values."""
    if not len(values):
        return math.nan
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def read_files(
    paths: Sequence[str | os.PathLike[str]],
) -> tuple[tuple[Run, ...], tuple[Window, ...]]:
    """Reads runs and windows and joins the files of several ranks into one run.

    The content of a file, not its name, decides what it is.
    """
    runs: list[Run] = []
    windows: list[Window] = []
    for path in map(Path, paths):
        if _is_window(path):
            windows.append(_window(path))
            continue
        run = run_of(read_metrics(path), printable(path.name))
        same = next((place for place, other in enumerate(runs) if _same_run(run, other)), None)
        if same is None:
            runs.append(run)
        else:
            runs[same] = _merge(runs[same], run)
    names = [run.name for run in runs]
    unique = (
        replace(run, name=f"{run.name} ({place})") if names.count(run.name) > 1 else run
        for place, run in enumerate(runs, 1)
    )
    return tuple(unique), tuple(windows)


def _is_window(path: Path) -> bool:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(4096)
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror or error}; expected metrics.jsonl or window.json"
        ) from error
    if size > MAX_FILE_BYTES:
        raise ConfigError(
            f"{path} has {size} bytes, expected at most {MAX_FILE_BYTES}. "
            "Keep its end: tail -n 1000000"
        )
    return f'"{FORMAT}"'.encode() in start


def _window(path: Path) -> Window:
    window = read_window(path)
    times = [window.host.t, *(gpu.t for gpu in window.gpus)]
    if not any(times):
        problem = "it contains no samples"
    elif any(list(t) != sorted(t) or (t and t[0] < 0) for t in times):
        problem = "its sample times are not in ascending order from 0"
    elif any(len(gpu.throttle) != len(gpu.t) for gpu in window.gpus):
        problem = "the series 'throttle' and 't' of a GPU differ in length"
    else:
        return replace(window, notes=tuple(printable(note[:200]) for note in window.notes[:20]))
    raise ConfigError(
        f"cannot use {path}: {problem}; expected a file that "
        "'fastload monitor --out window.json' wrote"
    )


def run_of(metrics: Metrics, name: str) -> Run:
    """Converts the rows of a file to arrays; raises ConfigError if no row has a step time."""
    good = [row for row in metrics.steps if _is_usable(row)]
    if not good:
        why = "the file is empty"
        if metrics.steps or metrics.skipped:
            why = (
                f"{len(metrics.steps)} step rows without a positive time, "
                f"{metrics.skipped} unreadable lines"
            )
        raise ConfigError(
            f"{name} has no usable step ({why}); expected the JSON lines of fastload.StepProbe, or "
            "lines with iter (step, global_step) and iter_time (time, step_time), or a window.json"
        )
    dropped = metrics.skipped + len(metrics.steps) - len(good)
    notes = [f"{name}: ignored {dropped} lines without a usable step"] if dropped else []
    by_rank: dict[int, list[StepRow]] = {
        rank: [] for rank in sorted({row.rank for row in good})[:MAX_RANKS]
    }
    for row in good:
        if row.rank in by_rank:
            by_rank[row.rank].append(row)
    ranks = [
        _rank(rank, rows, [head for head in metrics.runs if head.rank == rank])
        for rank, rows in by_rank.items()
    ]
    foreign = not any(row.from_fastload for row in good)
    if foreign and any(map(_excludes_wait, ranks)):
        ranks = [_with_wait(rank) if _excludes_wait(rank) else rank for rank in ranks]
        notes.append(
            f"{name}: data_time is longer than the step time in most rows, so it is added to it"
        )
    events = tuple(
        replace(row, name=printable(row.name[:40]) or "event")
        for row in metrics.events
        if 0 < row.seconds < MAX_SECONDS and max(abs(row.iter), abs(row.rank)) < MAX_STEP
    )
    return Run(name, tuple(ranks), events, _header(metrics.runs), foreign, tuple(notes))


def _is_usable(row: StepRow) -> bool:
    return (
        row.iter_time is not None
        and 0 < row.iter_time < MAX_SECONDS
        and abs(row.iter) < MAX_STEP
        and 0 <= row.rank < MAX_STEP
        and (row.data_time is None or 0 <= row.data_time < MAX_SECONDS)
    )


def _rank(rank: int, rows: list[StepRow], heads: list[RunRow]) -> Rank:
    def column(name: str, limit: float = MAX_SECONDS) -> Floats:
        return np.array([_plausible(getattr(row, name), limit) for row in rows])

    last = np.array([row.iter for row in rows], np.int64)
    time = column("time", math.inf)
    step = column("iter_time")
    data = column("data_time")
    steps = np.array([row.steps if row.steps <= MAX_ROW_STEPS else 1 for row in rows], np.int64)
    n_samples = column("samples", _MAX_AMOUNT)
    rate = column("samples_per_s", _MAX_AMOUNT)
    return Rank(
        rank,
        _sessions(last, time, heads),
        time,
        last,
        steps,
        data,
        np.fmax(column("data_time_max"), data),
        step,
        np.fmax(column("iter_time_max"), step),
        _columns([row.stage_times for row in rows]),
        _columns([{name: span.mean for name, span in row.data_probe.items()} for row in rows]),
        _columns([{name: span.max for name, span in row.data_probe.items()} for row in rows]),
        np.where(np.isfinite(n_samples), n_samples, rate * step * steps),
        column("swap_bytes", _MAX_AMOUNT),
        tuple(map(_slow_steps, rows)),
    )


def _slow_steps(row: StepRow) -> tuple[SlowStep, ...]:
    """The slow steps of a row; none if they take longer than the row itself."""
    slow = {
        number: SlowStep(number, took, min(max(wait, 0.0), took))
        for number, took, wait in row.slow
        if 0 < took < MAX_SECONDS and row.iter - row.steps < number <= row.iter
    }
    rounding = 1e-3 * row.steps
    row_s = row.steps * (row.iter_time or 0.0) + rounding
    return tuple(slow.values()) if sum(each.iter_time for each in slow.values()) <= row_s else ()


def _sessions(last: Ints, time: Floats, heads: list[RunRow]) -> Ints:
    """A restarted run repeats step numbers, or writes another header row in between."""
    restarts = np.concatenate([[False], np.diff(last) <= 0])
    for head in heads:
        if head.time is not None:
            later = time > head.time
            if later.any() and (first := int(np.argmax(later))) and not later[:first].any():
                restarts[first] = True
    return np.cumsum(restarts).astype(np.int64)


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, Floats]:
    names = list(dict.fromkeys(name for row in rows for name in row))[:MAX_STAGES]
    return {
        printable(name[:40]): np.array([_plausible(row.get(name), MAX_SECONDS) for row in rows])
        for name in names
    }


def _excludes_wait(rank: Rank) -> bool:
    known = np.isfinite(rank.data_time)
    return bool(known.any() and np.median(rank.data_time[known]) > np.median(rank.iter_time[known]))


def _with_wait(rank: Rank) -> Rank:
    wait = np.nan_to_num(rank.data_time)
    return replace(rank, iter_time=rank.iter_time + wait, iter_time_max=rank.iter_time_max + wait)


def _header(heads: Sequence[RunRow]) -> dict[str, str | int | float]:
    values = {name: getattr(heads[-1], name) for name in _HEADER} if heads else {}
    return {
        name: printable(value[:80]) if isinstance(value, str) else value
        for name, value in values.items()
        if value not in (None, "") and (isinstance(value, str) or 0 <= value < 1e12)
    }


def _same_run(run: Run, other: Run) -> bool:
    world = run.header.get("world", 1)
    return (
        isinstance(world, int)
        and world > 1
        and world == other.header.get("world")
        and {rank.rank for rank in run.ranks}.isdisjoint(rank.rank for rank in other.ranks)
    )


def _merge(run: Run, other: Run) -> Run:
    ranks = tuple(sorted((*run.ranks, *other.ranks), key=lambda rank: rank.rank))
    return replace(
        run, ranks=ranks, events=(*run.events, *other.events), notes=(*run.notes, *other.notes)
    )


def _plausible(value: float | None, limit: float) -> float:
    return float(value) if value is not None and 0 <= value < limit else math.nan
