"""metrics.jsonl: what its rows hold, and a reader that takes whatever is in there. Pure but for the file it opens.

One JSON object a line, times in seconds. Rows of other tools are read too: ``iter``, ``step`` or ``global_step`` counts,
``iter_time``, ``step_time`` or ``time`` is the step's, ``data_time`` the wait. docs/monitor.md lists every key.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fastload.errors import ConfigError

VERSION = 1
STAGES = (
    "to_device",
    "forward",
    "loss",
    "backward",
    "optimizer",
)  # the usual names, in this order in tables
MAX_LINE = 1 << 20  # a longer line is none of ours
_ITER = ("iter", "step", "global_step")
_TIME = ("iter_time", "step_time", "time")
_UNIX = 1e6  # `time` above this is a date, below it a duration


@dataclass(frozen=True, slots=True)
class RunRow:
    """The head of what one process wrote."""

    time: float | None
    rank: int
    world: int
    host: str
    pid: int | None
    python: str
    torch: str
    fastload: str
    device: str
    gpu: str | None
    batch_size: int | None


@dataclass(frozen=True, slots=True)
class Span:
    """A stage of the loader: mean over the row's images (or batches), and the largest since the loader was made."""

    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class StepRow:
    """``steps`` training steps that end with number ``iter``. Times are means a step; what was not logged is None or empty."""

    time: float | None  # unix, end of the last step
    rank: int
    iter: int
    steps: int
    data_time: float | None
    data_time_max: float | None
    iter_time: float | None
    iter_time_max: float | None
    stage_times: dict[str, float] = field(default_factory=dict)
    data_probe: dict[str, Span] = field(default_factory=dict)
    samples: int | None = None  # in these steps
    samples_per_s: float | None = None
    gpu_mem_mb: float | None = None
    swap_bytes: int | None = None  # swapped in and out by the whole host since the row before
    slow: tuple[
        tuple[int, float, float], ...
    ] = ()  # (iter, iter_time, data_time) of steps above twice the running median
    ours: bool = True  # False: a row of another tool


@dataclass(frozen=True, slots=True)
class EventRow:
    """Something that happened in step ``iter`` and took time: a checkpoint, an evaluation."""

    time: float | None
    rank: int
    iter: int
    name: str
    seconds: float


Row = RunRow | StepRow | EventRow


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
            found = json.loads(line, parse_constant=_no_number) if len(line) <= MAX_LINE else None
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict):
            return None
        kind = found.get("kind")
        if kind == "run":
            return _run(found)
        if kind == "event":
            return _event(found)
        row = (
            _step(found)
            if kind == "step"
            else _foreign(found, self._last_iter)
            if kind is None
            else None
        )
        if row is not None:
            self._last_iter[row.rank] = row.iter
        return row


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


def _run(found: Mapping[str, object]) -> RunRow:
    return RunRow(
        _number(found.get("time")),
        _whole(found.get("rank")) or 0,
        _whole(found.get("world")) or 1,
        _text(found.get("host")),
        _whole(found.get("pid")),
        _text(found.get("python")),
        _text(found.get("torch")),
        _text(found.get("fastload")),
        _text(found.get("device")),
        _text(found.get("gpu")) or None,
        _whole(found.get("batch_size")),
    )


def _event(found: Mapping[str, object]) -> EventRow | None:
    seconds = _number(found.get("seconds"))
    if seconds is None:
        return None
    return EventRow(
        _number(found.get("time")),
        _whole(found.get("rank")) or 0,
        _whole(found.get("iter")) or 0,
        _text(found.get("name")) or "event",
        seconds,
    )


def _step(found: Mapping[str, object]) -> StepRow | None:
    number = _whole(found.get("iter"))
    if number is None:
        return None
    return StepRow(
        _number(found.get("time")),
        _whole(found.get("rank")) or 0,
        number,
        max(_whole(found.get("steps")) or 1, 1),
        _number(found.get("data_time")),
        _number(found.get("data_time_max")),
        _number(found.get("iter_time")),
        _number(found.get("iter_time_max")),
        _numbers(found.get("stage_times")),
        _spans(found.get("data_probe")),
        _whole(found.get("samples")),
        _number(found.get("samples_per_s")),
        _number(found.get("gpu_mem_mb")),
        _whole(found.get("swap_bytes")),
        _slow(found.get("slow")),
    )


def _foreign(found: Mapping[str, object], last: Mapping[int, int]) -> StepRow | None:
    """A row of another tool: MMEngine's scalars.json, a hand-written logger. Without a count and a time it is not for us."""
    number = next((count for name in _ITER if (count := _whole(found.get(name))) is not None), None)
    took = next(
        (
            value
            for name in _TIME
            if (value := _number(found.get(name))) is not None and value < _UNIX
        ),
        None,
    )
    wait = _number(found.get("data_time"))
    if number is None or (took is None and wait is None):
        return None
    rank = _whole(found.get("rank")) or 0
    when = next(
        (
            value
            for name in ("time", "timestamp")
            if (value := _number(found.get(name))) is not None and value >= _UNIX
        ),
        None,
    )
    return StepRow(
        when,
        rank,
        number,
        max(number - last.get(rank, number - 1), 1),
        wait,
        _number(found.get("data_time_max")),
        took,
        _number(found.get("iter_time_max")),
        _numbers(found.get("stage_times")),
        _spans(found.get("data_probe")),
        samples_per_s=_number(found.get("samples_per_s")),
        ours=False,
    )


def _no_number(name: str) -> None:  # noqa: ARG001 - NaN and Infinity, which json would turn into floats
    return None


def _number(value: object) -> float | None:
    """Finite numbers only: NaN and true are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _whole(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _numbers(value: object) -> dict[str, float]:
    found = (
        {str(name): _number(each) for name, each in value.items()}
        if isinstance(value, dict)
        else {}
    )
    return {name: each for name, each in found.items() if each is not None}


def _spans(value: object) -> dict[str, Span]:
    spans = {}
    for name, each in value.items() if isinstance(value, dict) else ():
        figures = _numbers(each)
        if "mean" in figures:
            spans[str(name)] = Span(figures["mean"], figures.get("max", figures["mean"]))
    return spans


def _slow(value: object) -> tuple[tuple[int, float, float], ...]:
    rows = (
        [tuple(map(_number, each)) for each in value if isinstance(each, list) and len(each) == 3]
        if isinstance(value, list)
        else []
    )
    return tuple(
        (int(row[0]), row[1], row[2])
        for row in rows
        if row[0] is not None and row[1] is not None and row[2] is not None
    )
