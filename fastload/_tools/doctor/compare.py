"""Two runs side by side: samples a second, not iterations a second."""

from __future__ import annotations

from collections.abc import Sequence

from fastload._common import formatting as words
from fastload._tools.doctor.diagnosis import Finding, RunFacts
from fastload._tools.doctor.limits import SAME_BATCH, SAME_SPEED


def compare(runs: Sequence[RunFacts]) -> list[Finding]:
    """The first run against each of the others."""
    return [finding for other in runs[1:] for finding in _pair(runs[0], other)]


def _pair(first: RunFacts, other: RunFacts) -> list[Finding]:
    if (
        first.samples_s is None
        or other.samples_s is None
        or first.batch_size is None
        or other.batch_size is None
    ):
        change = other.it_s / first.it_s - 1
        return [
            Finding(
                "comparison",
                f"{other.name} does {_change(change)} in it/s than {first.name}",
                (_speeds(first), _speeds(other)),
                "batch sizes are not recorded: where they differ, it/s cannot be compared",
                severity="info",
            )
        ]
    change = other.samples_s / first.samples_s - 1
    seen = other.it_s / first.it_s - 1
    evidence = (_speeds(first), _speeds(other))
    if abs(other.batch_size / first.batch_size - 1) <= SAME_BATCH:
        return [
            Finding(
                "comparison",
                f"{other.name} {_verb(change)} {first.name}",
                evidence,
                "",
                severity="info",
            )
        ]
    batches = (
        f"batch {other.batch_size:.4g} {_verb(change)} batch {first.batch_size:.4g} in samples/s"
    )
    riddle = abs(change) <= SAME_SPEED or (change > 0) != (seen > 0)
    why = f"; it/s says {100 * seen:+.0f} % and means nothing here" if riddle else ""
    limit = (
        "the limit is a cost per sample: "
        + (_limit(other) if other.data_share is not None else "the loader or the GPU")
        if abs(change) <= SAME_SPEED
        else ""
    )
    return [
        Finding(
            "batch-size",
            batches + why,
            (*evidence, *([limit] if limit else [])),
            "compare samples/s. "
            + (
                "A larger batch does not pay; repair what limits each sample"
                if change <= SAME_SPEED
                else "The larger figure wins, as long as the model learns as well"
            ),
            severity="look" if riddle else "info",
        )
    ]


def _limit(run: RunFacts) -> str:
    waits = run.data_share is not None and run.data_share >= 0.05
    return (
        f"the loader ({words.percent(run.data_share or 0)} waiting for data)"
        if waits
        else f"the step itself (data wait {words.percent(run.data_share or 0)})"
    )


def _speeds(run: RunFacts) -> str:
    more = (
        f" x {run.batch_size:.4g} = {words.rate(run.samples_s)} samples/s"
        if run.samples_s is not None and run.batch_size
        else ""
    )
    return f"{run.name}: {words.rate(run.it_s)} it/s{more}"


def _change(change: float) -> str:
    return f"{100 * abs(change):.0f} % {'more' if change >= 0 else 'less'}"


def _verb(change: float) -> str:
    if abs(change) <= SAME_SPEED:
        return f"is as fast ({100 * change:+.0f} %) as"
    return f"is {100 * abs(change):.0f} % {'faster' if change > 0 else 'slower'} than"
