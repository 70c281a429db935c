"""The metrics schema: every figure that the loader, the step probe and the monitor record.

A training run writes ``metrics.jsonl`` with one JSON object per line: a ``RunRow`` at the start, a
``StepRow`` every few steps, and an ``EventRow`` per checkpoint or evaluation. ``loader.stats()``
returns ``LoaderStats``. The keys in the file are the field names of these classes.

To add a figure, add one field to one of these classes. The field declares how it is read and
written; writer, reader and doctor use that. Times are in seconds unless the name says otherwise.
docs/monitor.md lists every key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

from fastload._common.public import public

VERSION = 1
IMAGE_STAGES = ("read", "cut", "decode", "resize", "finish")  # of the loader, seconds per image
BATCH_STAGES = ("plan", "copy", "wait")  # of the loader, seconds per batch
DATA_PROBE = (*IMAGE_STAGES, "wait")  # the loader's stages that a StepRow holds
STEP_STAGES = ("to_device", "forward", "loss", "backward", "optimizer")  # usual names, in order
_UNIX = 1e6  # a `time` above this is a Unix time, below it a duration
_ITER = ("iter", "step", "global_step")
_TIME = ("iter_time", "step_time", "time")
SomeRow = TypeVar("SomeRow", "RunRow", "StepRow", "EventRow")


@public()
class SlowStep(NamedTuple):
    """A training step that took more than twice the running median."""

    iter: int  # step number
    iter_time: float  # seconds of the whole step
    data_time: float  # seconds of waiting for the batch


@public()
@dataclass(frozen=True, slots=True)
class Span:
    """The time of one loader stage in seconds."""

    mean: float  # over the images or batches of the row
    max: float  # since the loader was created


def number(value: object) -> float | None:
    """Returns a finite number, or None for anything else, including NaN and booleans."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _whole(value: object) -> int | None:
    found = number(value)
    return int(found) if found is not None else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _numbers(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    found = {str(name): number(each) for name, each in value.items()}
    return {name: each for name, each in found.items() if each is not None}


def _spans(value: object) -> dict[str, Span]:
    spans = {}
    for name, each in value.items() if isinstance(value, dict) else ():
        figures = _numbers(each)
        if "mean" in figures:
            spans[str(name)] = Span(figures["mean"], figures.get("max", figures["mean"]))
    return spans


def _slow(value: object) -> tuple[SlowStep, ...]:
    found = []
    for each in value if isinstance(value, list) else []:
        known = [number(part) for part in each] if isinstance(each, list) else []
        if len(known) == 3 and None not in known:
            found.append(SlowStep(int(known[0] or 0), known[1] or 0.0, known[2] or 0.0))
    return tuple(found)


def _plain(value: object, digits: int) -> object:
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, Span):
        return {"mean": round(value.mean, digits), "max": round(value.max, digits)}
    if isinstance(value, dict):
        return {name: _plain(each, digits) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each, digits) for each in value]
    return value


def _figure(read: Callable[[object], object], *, digits: int = 7, **more: Any) -> Any:
    """Declares a field of a row. ``digits`` is the number of decimals in the file."""
    if not {"default", "default_factory"} & more.keys():
        more["default"] = None
    return field(metadata={"read": read, "digits": digits}, **more)


@public()
@dataclass(frozen=True, slots=True)
class RunRow:
    """The first row that a process writes to ``metrics.jsonl``."""

    kind: ClassVar[str] = "run"
    time: float | None = _figure(number, digits=3)  # Unix time
    rank: int = _figure(lambda value: _whole(value) or 0, default=0)
    world: int = _figure(lambda value: _whole(value) or 1, default=1)
    host: str = _figure(_text, default="")
    pid: int | None = _figure(_whole)
    python: str = _figure(_text, default="")
    torch: str = _figure(_text, default="")
    fastload: str = _figure(_text, default="")
    device: str = _figure(_text, default="")
    gpu: str | None = _figure(lambda value: _text(value) or None)
    batch_size: int | None = _figure(_whole)  # samples in the first batch


@public()
@dataclass(frozen=True, slots=True)
class StepRow:
    """The last ``steps`` training steps up to step number ``iter``. Times are means per step.

    A figure that was not recorded is None or empty.

    Examples:
        >>> for row in fastload.read_metrics("metrics.jsonl").steps:
        ...     print(row.iter, row.data_time, row.iter_time)
    """

    kind: ClassVar[str] = "step"
    time: float | None = _figure(number, digits=3)  # Unix time at the end of the last step
    rank: int = _figure(lambda value: _whole(value) or 0, default=0)
    iter: int = _figure(_whole, default=0)
    steps: int = _figure(lambda value: max(_whole(value) or 1, 1), default=1)
    data_time: float | None = _figure(number)  # waiting for the batch
    data_time_max: float | None = _figure(number)
    iter_time: float | None = _figure(number)  # the whole step, including the wait
    iter_time_max: float | None = _figure(number)
    # By stage: STEP_STAGES, or names that the trainer chose.
    stage_times: dict[str, float] = _figure(_numbers, default_factory=dict)  # noqa: RUF009
    data_probe: dict[str, Span] = _figure(_spans, digits=9, default_factory=dict)  # noqa: RUF009
    samples: int | None = _figure(_whole)  # in these steps
    samples_per_s: float | None = _figure(number, digits=3)
    gpu_mem_mb: float | None = _figure(number)
    swap_bytes: int | None = _figure(_whole)  # in and out, of the host, since the previous row
    slow: tuple[SlowStep, ...] = _figure(_slow, digits=6, default=())
    from_fastload: bool = True  # False for a row of another tool


@public()
@dataclass(frozen=True, slots=True)
class EventRow:
    """An event in step ``iter`` that took ``seconds``, such as a checkpoint or an evaluation."""

    kind: ClassVar[str] = "event"
    time: float | None = _figure(number, digits=3)
    rank: int = _figure(lambda value: _whole(value) or 0, default=0)
    iter: int = _figure(lambda value: _whole(value) or 0, default=0)
    name: str = _figure(lambda value: _text(value) or "event", default="event")
    seconds: float = _figure(number, digits=6, default=0.0)


Row = RunRow | StepRow | EventRow
_OMITTED_WHEN_EMPTY = ("stage_times", "data_probe")


def as_json(row: Row) -> dict[str, object]:
    """Returns the JSON object for this row of ``metrics.jsonl``."""
    written: dict[str, object] = {"kind": row.kind}
    if isinstance(row, RunRow):
        written["version"] = VERSION
    for each in fields(row):
        value = getattr(row, each.name)
        if "read" not in each.metadata or (each.name in _OMITTED_WHEN_EMPTY and not value):
            continue
        written[each.name] = None if value == "" else _plain(value, each.metadata["digits"])
    return written


def row_of(found: Mapping[str, object], last_iter: Mapping[int, int]) -> Row | None:
    """Parses a JSON object of fastload or another tool into a row; returns None for other objects.

    ``last_iter`` is the previous step number by rank. It gives the number of steps for rows of
    other tools, which do not record it.
    """
    kind = found.get("kind")
    if kind == RunRow.kind:
        return _read(RunRow, found)
    if kind == EventRow.kind:
        return _read(EventRow, found) if number(found.get("seconds")) is not None else None
    if kind == StepRow.kind:
        return _read(StepRow, found) if _whole(found.get("iter")) is not None else None
    return _foreign(found, last_iter) if kind is None else None


_READERS = {
    kind: {each.name: each.metadata["read"] for each in fields(kind) if "read" in each.metadata}
    for kind in (RunRow, StepRow, EventRow)
}


def _read(kind: type[SomeRow], found: Mapping[str, object]) -> SomeRow:
    return kind(**{name: read(found.get(name)) for name, read in _READERS[kind].items()})


def _foreign(found: Mapping[str, object], last_iter: Mapping[int, int]) -> StepRow | None:
    """Parses a row of another tool, such as MMEngine's scalars.json or a hand-written logger.

    The row must have a step number and a step time or data time.
    """
    counts = [_whole(found.get(name)) for name in _ITER]
    times = [number(found.get(name)) for name in _TIME]
    dates = [number(found.get(name)) for name in ("time", "timestamp")]
    iteration = next((count for count in counts if count is not None), None)
    iter_time = next((value for value in times if value is not None and value < _UNIX), None)
    row = _read(StepRow, found)
    named = {
        stage: number(found.get(f"time_{stage}", found.get(f"{stage}_time")))
        for stage in STEP_STAGES
    }
    stages = {stage: value for stage, value in named.items() if value is not None}
    if iteration is None or (iter_time is None and row.data_time is None):
        return None
    return replace(
        row,
        time=next((value for value in dates if value is not None and value >= _UNIX), None),
        iter=iteration,
        steps=max(iteration - last_iter.get(row.rank, iteration - 1), 1),
        iter_time=iter_time,
        stage_times=row.stage_times or stages,
        # Other tools may use these names for something else.
        samples=None,
        gpu_mem_mb=None,
        swap_bytes=None,
        slow=(),
        from_fastload=False,
    )


@public()
@dataclass(frozen=True, slots=True)
class StageStats:
    """The time of one loader stage in seconds, per image or per batch.

    ``read``, ``cut``, ``decode``, ``resize`` and ``finish`` are per image; ``plan``, ``copy`` and
    ``wait`` are per batch.
    """

    mean: float
    p50: float
    p99: float
    max: float
    count: int  # images or batches


@public()
@dataclass(frozen=True, slots=True)
class LoaderStats:
    """Throughput and stage times of a loader, since it was created.

    ``finish`` is the time to write an image into the batch plus its share of the Python work on the
    batch: labels, color operations and a ``collate_fn`` with a parameter ``generator``. ``wait`` is
    how long the trainer waits for a batch, including any other ``collate_fn``. ``copy`` is the
    transfer to the device or into pinned memory.

    Examples:
        >>> print(loader.stats())
        >>> loader.stats().stages["decode"].mean
    """

    batches: int
    samples: int
    bad: int  # samples substituted (on_error="substitute")
    bytes_read: int  # encoded bytes
    images_per_s: float  # from the first request to the last delivered batch
    queue_depth: float  # mean number of ready batches at each request; near 0 = the trainer waits
    threads: int  # decode threads
    buffer_bytes: int  # memory of all batch buffers
    stages: dict[str, StageStats] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"{self.samples} samples in {self.batches} batches, {self.images_per_s:.0f} images/s, "
            f"{self.threads} threads, {self.buffer_bytes / 2**20:.0f} MiB of buffers, "
            f"{self.queue_depth:.1f} batches ready on average, {self.bad} bad samples"
        ]
        lines += [
            f"  {name:8} mean {1e6 * each.mean:9.1f} us  p50 {1e6 * each.p50:9.1f}  "
            f"p99 {1e6 * each.p99:9.1f}  max {1e6 * each.max:9.1f}"
            for name, each in self.stages.items()
        ]
        return "\n".join(lines)
