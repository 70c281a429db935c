"""How a figure is measured: interleaved rounds, medians and quartiles, wall time and CPU time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

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
        return {"median": self.middle, "low": self.low, "high": self.high, "n": self.n}


def spread(values: Sequence[float]) -> Spread:
    """Summarizes one or more values."""
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
    """Returns ``one`` divided by ``other``.

    CPU time has a resolution of 10 ms, so it can be zero in a short run.
    """
    return f"{one / other:.2f}" if other else "(run too short to measure)"


class Pass(NamedTuple):
    """One measured stretch of work."""

    wall_s: float
    cpu_s: float
    n: int  # images


# No slots: Python 3.11 cannot evaluate Rounds[str](...) for a frozen class with slots.
@dataclass(frozen=True)
class Rounds(Generic[Key]):
    """Runs candidates in turn, so that a slow minute of the machine affects all of them.

    The first round is a warm-up and is not counted. A pass takes at least ``seconds``.
    """

    rounds: int
    seconds: float

    def run(
        self,
        contestants: Mapping[Key, Callable[[], int]],
        *,
        tick: Callable[[int, int], None] | None = None,
    ) -> dict[Key, list[Pass]]:
        """Each candidate does its work once per call and returns the number of images."""
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
    """Reverses the order in every second round, so that the neighbors of a candidate change."""
    listed = list(keys)
    return listed if turn % 2 == 0 else listed[::-1]


def timed(run: Callable[[], int], *, at_least_s: float = 0.0) -> Pass:
    """Repeats ``run`` until ``at_least_s`` seconds have passed."""
    wall = time.perf_counter()
    cpu = time.process_time()
    n = 0
    while True:
        n += run()
        if time.perf_counter() - wall >= at_least_s:
            return Pass(time.perf_counter() - wall, time.process_time() - cpu, n)


def thread_counts(cpus: int) -> list[int]:
    """Powers of two below ``cpus``, and ``cpus`` itself."""
    return [*(1 << power for power in range((cpus - 1).bit_length())), cpus]
