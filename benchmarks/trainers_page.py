"""The section "Trainers" of docs/benchmarks.md, out of what benchmarks/trainers.py recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastload._common.tables import markdown
from fastload._tools.bench.measure import number

Found = Mapping[str, Any]
HEADINGS = (
    "trainer",
    "samples/s, plain",
    "samples/s, fastload",
    "fastload is",
    "samples/s, no loading",
    "waiting, plain",
    "waiting, fastload",
    "variation, plain",
    "variation, fastload",
    "variation, no loading",
)
ABOUT = """The trainers of `examples/` on generated pictures, {rounds} interleaved rounds, each run in a process of its own, every second
round backwards; {epochs} epochs, of which the middle counts (not the first {first} and the last {last} steps, in which a loader's stock of
batches is filled and used up). *Plain* is torch's DataLoader with two worker processes over the files. *No loading* gives the trainer
its first batch again and again: no loader can be faster. *Variation* is the standard deviation of the step time over its mean.

**Model and decoding share these {cpus} cores**: what a loader uses the step lacks, so that much of plain's cost shows as a longer step and
not as waiting. On a GPU the step keeps its length, and waits."""
VARYING = """Both columns of a way are the variation of its step time: over all counted steps, and from step to step (the root of half the
mean squared difference of neighbors, over the mean; where steps do not depend on each other it is the same). The first, for which the bar
is, also has slow changes of the machine's speed. Left out are steps in which the host took more than a twentieth of the
processors' time; their number stands behind, by way."""
WAYS = ("plain", "fastload", "no loading")
LIMITS = {
    "the model": "the model's own work is most of a plain step",
    "loading": "loading is most of a plain step",
    "both": "a plain step is both, the model's work and loading",
}


def trainers(found: Found) -> tuple[list[str], dict[str, str]]:
    """Speed, waiting and step-time variation of each trainer; then its losses; then what to make of it."""
    rows = found["rows"]
    first, last = found["ends"]
    about = ABOUT.format(
        rounds=found["rounds"],
        epochs=found["epochs"],
        first=first,
        last=last,
        cpus=found["machine"]["cpus"],
    )
    return [
        about,
        markdown(HEADINGS, [_speeds(row) for row in rows]),
        *(_varying(rows) if all("step_to_step" in row for row in rows) else ()),
        "The loss is the mean of the last epoch; the seeds are the rounds.",
        markdown(
            ("trainer", "loss, plain", "loss, fastload", "difference"),
            [_losses(row) for row in rows],
        ),
        *(f"- {_in_short(row)}" for row in rows),
        _verdict(rows, found["bar"]),
    ], {}


def _speeds(row: Found) -> tuple[str, ...]:
    speed = row["samples_per_s"]
    gain = row["gain"]
    return (
        f"{row['letter']} {row['name']}: {row['about']}, batch {row['batch_size']}",
        _spread(speed["plain"]),
        _spread(speed["fastload"]),
        f"{gain['median']:.2f} x [{gain['low']:.2f}-{gain['high']:.2f}]",
        _spread(speed["no loading"]),
        *(f"{row['waiting'][way]['median']:.1%}" for way in ("plain", "fastload")),
        *(f"{row['variation'][way]['median']:.1%}" for way in ("plain", "fastload", "no loading")),
    )


def _varying(rows: Sequence[Found]) -> tuple[str, str]:
    headings = (
        "trainer",
        *(f"{way}, {which}" for way in WAYS for which in ("all", "step to step")),
        "steps left out",
    )
    cells = [
        (
            f"{row['letter']} {row['name']}",
            *(
                f"{row[which][way]['median']:.1%} [{row[which][way]['low']:.1%}-{row[which][way]['high']:.1%}]"
                for way in WAYS
                for which in ("variation", "step_to_step")
            ),
            ", ".join(str(row["disturbed"][way]) for way in WAYS),
        )
        for row in rows
    ]
    return VARYING, markdown(headings, cells)


def _losses(row: Found) -> tuple[str, ...]:
    return (
        f"{row['letter']} {row['name']}",
        *(_spread(row["loss"][way]) for way in ("plain", "fastload")),
        row["losses"],
    )


def _in_short(row: Found) -> str:
    """What most of a plain step goes into, and how near fastload comes to no loading at all."""
    reached = (
        row["samples_per_s"]["fastload"]["median"] / row["samples_per_s"]["no loading"]["median"]
    )
    return (
        f"{row['letter']} {row['name']}: {LIMITS[row['limit']]} (without loading a step takes {row['own_work']:.0%} of its time); "
        f"with fastload the trainer runs at {reached:.0%} of the speed that it has without loading."
    )


def _verdict(rows: Sequence[Found], bar: float) -> str:
    """Whose step time varies more than it should, and whether the machine alone does that."""
    told = f"Bar for the variation with fastload: below {bar:.0%}."
    if all("step_to_step" in row for row in rows):
        return f"{told} {_judged(rows, bar, 'variation')} *From step to step*: {_judged(rows, bar, 'step_to_step')}"
    return f"{told} {_judged(rows, bar, 'variation')}"


def _judged(rows: Sequence[Found], bar: float, which: str) -> str:
    missed = [row for row in rows if row[which]["fastload"]["median"] >= bar]
    noisy = [row["name"] for row in missed if row[which]["no loading"]["median"] >= bar]
    return (
        f"Missed by {', '.join(row['name'] for row in missed)}." if missed else "Reached by all."
    ) + (
        f" Without any loading it is also missed by {', '.join(noisy)}: the machine's own noise."
        if noisy
        else ""
    )


def _spread(value: Found) -> str:
    return f"{number(value['median'])} [{number(value['low'])}-{number(value['high'])}]"
