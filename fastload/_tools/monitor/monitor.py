"""Implements `fastload monitor`: waits for the gate, measures one window and summarizes it."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from fastload._common.cpus import available_cpus
from fastload._common.metrics import Row, RunRow, StepRow
from fastload._common.nvml import close_gpus, driver_version, open_gpus
from fastload._common.strict_json import Json
from fastload._tools.monitor.metrics_file import RowParser, newest, read_metrics
from fastload._tools.monitor.sampling import ProcessTree, Sampler
from fastload._tools.monitor.screens import Screen
from fastload._tools.monitor.window import Window, summary_of_all
from fastload.errors import ConfigError, GateClosed

_POLL_S = 0.2
# A run whose last row is older than this counts as ended, until it writes another row.
_OLD_S = 30.0


@dataclass(frozen=True, slots=True)
class GateRule:
    """Opens when every rank has reached step ``iter`` and waited less than ``data_time`` s.

    The wait must be below the limit in each of the last ``rows`` rows.
    """

    file: Path
    iter: int = 120
    data_time: float = 0.02
    rows: int = 5
    timeout_s: float = 1800.0

    def __str__(self) -> str:
        return (
            f"iter >= {self.iter} and data_time < {self.data_time:g} s in the last {self.rows} "
            "rows of every rank"
        )


class Tail:
    """Follows a metrics file that grows and may not exist yet.

    Reading restarts at the beginning if the file was replaced or truncated.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._restart()

    def _restart(self) -> None:
        self._parser = RowParser()
        self._offset = 0
        self._inode = 0
        self.rows: list[Row] = []
        self.fresh: set[int] = set()  # ranks that have written a step recently
        self._first = True

    def read(self) -> bool:
        """Reads the new rows and reports whether there were any."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if self._inode not in (0, status.st_ino) or status.st_size < self._offset:
                    self._restart()
                self._inode = status.st_ino
                file.seek(self._offset)
                data = file.read()
        except OSError:  # the file does not exist yet
            return False
        self._offset += len(data)
        rows = list(self._parser.feed(data))
        # Rows that arrive later are fresh whatever the clock of their writer says.
        oldest = time.time() - _OLD_S if self._first else 0.0
        self.fresh |= {
            row.rank
            for row in rows
            if isinstance(row, StepRow) and (row.time or status.st_mtime) >= oldest
        }
        self._first = self._first and not self._offset
        if rows:
            self.rows = newest([*self.rows, *rows])
        return bool(rows)

    @property
    def steps(self) -> dict[int, list[StepRow]]:
        """The step rows of the newest run, by rank."""
        by_rank: dict[int, list[StepRow]] = {}
        for row in self.rows:
            if isinstance(row, StepRow):
                by_rank.setdefault(row.rank, []).append(row)
        return dict(sorted(by_rank.items()))


def wait_for_gate(
    rule: GateRule, *, report: Callable[[str], object], alive: Callable[[], bool] = lambda: True
) -> dict[str, Json]:
    """Blocks until the gate opens and returns what it saw.

    ``report`` receives the reason each time it changes. Raises GateClosed after ``timeout_s``, or
    when ``alive`` returns False.
    """
    started = time.monotonic()
    why = ""
    last_reported = ""
    tail = Tail(rule.file)
    while True:
        running = alive()
        if tail.read() or not tail.rows:
            why = _why_closed(rule, tail)
        waited = time.monotonic() - started
        if not why:
            return _result(rule, tail, waited, why)
        if waited >= rule.timeout_s or not running:
            reason = f"{waited:.0f} s" if running else f"{waited:.0f} s: the process ended"
            why = f"gave up after {reason}: {why} (expected {rule})"
            raise GateClosed(
                f"waiting for a steady run in {rule.file}: {why}", _result(rule, tail, waited, why)
            )
        if why != last_reported:
            last_reported = why
            report(why)
        time.sleep(_POLL_S)


def _why_closed(rule: GateRule, tail: Tail) -> str:
    """Returns why the gate is closed, or "" if it is open."""
    if not tail.steps:
        return "no step rows yet" if rule.file.exists() else "the file does not exist yet"
    for rank, steps in tail.steps.items():
        if rank not in tail.fresh:
            return f"rank {rank} wrote its last row more than {_OLD_S:.0f} s ago"
        if steps[-1].iter < rule.iter:
            return f"rank {rank} is at step {steps[-1].iter} of {rule.iter}"
        waits = [row.data_time for row in steps[-rule.rows :]]
        if len(waits) < rule.rows:
            return f"rank {rank} has {len(waits)} of {rule.rows} rows"
        if not all(wait is not None and wait < rule.data_time for wait in waits):
            shown = ", ".join("unknown" if wait is None else f"{wait:.3g}" for wait in waits)
            return f"rank {rank}: data_time in the last {rule.rows} rows is {shown} s"
    return ""


def _result(rule: GateRule, tail: Tail, waited: float, why: str) -> dict[str, Json]:
    return {
        "file": str(rule.file),
        "iter": rule.iter,
        "data_time": rule.data_time,
        "rows": rule.rows,
        "waited_s": round(waited, 1),
        "seen": {
            str(rank): {
                "iter": steps[-1].iter,
                "data_time": [row.data_time for row in steps[-rule.rows :]],
            }
            for rank, steps in tail.steps.items()
        },
        "opened": not why,
        "why": why,
    }


def training_in(path: Path, started: float, seconds: float) -> tuple[dict[str, Json] | None, str]:
    """Returns (training figures of the window, ""), or (None, why there are none)."""
    try:
        found = figures(read_metrics(path).steps, started, started + seconds)
    except ConfigError as error:
        return None, str(error)
    if not found:
        return None, f"{path}: no step rows in the {seconds:.0f} s of the window"
    return {"file": str(path), **found}, ""


class _Part(NamedTuple):
    """The part of a row that lies in the window."""

    row: StepRow
    begin: float
    end: float
    share: float  # of the row's time, from 0 to 1

    @property
    def steps(self) -> float:
        return self.row.steps * self.share


def _parts(rows: Iterable[StepRow], start: float, end: float) -> Iterator[_Part]:
    for row in rows:
        if row.time is None or row.iter_time is None:
            continue
        length = row.steps * row.iter_time
        first = max(row.time - length, start)
        last = min(row.time, end)
        share = (last - first) / length if length > 0 else float(first <= last)
        if share > 0:
            yield _Part(row, first, last, share)


def figures(rows: Iterable[StepRow], start: float, end: float) -> dict[str, Json]:
    """Returns steps/s per rank, images/s of all ranks and the mean wait, or {} without rows.

    A row that overlaps the window counts with the overlapping part. Rates cover the time from the
    first to the last row of a rank, because the next row is not written yet. ``rows`` has
    [end, images of all ranks, seconds] per row.
    """
    by_rank: dict[int, list[_Part]] = {}
    for part in _parts(rows, start, end):
        by_rank.setdefault(part.row.rank, []).append(part)
    if not by_rank:
        return {}
    steps_per_s = 0.0
    images_per_s = 0.0
    for parts in by_rank.values():
        seconds = max(max(part.end for part in parts) - min(part.begin for part in parts), 1e-3)
        steps_per_s += sum(part.steps for part in parts) / seconds / len(by_rank)
        images_per_s += sum((part.row.samples or 0) * part.share for part in parts) / seconds
    everything = [part for parts in by_rank.values() for part in parts]
    counted = all(part.row.samples is not None for part in everything)
    waits = [
        (part.row.data_time, part.steps) for part in everything if part.row.data_time is not None
    ]
    n_waits = sum(steps for _, steps in waits)
    return {
        "ranks": len(by_rank),
        "it_per_s": round(steps_per_s, 4),
        "images_per_s": round(images_per_s, 3) if counted else None,
        "images": round(images_per_s * (end - start), 1) if counted else None,
        "data_time": round(sum(wait * n for wait, n in waits) / n_waits, 6) if waits else None,
        # The rows of one rank are enough: ranks wait for each other, so all rows are alike.
        "rows": [
            [
                round(part.end - start, 3),
                part.row.samples * len(by_rank),
                round(part.end - part.begin, 6),
            ]
            for part in by_rank[min(by_rank)]
            if part.share > 0.999 and part.row.samples is not None
        ],
    }


def pids_in(path: Path) -> list[int]:
    """Returns the processes of the newest run in a metrics file, if they run on this machine."""
    try:
        rows = newest(read_metrics(path).runs)
    except ConfigError:
        return []
    here = socket.gethostname()
    return [row.pid for row in rows if isinstance(row, RunRow) and row.host == here and row.pid]


def measure(
    screen: Screen,
    *,
    interval: float,
    duration: float,
    hz: float,
    gpus: Sequence[str] | None,
    pids: Sequence[int],
    metrics: Path | None,
    gate: GateRule | None,
) -> Window:
    """Measures one window of ``duration`` seconds with ``hz`` samples per second.

    The screen is updated every ``interval`` seconds. Ctrl-C ends the window early and keeps the
    samples so far.

    Raises GateClosed if the gate does not open. Missing devices only add notes.
    """
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(screen.close)
        opened = None
        if gate is not None:
            tree = ProcessTree(pids)
            opened = wait_for_gate(
                gate, report=screen.waiting, alive=lambda: tree.alive or not pids
            )
            metrics = metrics or gate.file
        pids = pids or (pids_in(metrics) if metrics is not None else ())
        cleanup.callback(close_gpus)
        found, notes = open_gpus(gpus)
        sampler = Sampler(found, pids, hz=hz)
        notes += [
            f"process {pid} is not running on this machine or is in another container"
            for pid in sampler.host.tree.missing
        ]
        seconds = duration
        with sampler:
            try:
                shown = 0.0
                while shown < duration:
                    shown = min(max(shown + interval, sampler.elapsed), duration)
                    sampler.wait(shown)
                    screen.show(sampler, duration)
            except KeyboardInterrupt:
                seconds = min(sampler.elapsed, duration)
                notes.append(f"stopped by Ctrl-C after {seconds:.1f} of {duration:g} s")
        windows = tuple(each.window(seconds) for each in sampler.gpus)
        training, why_none = (
            training_in(metrics, sampler.started, seconds) if metrics is not None else (None, "")
        )
        images = training["images"] if training is not None else None
        notes += [*(each for gpu in found for each in gpu.notes), *sampler.notes, why_none]
        return Window(
            round(sampler.started, 3),
            round(seconds, 3),
            hz,
            windows,
            sampler.host.window(),
            summary_of_all(windows, images if isinstance(images, float) else None),
            tuple(dict.fromkeys(note for note in notes if note)),
            opened,
            training,
            {
                "host": socket.gethostname(),
                "cpus": available_cpus(),
                "cores": psutil.cpu_count() or 0,
                "driver": driver_version(),
                "ram_mb": round(psutil.virtual_memory().total / 2**20),
            },
        )
