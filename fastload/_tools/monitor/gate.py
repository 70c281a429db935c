"""Waits until a training run is past its warm-up and waits little for data on every rank."""

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
