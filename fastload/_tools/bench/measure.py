"""How a figure is taken: interleaved rounds, medians, quartiles, wall and processor time. Pure but for the clocks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of ``n`` rounds."""

    low: float
    middle: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{number(self.middle)} [{number(self.low)}-{number(self.high)}]"

    def as_json(self) -> dict[str, float]:
        """The same by name."""
        return {"median": self.middle, "low": self.low, "high": self.high, "n": self.n}


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    if len(values) < 2:
        return Spread(values[0], values[0], values[0], len(values))
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(low, middle, high, len(values))


def number(value: float) -> str:
    """Three significant digits: 12,345 / 123 / 12.3 / 1.23."""
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.0995 else f"{value:.3g}"


def part(one: float, other: float) -> str:
    """``one`` as a part of ``other``; processor time is counted in ticks of 10 ms, so that it may be none in a short run."""
    return f"{one / other:.2f}" if other else "(too short to tell)"


@dataclass(frozen=True, slots=True)
class Pass:
    """One stretch of measured work."""

    wall_s: float
    cpu_s: float
    n: int  # images


# No slots: Python 3.11 cannot make Rounds[str](...) of a frozen class with them
@dataclass(frozen=True)
class Rounds(Generic[Key]):
    """Runs contestants in turn, so that a slow minute of the machine hits all; the first round is warm-up."""

    rounds: int
    seconds: float  # at least so long a pass

    def run(
        self,
        contestants: Mapping[Key, Callable[[], int]],
        *,
        tick: Callable[[int, int], None] | None = None,
    ) -> dict[Key, list[Pass]]:
        """``contestants``: each does its work once and says how many images that were."""
        found: dict[Key, list[Pass]] = {key: [] for key in contestants}
        total = (self.rounds + 1) * len(contestants)
        done = 0
        for turn in range(self.rounds + 1):
            for key in alternating(contestants, turn):
                measured = timed(contestants[key], at_least_s=self.seconds if turn else 0.0)
                if turn:
                    found[key].append(measured)
                done += 1
                if tick:
                    tick(done, total)
        return found


def alternating(keys: Iterable[Key], turn: int) -> list[Key]:
    """The keys, in every second round reversed: no contestant always follows the same neighbor."""
    listed = list(keys)
    return listed if turn % 2 == 0 else listed[::-1]


def timed(run: Callable[[], int], *, at_least_s: float = 0.0) -> Pass:
    """Repeats the work until the time is full."""
    wall = time.perf_counter()
    cpu = time.process_time()
    n = 0
    while True:
        n += run()
        if time.perf_counter() - wall >= at_least_s:
            return Pass(time.perf_counter() - wall, time.process_time() - cpu, n)


def thread_counts(cpus: int) -> list[int]:
    """1, 2, 4 ... and all of them."""
    counts = [1 << power for power in range(cpus.bit_length()) if 1 << power < cpus]
    return [*counts, cpus]
