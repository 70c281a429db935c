"""The section "Trainers" of docs/benchmarks.md, from the record of benchmarks/trainers.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.page_parts import markdown
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
ABOUT = """The trainers of `examples/` on generated images: {rounds} interleaved rounds of {epochs}
epochs, each run in its own process, with the order reversed in every second round. The first
{first} and last {last} steps of an epoch, in which the prefetch queue fills and drains, do not
count. *Plain* is torch's DataLoader with two worker processes that read the image files. *No
loading* repeats batches that are already in memory: no loader can be faster, so a ratio above 100 %
is the noise of the machine. Ratios are taken round by round; brackets are quartiles. *Variation* is
the standard deviation of the step time divided by its mean.

**The model and the loader share these {cpus} cores.** CPU time that the loader uses is missing in
the step, so much of the cost of the plain loader appears as longer steps and not as waiting. On a
GPU the steps keep their length, and the trainer waits."""
VARYING = """Variation of the step time over all counted steps, and from step to step: the root of
half the mean squared difference of consecutive steps, divided by the mean. Both are equal if steps
are independent. The first one, to which the target applies, includes slow changes of the machine's
speed. Steps in which the host of the virtual machine took more than 5 % of the CPU time are
excluded; the last column counts them."""
WAYS = ("plain", "fastload", "no loading")
LIMITS = {
    "the model": "most of a plain step is the model",
    "loading": "most of a plain step is loading",
    "both": "a plain step is partly the model and partly loading",
}


def trainers(found: Found) -> tuple[list[str], dict[str, str]]:
    """Speed, waiting and step-time variation of each trainer, then its losses and a summary."""
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
        "The loss is the mean of the last epoch. Each round has its own seed.",
        markdown(
            ("trainer", "loss, plain", "loss, fastload", "difference"),
            [_losses(row) for row in rows],
        ),
        *(f"- {_summary(row)}" for row in rows),
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
        "disturbed" if row["reached"]["low"] > 1 else _spread(speed["no loading"]),
        *(f"{row['waiting'][way]['median']:.1%}" for way in ("plain", "fastload")),
        *(f"{row['variation'][way]['median']:.1%}" for way in ("plain", "fastload", "no loading")),
    )


def _varying(rows: Sequence[Found]) -> tuple[str, str]:
    headings = (
        "trainer",
        *(f"{way}, {which}" for way in WAYS for which in ("all", "step to step")),
        "excluded steps",
    )
    cells = [
        (
            f"{row['letter']} {row['name']}",
            *(_percent(row[which][way]) for way in WAYS for which in ("variation", "step_to_step")),
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


def _summary(row: Found) -> str:
    """What limits a plain step, and how close fastload is to no loading at all."""
    name = f"{row['letter']} {row['name']}"
    reached = row["reached"]
    if reached["low"] > 1:
        return (
            f"{name}: no statement. The run without loading was slower than the run with fastload, "
            "which a loader cannot cause: the baseline was disturbed and has to be measured again."
        )
    shown = f"{reached['median']:.0%} [{reached['low']:.0%}-{reached['high']:.0%}]"
    return (
        f"{name}: {LIMITS[row['limit']]} (without loading, a step takes {row['own_work']:.0%} of "
        f"its time). With fastload the trainer reaches {shown} of its speed without loading"
        + (", so the two are not distinguishable." if reached["high"] >= 1 else ".")
    )


def _verdict(rows: Sequence[Found], bar: float) -> str:
    """Which trainers miss the target, and whether they also miss it without loading."""
    text = f"Target for the variation with fastload: below {bar:.0%}. "
    text += _judged(rows, bar, "variation")
    if all("step_to_step" in row for row in rows):
        text += f" *From step to step*: {_judged(rows, bar, 'step_to_step')}"
    return text


def _judged(rows: Sequence[Found], bar: float, which: str) -> str:
    missed = [row for row in rows if row[which]["fastload"]["median"] >= bar]
    if not missed:
        return "Met by all."
    text = f"Missed by {', '.join(row['name'] for row in missed)}."
    noisy = [row["name"] for row in missed if row[which]["no loading"]["median"] >= bar]
    if noisy:
        text += f" {', '.join(noisy)} also miss it without loading, so the machine is the cause."
    return text


def _percent(value: Found) -> str:
    return f"{value['median']:.1%} [{value['low']:.1%}-{value['high']:.1%}]"


def _spread(value: Found) -> str:
    return f"{number(value['median'])} [{number(value['low'])}-{number(value['high'])}]"
