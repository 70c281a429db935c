"""Waits until a training run is steady: far enough, and the last rows of every rank waited little for data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastload._common.metrics import Row, StepRow
from fastload._common.strict_json import Json
from fastload._tools.monitor.metrics_file import RowParser, newest
from fastload.errors import GateClosed

_POLL_S = 0.2
_OLD_S = 30.0  # a last row older than this when we came is of a run that has ended, until another follows


@dataclass(frozen=True, slots=True)
class GateRule:
    """Opens once every rank is at ``iter`` and its last ``rows`` rows have a mean ``data_time`` below this."""

    file: Path
    iter: int = 120
    data_time: float = 0.02
    rows: int = 5
    timeout_s: float = 1800.0

    def __str__(self) -> str:
        return f"iter >= {self.iter} and the last {self.rows} data_time below {self.data_time:g} s, on every rank"


class Tail:
    """A file that may not be there yet, and grows; ``read`` takes what is new. Starts over where the file was replaced or cut."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start()

    def _start(self) -> None:
        self._parser = RowParser()
        self._offset = 0
        self._inode = 0
        self.rows: list[Row] = []
        self.fresh: set[int] = set()  # ranks that wrote a step since we came
        self._first = True

    def read(self) -> bool:
        """Whether there was anything new."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if self._inode not in (0, status.st_ino) or status.st_size < self._offset:
                    self._start()
                self._inode = status.st_ino
                file.seek(self._offset)
                data = file.read()
        except OSError:  # not there yet
            return False
        self._offset += len(data)
        rows = list(self._parser.feed(data))
        if not self._first:
            self.fresh |= {row.rank for row in rows if isinstance(row, StepRow)}
        if rows:
            self.rows = newest([*self.rows, *rows])
        old = time.time() - _OLD_S
        if self._first and (data or self._offset):
            self._first = False
            self.fresh |= {
                row.rank
                for row in rows
                if isinstance(row, StepRow) and (row.time or status.st_mtime) >= old
            }
        return bool(rows)


def wait_for_gate(
    rule: GateRule, *, report: Callable[[str], object], alive: Callable[[], bool] = lambda: True
) -> dict[str, Json]:
    """Returns what it saw once the gate is open; GateClosed when it gave up, and why. ``report`` hears of progress now and then."""
    began = time.monotonic()
    why = ""
    last_reported = ""
    tail = Tail(rule.file)
    while True:
        going = alive()
        if tail.read() or not tail.rows:
            why = _closed(rule, tail)
        waited = time.monotonic() - began
        if not why:
            return {**_seen(rule, tail.rows, waited), "opened": True, "why": ""}
        if waited >= rule.timeout_s or not going:
            after = f"{waited:.0f} s" if going else f"{waited:.0f} s, when the process ended"
            why = f"gave up after {after}: {why} (expected {rule})"
            seen = {**_seen(rule, tail.rows, waited), "opened": False, "why": why}
            raise GateClosed(f"waiting for a steady run in {rule.file}: {why}", seen)
        if why != last_reported:
            last_reported = why
            report(why)
        time.sleep(_POLL_S)


def _closed(rule: GateRule, tail: Tail) -> str:
    """Why the gate is not open; empty when it is."""
    steps = [row for row in tail.rows if isinstance(row, StepRow)]
    if not steps:
        return "no rows of steps yet" if rule.file.exists() else "the file is not there yet"
    for rank in sorted({row.rank for row in steps}):
        mine = [row for row in steps if row.rank == rank]
        if rank not in tail.fresh:
            return f"rank {rank} wrote its last row more than {_OLD_S:.0f} s ago"
        if mine[-1].iter < rule.iter:
            return f"rank {rank} is at iter {mine[-1].iter} of {rule.iter}"
        last = mine[-rule.rows :]
        waits = [row.data_time for row in last]
        if len(last) < rule.rows:
            return f"rank {rank} has {len(last)} of {rule.rows} rows"
        if not all(wait is not None and wait < rule.data_time for wait in waits):
            shown = " ".join("none" if wait is None else f"{wait:.3g}" for wait in waits)
            return f"rank {rank} waited {shown} s for data in its last {rule.rows} rows"
    return ""


def _seen(rule: GateRule, rows: list[Row], waited: float) -> dict[str, Json]:
    by_rank: dict[int, list[StepRow]] = {}
    for row in rows:
        if isinstance(row, StepRow):
            by_rank.setdefault(row.rank, []).append(row)
    ranks: dict[str, Json] = {
        str(rank): {
            "iter": mine[-1].iter,
            "data_time": [row.data_time for row in mine[-rule.rows :]],
        }
        for rank, mine in sorted(by_rank.items())
    }
    return {
        "file": str(rule.file),
        "iter": rule.iter,
        "data_time": rule.data_time,
        "rows": rule.rows,
        "waited_s": round(waited, 1),
        "seen": ranks,
    }
