"""Chooses the decode backend from measurements, and stores the measurements.

``choose`` is a pure function from numbers to a name and an explanation. Measurements are stored in
the user's cache folder, one small JSON file per key. A key contains the data, GPU, driver and
package versions, so a record is never used with others.
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

AS_GOOD = 1.03  # iteration times that differ by less count as equal, given the timing accuracy
_MAX_BYTES = 1 << 20  # maximum size of a record


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend to measure."""

    name: str
    hardware: bool = False

    def __str__(self) -> str:
        return self.name + " with the JPEG engine" * self.hardware


@dataclass(frozen=True, slots=True)
class Measured:
    """The cost of a batch with one backend. A candidate that failed has only ``failure``."""

    candidate: Candidate
    batch_s: float = math.inf  # from one batch to the next, with others in flight
    host_s: float = 0.0  # CPU time of all threads together
    device_s: float = 0.0  # GPU time that is not available to other work
    failure: str = ""

    def iteration_s(self, step_s: float) -> float:
        """Returns the duration of a training iteration.

        Loading runs in parallel to the training step, but uses some of its GPU time.
        """
        return max(self.batch_s, step_s + self.device_s)

    def cost(self, cpus: int) -> float:
        """Returns the time per batch during which all CPUs of this rank, or its GPU, are busy."""
        return self.host_s / cpus + self.device_s


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen candidate and the reason in one line."""

    candidate: Candidate
    why: str


def choose(
    measured: Sequence[Measured],
    *,
    cpus: int,
    step_s: float | None = None,
    skipped: Mapping[str, str] | None = None,
) -> Decision:
    """Chooses the shortest iteration; among equal ones the cheapest, then the first.

    Args:
        measured: The measurements.
        cpus: CPUs of this rank.
        step_s: Duration of a training step without loading. If it is unknown, the fastest backend
            is chosen.
        skipped: Candidates that were not measured, and the reasons.

    Raises:
        ConfigError: All candidates failed.
    """
    usable = [each for each in measured if not each.failure and math.isfinite(each.batch_s)]
    if not usable:
        raise ConfigError(
            "backend='auto': no backend works on this machine: "
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
    parts = [f"{_figures(best, cpus)} per batch"]
    if step_s is not None:
        speed = "fast enough" if best.batch_s <= step_s else "too slow"
        parts.append(f"{speed} for a training step of {_ms(step_s)}")
    others = [each for each in measured if each is not best]
    parts += [f"{each.candidate} {_figures(each, cpus)}" for each in others if not each.failure]
    parts += [f"{each.candidate} failed: {each.failure}" for each in others if each.failure]
    parts += [f"{name} not measured: {why}" for name, why in skipped.items()]
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
    """Converts measurements for a record. JSON has no infinity, so it is omitted."""
    return [
        {name: value for name, value in asdict(each).items() if value != math.inf}
        for each in measured
    ]


def from_json(rows: object) -> list[Measured] | None:
    """Converts the result of ``to_json`` back; returns None if it is something else."""
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


def record_path(key: Mapping[str, str]) -> Path:
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:16]
    return cache_folder() / f"backend-{digest}.json"


def load_record(key: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns the record; None if there is none, it is damaged, or it has another key."""
    try:
        path = record_path(key)
        if path.stat().st_size > _MAX_BYTES:
            return None
        found = json.loads(path.read_text())
    except (OSError, ValueError, RuntimeError):  # RuntimeError: there is no home folder
        return None
    return found if isinstance(found, dict) and found.get("for") == dict(key) else None


def store_record(key: Mapping[str, str], record: Mapping[str, object]) -> None:
    """Writes the record atomically. Ignores a folder that cannot be written."""
    temporary: Path | None = None
    content = {**record, "for": dict(key)}
    try:
        path = record_path(key)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        temporary.replace(path)
    except (OSError, RuntimeError):
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
