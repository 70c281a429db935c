"""metrics.jsonl as a file: whole lines are appended; the reader accepts whatever is in there."""

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
    """A whole file, in its order. ``skipped`` lines were not understood; ``torn`` says the last one has no end yet."""

    runs: tuple[RunRow, ...]
    steps: tuple[StepRow, ...]
    events: tuple[EventRow, ...]
    skipped: int = 0
    torn: bool = False

    def of_rank(self, rank: int) -> tuple[StepRow, ...]:
        """The steps of one rank."""
        return tuple(row for row in self.steps if row.rank == rank)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that logged steps."""
        return tuple(sorted({row.rank for row in self.steps}))


class RowParser:
    """Turns bytes into rows, as they come: a line in two pieces is one row. Keeps count of what it could not read."""

    def __init__(self) -> None:
        self.skipped = 0
        self._rest = b""
        self._last_iter: dict[int, int] = {}

    @property
    def torn(self) -> bool:
        """There is a line without an end."""
        return bool(self._rest.strip())

    def feed(self, data: bytes) -> Iterator[Row]:
        """The rows that these bytes complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            self._rest = (
                b"?"  # what follows up to the line's end belongs to it and goes the same way
            )
        for line in lines:
            if line.strip():
                row = self._row(line)
                self.skipped += row is None
                if row is not None:
                    yield row

    def finish(self) -> Iterator[Row]:
        """The last line, where only its newline is missing."""
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
    """All rows of a file; a torn line, rows of other tools and values that are no numbers do not stop it."""
    parser = RowParser()
    rows: list[Row] = []
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - takes what Path takes
            while data := file.read(1 << 20):
                rows += parser.feed(data)
    except OSError as error:
        raise ConfigError(
            f"reading metrics: {error.strerror or error}: {os.fspath(path)}; expected a file that fastload.StepProbe, "
            "or another logger, writes as JSON lines"
        ) from error
    rows += parser.finish()
    return collect(rows, skipped=parser.skipped + parser.torn, torn=parser.torn)


def collect(rows: Iterable[Row], *, skipped: int = 0, torn: bool = False) -> Metrics:
    """Rows by kind."""
    rows = list(rows)
    return Metrics(
        tuple(row for row in rows if isinstance(row, RunRow)),
        tuple(row for row in rows if isinstance(row, StepRow)),
        tuple(row for row in rows if isinstance(row, EventRow)),
        skipped,
        torn,
    )


def newest(rows: Iterable[Row]) -> list[Row]:
    """Only what each rank wrote since its last head: a file that was appended to holds older runs as well."""
    rows = list(rows)
    heads = [(place, row) for place, row in enumerate(rows) if isinstance(row, RunRow)]
    first = {row.rank: place for place, row in heads}
    ranks = heads[-1][1].world if heads else None  # the run before may have had more
    return [
        row
        for place, row in enumerate(rows)
        if place >= first.get(row.rank, 0) and (ranks is None or row.rank < ranks)
    ]


class LineFile:
    """A file that grows by whole lines: one write(2) with O_APPEND a line, so ranks on one machine may share it.

    Nothing is buffered here: what was appended is the kernel's, and survives kill -9. A disk that fills up ends the log with
    one warning, not the training.
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
                f"opening {path} to append metrics: {error.strerror}; name a file that can be written to"
            ) from error

    def append(self, row: Row) -> None:
        """Adds a line. ValueError for NaN, which is not JSON."""
        data = json.dumps(as_json(row), allow_nan=False, separators=(",", ":")).encode() + b"\n"
        if self._descriptor < 0:
            return
        try:
            self._torn = self._write(b"\n" + data if self._torn else data)
        except OSError as error:
            self.close()
            warnings.warn(
                f"fastload: no more metrics: writing {self.path}: {error.strerror}",
                RuntimeWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """Nothing is lost without it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _write(self, data: bytes) -> bool:
        """Whether it left half a line behind, as on a full disk; its rest would stand between the lines of others, so it stays half."""
        return os.write(self._descriptor, data) < len(data)

    def _ends_torn(self) -> bool:
        """Whether the last line is incomplete, after a kill or a full disk: the next row then starts a new line."""
        end = os.fstat(self._descriptor).st_size
        return end > 0 and os.pread(self._descriptor, 1, end - 1) not in (b"\n", b"")
