"""What a metrics file says of the seconds in which the monitor measured. Pure but for the file it reads."""

from __future__ import annotations

import socket
from pathlib import Path

from fastload._common.metrics import Row, RunRow, StepRow
from fastload._common.strict_json import Json
from fastload._tools.monitor.metrics_file import Metrics, newest, read_metrics
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
    steps_per_s, images_per_s = 0.0, 0.0
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
    time, length = row.time or 0.0, row.steps * (row.iter_time or 0.0)
    return max(time - length, start), min(time, end)
