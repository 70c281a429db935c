"""Reads and appends to metrics.jsonl. The reader skips and counts lines that it does not know."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fastload._common.metrics import EventRow, Row, RunRow, StepRow, as_json, row_of
from fastload._common.public import public
from fastload.errors import ConfigError

MAX_LINE = 1 << 20  # bytes; a longer line is not a row


@public()
@dataclass(frozen=True, slots=True)
class Metrics:
    """The rows of a ``metrics.jsonl`` file, in file order.

    Attributes:
        runs: One row per process start.
        steps: One row per few training steps.
        events: Checkpoints, evaluations and other named events.
        skipped: Number of lines that are not valid rows.
        torn: Whether the last line is incomplete.

    Examples:
        >>> metrics = fastload.read_metrics("metrics.jsonl")
        >>> [row.data_time for row in metrics.of_rank(0)]
    """

    runs: tuple[RunRow, ...]
    steps: tuple[StepRow, ...]
    events: tuple[EventRow, ...]
    skipped: int = 0
    torn: bool = False

    def of_rank(self, rank: int) -> tuple[StepRow, ...]:
        """Returns the step rows of one rank."""
        return tuple(row for row in self.steps if row.rank == rank)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that logged steps, sorted."""
        return tuple(sorted({row.rank for row in self.steps}))


class RowParser:
    """Parses rows from bytes that arrive in pieces. A line may be split across pieces."""

    def __init__(self) -> None:
        self.skipped = 0  # lines that are not valid rows
        self._rest = b""
        self._last_iter: dict[int, int] = {}

    @property
    def torn(self) -> bool:
        """Whether the last line is incomplete."""
        return bool(self._rest.strip())

    def feed(self, data: bytes) -> Iterator[Row]:
        """Yields the rows that ``data`` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            # Keep one byte, so that the rest of this line is skipped with it.
            self._rest = b"?"
        for line in lines:
            if line.strip():
                row = self._row(line)
                self.skipped += row is None
                if row is not None:
                    yield row

    def finish(self) -> Iterator[Row]:
        """Yields the last line if it is a whole row without a newline."""
        row = self._row(self._rest) if self.torn else None
        if row is not None:
            self._rest = b""
            yield row

    def _row(self, line: bytes) -> Row | None:
        try:
            found = (
                json.loads(line, parse_constant=lambda _: None) if len(line) <= MAX_LINE else None
            )
        except (ValueError, RecursionError):
            return None
        row = row_of(found, self._last_iter) if isinstance(found, dict) else None
        if isinstance(row, StepRow):
            self._last_iter[row.rank] = row.iter
        return row


@public()
def read_metrics(path: str | os.PathLike[str]) -> Metrics:
    """Reads all rows of a metrics file.

    Rows of other loggers are accepted. Incomplete lines, unknown rows and values that are not
    numbers are skipped and counted.

    Args:
        path: A ``metrics.jsonl`` file, from ``fastload.StepProbe`` or another logger.

    Returns:
        The rows by kind.

    Raises:
        ConfigError: The file cannot be read.

    Examples:
        >>> for row in fastload.read_metrics("metrics.jsonl").steps:
        ...     print(row.iter, row.data_time, row.iter_time)
    """
    parser = RowParser()
    rows: list[Row] = []
    try:
        with Path(path).open("rb") as file:
            while data := file.read(1 << 20):
                rows += parser.feed(data)
    except OSError as error:
        raise ConfigError(
            f"cannot read metrics: {error.strerror or error}: {os.fspath(path)}. Expected JSON "
            "lines from fastload.StepProbe or another logger."
        ) from error
    rows += parser.finish()
    return Metrics(
        tuple(row for row in rows if isinstance(row, RunRow)),
        tuple(row for row in rows if isinstance(row, StepRow)),
        tuple(row for row in rows if isinstance(row, EventRow)),
        parser.skipped + parser.torn,
        parser.torn,
    )


def newest(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows of the newest run: those since the last RunRow of each rank.

    A file that was appended to also has the rows of older runs.
    """
    rows = list(rows)
    heads = [(place, row) for place, row in enumerate(rows) if isinstance(row, RunRow)]
    first = {row.rank: place for place, row in heads}
    world = heads[-1][1].world if heads else None  # an older run may have had more ranks
    return [
        row
        for place, row in enumerate(rows)
        if place >= first.get(row.rank, 0) and (world is None or row.rank < world)
    ]


class LineFile:
    """Appends rows to a file, each with one write(2) and O_APPEND.

    Ranks on one machine may therefore share the file. Rows are not buffered in the process, so
    appended rows survive kill -9. If the disk is full, logging stops with one warning and the
    training continues.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(
                path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
            self._torn = self._ends_torn()
        except OSError as error:
            raise ConfigError(
                f"cannot open metrics file {path}: {error.strerror}. Choose a writable file."
            ) from error

    def append(self, row: Row) -> None:
        """Adds one line. Raises ValueError for NaN, which is not JSON."""
        data = json.dumps(as_json(row), allow_nan=False, separators=(",", ":")).encode() + b"\n"
        if self._torn:
            data = b"\n" + data
        if self._descriptor < 0:
            return
        try:
            # A full disk may cut the line short. Writing the rest later would put it between the
            # lines of other ranks, so the next row starts a new line instead.
            self._torn = os.write(self._descriptor, data) < len(data)
        except OSError as error:
            self.close()
            warnings.warn(
                f"fastload: cannot write metrics to {self.path}: {error.strerror}. "
                "Logging stops; the training continues.",
                RuntimeWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """Closes the file. Rows are on disk without it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _ends_torn(self) -> bool:
        """Whether a kill or a full disk left an incomplete last line."""
        end = os.fstat(self._descriptor).st_size
        return end > 0 and os.pread(self._descriptor, 1, end - 1) not in (b"\n", b"")
