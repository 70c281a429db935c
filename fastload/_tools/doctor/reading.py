"""Files → runs and windows as arrays. Files may be damaged or hostile: odd values are dropped and counted, never believed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fastload._common.formatting import printable
from fastload._common.metrics import EventRow, RunRow, SlowStep, StepRow
from fastload._tools.doctor.limits import MOST_BYTES, MOST_ROW_STEPS, MOST_SECONDS, MOST_STEPS
from fastload._tools.doctor.runs import Floats, Gpu, Ints, Rank, Run, Window
from fastload._tools.monitor.metrics_file import Metrics, read_metrics
from fastload.errors import ConfigError

MOST_GPUS = 64
MOST_SAMPLES = 1_000_000


def window_of(found: Mapping[str, object], name: str) -> Window:
    """Raises ConfigError where there are no samples at all."""
    gpus = [
        _gpu(each, place)
        for place, each in enumerate(_list(found.get("gpus"))[:MOST_GPUS])
        if isinstance(each, dict)
    ]
    gpus = [gpu for gpu in gpus if len(gpu.t)]
    samples = _mapping(_mapping(found.get("host")).get("samples"))
    t = _times(samples)
    if not gpus and not len(t):
        raise ConfigError(
            f"reading {name}: a window without samples; expected what 'fastload monitor --out window.json' writes"
        )
    cores = [row for row in _list(samples.get("cpu"))[: len(t)] if isinstance(row, list)]
    cpu = np.full(len(t), np.nan)
    for place, row in enumerate(cores):
        known = [value for each in row[:4096] if not math.isnan(value := _number(each))]
        cpu[place] = sum(known) / len(known) if known else math.nan
    seconds = _number(found.get("seconds"))
    notes = tuple(
        printable(note[:200]) for note in _list(found.get("notes"))[:20] if isinstance(note, str)
    )
    return Window(
        name,
        seconds if seconds > 0 else _length(t, gpus),
        _number(found.get("started")),
        tuple(gpus),
        cpu,
        max((len(row) for row in cores), default=0),
        _column(samples, "iowait", len(t)),
        _column(samples, "swap_in_mb_s", len(t)) + _column(samples, "swap_out_mb_s", len(t)),
        _column(samples, "disk_read_mb_s", len(t)),
        _column(samples, "tree_cpu", len(t)),
        notes,
    )


def _gpu(found: Mapping[str, object], place: int) -> Gpu:
    samples = _mapping(found.get("samples"))
    t = _times(samples)
    index = found.get("index")
    reasons = [
        tuple(printable(str(word)[:40]) for word in _list(row)[:16])
        for row in _list(samples.get("throttle"))[: len(t)]
    ]
    state = _mapping(found.get("summary")).get("state")
    return Gpu(
        index
        if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < 10_000
        else place,
        printable(str(found.get("name") or "GPU")[:80]),
        t,
        _column(samples, "util", len(t)),
        _column(samples, "power_w", len(t)),
        _column(samples, "power_limit_w", len(t)),
        _column(samples, "sm_mhz", len(t)),
        _column(samples, "temp_c", len(t)),
        tuple(reasons + [()] * (len(t) - len(reasons))),
        printable(state[:20]) if isinstance(state, str) else "",
    )


def _times(samples: Mapping[str, object]) -> Floats:
    """Seconds since the first sample; a clock that runs back ends the samples."""
    t = np.array([_number(value) for value in _list(samples.get("t"))[:MOST_SAMPLES]], np.float64)
    bad = np.flatnonzero(~np.isfinite(t) | (np.diff(t, prepend=t[:1]) < 0))
    t = t[: bad[0]] if len(bad) else t
    return t - t[0] if len(t) else t


def _column(samples: Mapping[str, object], name: str, n: int) -> Floats:
    values = np.full(n, np.nan)
    found = _list(samples.get(name))[:n]
    values[: len(found)] = [_number(value) for value in found]
    return values


def _length(t: Floats, gpus: list[Gpu]) -> float:
    return max(
        (float(each[-1]) for each in (t, *(gpu.t for gpu in gpus)) if len(each)), default=0.0
    )


def _number(value: object) -> float:
    """NaN for what is no number, negative or absurd."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if 0 <= value < 1e15 else math.nan


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


MOST_NAMES = 16  # stages of the loader or of the step in one file; more is not a vocabulary
MOST_RANKS = 4096


def read_files(
    paths: Sequence[str | os.PathLike[str]],
) -> tuple[tuple[Run, ...], tuple[Window, ...]]:
    """Runs and windows among the files, told apart by what is in them; files of the ranks of one run become one run."""
    runs: list[Run] = []
    windows: list[Window] = []
    for path in map(Path, paths):
        found = _window(path)
        if found is not None:
            windows.append(found)
            continue
        run = run_of(read_metrics(path), printable(path.name))
        same = next((place for place, other in enumerate(runs) if _same_run(run, other)), None)
        if same is None:
            runs.append(run)
        else:
            runs[same] = _merge(runs[same], run)
    return _with_unique_names(runs), tuple(windows)


def run_of(metrics: Metrics, name: str) -> Run:
    """The arrays of a file's rows. Raises ConfigError where no row has a step's time."""
    good = [row for row in metrics.steps if _usable(row)]
    if not good:
        why = (
            "it is empty"
            if not metrics.steps and not metrics.skipped
            else (
                f"{len(metrics.steps)} rows of steps, none with a time above 0; {metrics.skipped} lines not understood"
            )
        )
        raise ConfigError(
            f"reading metrics: no usable step in {name}: {why}; expected JSON lines with iter (or step, global_step) and "
            "iter_time (or time, step_time), as fastload.StepProbe writes them, or a window.json of fastload monitor"
        )
    dropped = metrics.skipped + len(metrics.steps) - len(good)
    notes = (
        [f"{dropped} lines of {name} were not understood or hold no usable time"] if dropped else []
    )
    ranks = sorted({row.rank for row in good})[:MOST_RANKS]
    by_rank: dict[int, list[StepRow]] = {rank: [] for rank in ranks}
    for row in good:
        if row.rank in by_rank:
            by_rank[row.rank].append(row)
    arrays = [
        _rank(rank, rows, [head for head in metrics.runs if head.rank == rank])
        for rank, rows in by_rank.items()
    ]
    foreign = not any(row.ours for row in good)
    adjusted = [_waiting_included(each) for each in arrays] if foreign else arrays
    if any(new is not old for new, old in zip(adjusted, arrays, strict=True)):
        arrays = adjusted
        notes.append("data_time is mostly longer than the step's time: taken as not included in it")
    events = tuple(event for row in metrics.events if (event := _event(row)) is not None)
    return Run(name, tuple(arrays), events, _header(metrics.runs), foreign, tuple(notes))


def _usable(row: StepRow) -> bool:
    return (
        row.iter_time is not None
        and 0 < row.iter_time < MOST_SECONDS
        and abs(row.iter) < MOST_STEPS
        and 0 <= row.rank < MOST_STEPS
        and (row.data_time is None or 0 <= row.data_time < MOST_SECONDS)
    )


def _event(row: EventRow) -> EventRow | None:
    if not (
        0 < row.seconds < MOST_SECONDS and abs(row.iter) < MOST_STEPS and abs(row.rank) < MOST_STEPS
    ):
        return None
    return replace(row, name=printable(row.name[:40]) or "event")


def _rank(rank: int, rows: list[StepRow], heads: list[RunRow]) -> Rank:
    last = np.array([row.iter for row in rows], np.int64)
    time = np.array([_finite(row.time) for row in rows])
    step = np.array([_finite(row.iter_time) for row in rows])
    data = np.array([_finite(row.data_time) for row in rows])
    steps = np.array([row.steps if row.steps <= MOST_ROW_STEPS else 1 for row in rows], np.int64)
    rate = np.array([_amount(row.samples_per_s) for row in rows])
    samples = np.array([_amount(row.samples) for row in rows])
    return Rank(
        rank,
        _sessions(last, time, heads),
        time,
        last,
        steps,
        data,
        np.fmax(np.array([_seconds(row.data_time_max) for row in rows]), data),
        step,
        np.fmax(np.array([_seconds(row.iter_time_max) for row in rows]), step),
        _columns([row.stage_times for row in rows]),
        _columns([{name: span.mean for name, span in row.data_probe.items()} for row in rows]),
        _columns([{name: span.max for name, span in row.data_probe.items()} for row in rows]),
        np.where(np.isfinite(samples), samples, rate * step * steps),
        np.array([_amount(row.swap_bytes) for row in rows]),
        np.array([_amount(row.gpu_mem_mb) for row in rows]),
        tuple(
            tuple(
                SlowStep(number, took, min(max(wait, 0.0), took))
                for number, took, wait in row.slow
                if 0 < took < MOST_SECONDS and row.iter - row.steps < number <= row.iter
            )
            for row in rows
        ),
    )


def _sessions(last: Ints, time: Floats, heads: list[RunRow]) -> Ints:
    """A run that was started again counts back, or wrote another head in between."""
    again = np.concatenate([[False], np.diff(last) <= 0])
    for head in heads:
        if head.time is not None:
            later = time > head.time
            if later.any() and (first := int(np.argmax(later))) and not later[:first].any():
                again[first] = True
    return np.cumsum(again).astype(np.int64)


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, Floats]:
    names = list(dict.fromkeys(name for row in rows for name in row))[:MOST_NAMES]
    return {
        printable(name[:40]): np.array([_seconds(row.get(name)) for row in rows]) for name in names
    }


def _waiting_included(rank: Rank) -> Rank:
    known = np.isfinite(rank.data_time)
    if not known.any() or np.median(rank.data_time[known]) <= np.median(rank.iter_time[known]):
        return rank
    wait = np.nan_to_num(rank.data_time)
    return replace(rank, iter_time=rank.iter_time + wait, iter_time_max=rank.iter_time_max + wait)


def _header(heads: Sequence[RunRow]) -> dict[str, str | int | float]:
    if not heads:
        return {}
    head = heads[-1]
    values = {
        name: getattr(head, name)
        for name in (
            "host",
            "gpu",
            "device",
            "world",
            "batch_size",
            "python",
            "torch",
            "fastload",
            "time",
        )
    }
    return {
        name: printable(value[:80]) if isinstance(value, str) else value
        for name, value in values.items()
        if value not in (None, "") and (isinstance(value, str) or 0 <= value < 1e12)
    }


def _same_run(run: Run, other: Run) -> bool:
    ranks = {rank.rank for rank in run.ranks}
    others = {rank.rank for rank in other.ranks}
    world = run.header.get("world", 1)
    return (
        isinstance(world, int)
        and world > 1
        and world == other.header.get("world")
        and not ranks & others
    )


def _merge(run: Run, other: Run) -> Run:
    ranks = tuple(sorted((*run.ranks, *other.ranks), key=lambda rank: rank.rank))
    return replace(
        run, ranks=ranks, events=(*run.events, *other.events), notes=(*run.notes, *other.notes)
    )


def _with_unique_names(runs: Sequence[Run]) -> tuple[Run, ...]:
    names = [run.name for run in runs]
    return tuple(
        replace(run, name=f"{run.name} ({place + 1})") if names.count(run.name) > 1 else run
        for place, run in enumerate(runs)
    )


def _window(path: Path) -> Window | None:
    """The file as a window; None where it is something else, for read_metrics to judge."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(
                f"reading {path}: {path.stat().st_size} bytes, at most {MOST_BYTES} are read; cut it: tail -n 1000000"
            )
        with path.open("rb") as file:
            start = file.read(4096)
        if b"fastload-window" not in start and not start.lstrip().startswith(b"{\n"):
            return None
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"reading {path}: {error.strerror or error}; expected metrics.jsonl or window.json"
        ) from error
    except (ValueError, RecursionError):
        return None
    return (
        window_of(found, printable(path.name))
        if isinstance(found, dict) and found.get("format") == "fastload-window"
        else None
    )


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else math.nan


def _seconds(value: float | None) -> float:
    return value if value is not None and 0 <= value < MOST_SECONDS else math.nan


def _amount(value: float | None) -> float:
    return float(value) if value is not None and 0 <= value < 1e18 else math.nan
