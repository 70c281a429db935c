"""Which of the measured backends keeps the training step fed at the least cost. Pure: numbers in, a name and a sentence out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from fastload.errors import ConfigError

AS_GOOD = 1.03  # iterations that differ by less are equally long: timings are not better than that


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend to be tried."""

    name: str
    hardware: bool = False

    def __str__(self) -> str:
        return self.name + " with the JPEG engine" * self.hardware


@dataclass(frozen=True, slots=True)
class Measured:
    """What a batch costs with one backend, in seconds. A candidate that failed has only ``failure``."""

    candidate: Candidate
    batch_s: float = math.inf  # from one batch to the next, with others under way
    host_s: float = 0.0  # processor time, of all threads together
    device_s: float = 0.0  # GPU time that others lose by it
    failure: str = ""

    def iteration_s(self, step_s: float) -> float:
        """How long an iteration of the trainer takes: loading runs beside the step, but takes GPU time from it."""
        return max(self.batch_s, step_s + self.device_s)

    def cost(self, cpus: int) -> float:
        """The part of this rank's processors and of its GPU that a batch occupies, in seconds of all of it."""
        return self.host_s / cpus + self.device_s


@dataclass(frozen=True, slots=True)
class Decision:
    """The candidate taken, and why, in one line."""

    candidate: Candidate
    why: str


def choose(
    measured: Sequence[Measured],
    *,
    cpus: int,
    step_s: float | None = None,
    skipped: Mapping[str, str] | None = None,
) -> Decision:
    """The shortest iteration wins; of those equally short, the cheapest; of equally cheap ones, the first.

    ``step_s``: what the trainer takes for a batch by itself. As long as that is unknown, the fastest loader wins: it can feed any step.
    ``skipped``: candidates that were not tried, and why.
    """
    usable = [each for each in measured if not each.failure and math.isfinite(each.batch_s)]
    if not usable:
        raise ConfigError(
            "choosing a backend: none works here: "
            + "; ".join(f"{each.candidate}: {each.failure}" for each in measured)
        )
    step = step_s or 0.0
    shortest = min(each.iteration_s(step) for each in usable)
    best = min(
        (each for each in usable if each.iteration_s(step) <= AS_GOOD * shortest),
        key=lambda each: each.cost(cpus),
    )
    return Decision(
        best.candidate, _sentence(best, measured, cpus=cpus, step_s=step_s, skipped=skipped or {})
    )


def _sentence(
    best: Measured,
    measured: Sequence[Measured],
    *,
    cpus: int,
    step_s: float | None,
    skipped: Mapping[str, str],
) -> str:
    others = [
        f"{each.candidate} {_figures(each, cpus)}"
        for each in measured
        if each is not best and not each.failure
    ]
    lost = [f"{each.candidate} failed: {each.failure}" for each in measured if each.failure]
    lost += [f"{name} not tried: {why}" for name, why in skipped.items()]
    step = (
        ""
        if step_s is None
        else f"; the training step takes {_ms(step_s)}"
        + ", which it keeps fed" * (best.batch_s <= step_s)
    )
    return (
        f"{_figures(best, cpus)} a batch" + step + "".join(f"; {text}" for text in (*others, *lost))
    )


def _figures(each: Measured, cpus: int) -> str:
    return f"{_ms(each.batch_s)} ({_percent(each.host_s / cpus, each.batch_s)} CPU, {_percent(each.device_s, each.batch_s)} GPU)"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole > 0 else "0 %"


def to_json(measured: Sequence[Measured]) -> list[dict[str, object]]:
    """For the record; infinity, which JSON has not, is left out."""
    return [
        {name: value for name, value in asdict(each).items() if value != math.inf}
        for each in measured
    ]


def from_json(rows: object) -> list[Measured] | None:
    """The same again; None where it is something else."""
    if not isinstance(rows, list) or not rows:
        return None
    found = []
    for row in rows:
        candidate = row.get("candidate") if isinstance(row, dict) else None
        if not isinstance(candidate, dict) or not isinstance(candidate.get("name"), str):
            return None
        numbers = {
            name: row.get(name, default)
            for name, default in (("batch_s", math.inf), ("host_s", 0.0), ("device_s", 0.0))
        }
        if not all(
            isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
            for value in numbers.values()
        ):
            return None
        tried = Candidate(candidate["name"], candidate.get("hardware") is True)
        found.append(Measured(tried, **numbers, failure=str(row.get("failure", ""))))
    return found
