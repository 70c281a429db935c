"""Three timings: the loader alone, the step alone on batches replayed from memory, both together. Warm-up is left out.

Worker processes deliver in groups (all begin at once), so a window always holds whole groups: otherwise one with 5 of 2 x 4 batches
would be wrong by a quarter.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastload._tools.diagnose.batches import Keeper
from fastload._tools.diagnose.device import synchronise
from fastload._tools.diagnose.result import Timing
from fastload._tools.diagnose.source import Source, short
from fastload.errors import ConfigError

Step = Callable[[Any], object]
WARM_STEPS = 3  # of a step alone: compilation, autotuning, first allocations
_PATIENCE = 3.0  # so many times the given time may pass until there is a steady state to measure


@dataclass(slots=True)
class Pass:
    """One iteration over the loader: when it began, when each batch came, and how long the caller had waited for it."""

    began: float
    came: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LoaderTiming:
    """The loader alone, or together with the step."""

    timing: Timing
    wait_s: float  # in next(), per batch
    start_s: float  # to the first batch of a pass, mean
    settled: bool  # False: too few batches to leave a warm-up out
    ended: bool  # the loader has no more


def time_loader(
    source: Source, seconds: float, *, keeper: Keeper | None = None, step: Step | None = None
) -> LoaderTiming | None:
    """Runs passes for about ``seconds``, with ``step`` on each batch; None where no batch comes."""
    deadline, limit = time.perf_counter() + seconds, time.perf_counter() + _PATIENCE * seconds
    passes: list[Pass] = []
    group, ended = source.group, False
    try:
        while not ended and not _enough(passes, group, deadline, limit):
            passes.append(Pass(time.perf_counter()))
            ended = not _run_pass(
                source, passes, keeper, step, lambda: _enough(passes, group, deadline, limit)
            )
    finally:
        synchronise()
        source.end_pass()
    measured = _steady([each for each in passes if each.came], group)
    if measured is None:
        return None
    timing, wait_s, settled = measured
    starts = [each.came[0] - each.began for each in passes if each.came]
    return LoaderTiming(timing, wait_s, sum(starts) / len(starts), settled, ended)


def _run_pass(
    source: Source,
    passes: Sequence[Pass],
    keeper: Keeper | None,
    step: Step | None,
    enough: Callable[[], bool],
) -> bool:
    """One pass, until ``enough``; whether the loader could begin another one."""
    current = passes[-1]
    asked = current.began
    for batch in source.batches():
        came = time.perf_counter()
        current.came.append(came)
        current.waited.append(came - asked)
        if keeper is not None:
            keeper.offer(batch)
        if step is not None:
            run_step(step, batch)
        if enough():
            return True
        asked = time.perf_counter()
    return bool(current.came) and not source.once


def _enough(passes: Sequence[Pass], group: int, deadline: float, limit: float) -> bool:
    now = time.perf_counter()
    if now < deadline:
        return False
    counted = sum(max(0, len(each.came) - 1 - _warm(len(each.came), group)) for each in passes)
    return counted >= max(group, 2) or now >= limit


def _warm(n: int, group: int) -> int:
    """Batches to leave out at a pass's beginning: each worker's first, and two in any case; less where there are few."""
    return min(max(group, 2), max(0, n - 1 - group))


def _steady(passes: Sequence[Pass], group: int) -> tuple[Timing, float, bool] | None:
    seconds, waited, count = 0.0, 0.0, 0
    for each in passes:
        first = _warm(len(each.came), group)
        n = len(each.came) - 1 - first
        n = n // group * group or n
        if n > 0:
            seconds += each.came[first + n] - each.came[first]
            waited += sum(each.waited[first + 1 : first + n + 1])
            count += n
    if count:
        return Timing(seconds / count, count), waited / count, True
    if not passes:
        return None
    batches = sum(
        len(each.came) for each in passes
    )  # one batch a pass: its start cannot be told from the rest
    seconds = sum(each.came[-1] - each.began for each in passes)
    return (
        Timing(seconds / batches, batches),
        sum(sum(each.waited) for each in passes) / batches,
        False,
    )


def time_step(step: Step, batches: Sequence[object], seconds: float) -> Timing:
    """The step alone, over and over on the same batches; the GPU is waited for at the ends of the window only."""
    deadline = time.perf_counter() + seconds
    replay = itertools.cycle(batches)
    for _ in range(WARM_STEPS):
        run_step(step, next(replay))
    synchronise()
    began, count = time.perf_counter(), 0
    while count < 2 or (time.perf_counter() < deadline and count < 1_000_000):
        run_step(step, next(replay))
        count += 1
    synchronise()
    return Timing((time.perf_counter() - began) / count, count)


def run_step(step: Step, batch: object) -> None:
    """Calls it; what it raises comes out as one ConfigError."""
    try:
        step(batch)
    except Exception as error:
        raise ConfigError(
            f"diagnose: the step raised {short(error)}. It is called as step(batch), with what the loader gives"
        ) from error
