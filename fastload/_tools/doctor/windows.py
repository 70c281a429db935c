"""A window of the monitor (window.json) as arrays; whatever is missing or odd in it is NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fastload._common.formatting import printable
from fastload._tools.doctor.runs import Floats, Gpu, Window
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
        t,
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
