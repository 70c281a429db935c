"""Which of the measured backends keeps the training step fed at the least cost, and the record of it.

Choosing is pure: numbers in, a name and a sentence out. Measurements are kept in the user's cache
folder, one small JSON file per question. A record is valid for exactly the data, GPU, driver and
packages that it was made with.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fastload._decode.selftest_record import cache_folder
from fastload.errors import ConfigError

AS_GOOD = 1.03  # iterations that differ by less are equally long: timings are not more accurate
_MAX_BYTES = 1 << 20  # of a record


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend to measure."""

    name: str
    hardware: bool = False

    def __str__(self) -> str:
        return self.name + " with the JPEG engine" * self.hardware


@dataclass(frozen=True, slots=True)
class Measured:
    """What a batch costs with one backend. A candidate that failed has only ``failure``."""

    candidate: Candidate
    batch_s: float = math.inf  # from one batch to the next, with others in flight
    host_s: float = 0.0  # processor time of all threads together
    device_s: float = 0.0  # GPU time that other work loses
    failure: str = ""

    def iteration_s(self, step_s: float) -> float:
        """Length of a training iteration: loading runs beside the step, but takes GPU time from it."""
        return max(self.batch_s, step_s + self.device_s)

    def cost(self, cpus: int) -> float:
        """Seconds of all of this rank's processors and of its GPU that a batch occupies."""
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
    """The shortest iteration wins; among equally short ones the cheapest; then the first.

    ``step_s``: what the trainer needs for a batch without loading. While it is unknown, the fastest
    backend wins: it can feed any step. ``skipped``: candidates that were not measured, and why.
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
    parts = [f"{_figures(best, cpus)} a batch"]
    if step_s is not None:
        fed = ", which it keeps fed" if best.batch_s <= step_s else ""
        parts.append(f"the training step takes {_ms(step_s)}{fed}")
    others = [each for each in measured if each is not best]
    parts += [f"{each.candidate} {_figures(each, cpus)}" for each in others if not each.failure]
    parts += [f"{each.candidate} failed: {each.failure}" for each in others if each.failure]
    parts += [f"{name} not tried: {why}" for name, why in skipped.items()]
    return "; ".join(parts)


def _figures(each: Measured, cpus: int) -> str:
    cpu = _percent(each.host_s / cpus, each.batch_s)
    gpu = _percent(each.device_s, each.batch_s)
    return f"{_ms(each.batch_s)} ({cpu} CPU, {gpu} GPU)"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole > 0 else "0 %"


def to_json(measured: Sequence[Measured]) -> list[dict[str, object]]:
    """For the record; infinity, which JSON does not have, is left out."""
    return [
        {name: value for name, value in asdict(each).items() if value != math.inf}
        for each in measured
    ]


def from_json(rows: object) -> list[Measured] | None:
    """What ``to_json`` returned, read back; None if it is something else."""
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


def record_path(question: Mapping[str, str]) -> Path:
    """The file of the record that answers this question."""
    digest = hashlib.sha256(json.dumps(dict(question), sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / f"backend-{digest}.json"


def load_record(question: Mapping[str, str]) -> dict[str, Any] | None:
    """The record; None if there is none, it is damaged, or it answers another question."""
    try:
        path = record_path(question)
        if path.stat().st_size > _MAX_BYTES:
            return None
        found = json.loads(path.read_text())
    except (OSError, ValueError, RuntimeError):  # RuntimeError: there is no home folder
        return None
    return found if isinstance(found, dict) and found.get("for") == dict(question) else None


def store_record(question: Mapping[str, str], record: Mapping[str, object]) -> None:
    """Writes the record in one step. A folder that cannot be written is no error."""
    temporary: Path | None = None
    content = {**record, "for": dict(question)}
    try:
        path = record_path(question)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        temporary.replace(path)
    except (OSError, RuntimeError):
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
