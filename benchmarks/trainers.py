"""The five trainers of examples/ with torch's DataLoader and with fastload.

    python -m benchmarks.trainers [--only lanes,gray] [--rounds 5] [--steps 24] [--json FILE]

Takes about 10 minutes on 2 cores and compares samples/s, final loss, waiting and the variation of
the step time. Every round runs each trainer in three ways, each in its own process and in reverse
order in every second round: plain (torch's DataLoader with two worker processes), with fastload,
and without loading (a few batches are kept in memory and repeated). No loader can be faster than
that, so the ratio is taken round by round, with its spread: a spread that lies above 100 % means
that the machine changed between the runs, and the page then makes no statement. Plain and fastload
see the same samples equally often and start from the same weights; each round has its own seed. The
figures are from the metrics.jsonl of the trainers, one row per step. Only the middle of each epoch
counts, because the prefetch queue fills and drains at its ends.

Variation is the standard deviation of the step time divided by its mean; the target applies to it.
The variation from step to step (benchmarks/evenness.py) excludes slow changes, such as a virtual
machine that is slower for some seconds, but includes everything that a loader does every few steps.
Steps in which the host took more than 5 % of the CPU time (/proc/stat, "steal") are excluded from
both and counted.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.trainer_runs import (
    EMPTYING,
    EPOCHS,
    FILLING,
    TRAINERS,
    WAYS,
    Data,
    Trained,
    Trainer,
    prepare,
    trained,
)
from fastload._common.tables import Table
from fastload._tools.bench.measure import commit, spread

PACKAGES = ("torch", "pillow", "lmdb")
BAR = 0.10  # target for the variation of the step time with fastload
SAME = 0.01  # smaller relative differences of the loss always count as equal
Runs = dict[str, dict[str, list[Trained]]]  # trainer to way to one run per round


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(TRAINERS), help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, help="steps per epoch, of two epochs (default: 24)")
    parser.add_argument("--folder", type=Path, help="where datasets are created")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    chosen = {
        name: replace(TRAINERS[name], steps=options.steps or TRAINERS[name].steps)
        for name in options.only.split(",")
    }
    here = describe(*PACKAGES)
    for key, value in here.items():
        print(f"{key:>12}: {value}")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        runs = compare(Path(name), chosen, options.rounds)
    rows = [row(name, chosen[name], ways) for name, ways in runs.items()]
    show(rows, options.rounds)
    if options.json:
        report = {
            "machine": here,
            "commit": commit(Path(__file__).parent),
            "rounds": options.rounds,
            "epochs": EPOCHS,
            "bar": BAR,
            "ends": [FILLING, EMPTYING],
            "seconds": round(time.perf_counter() - began),
            "rows": rows,
            "runs": {
                name: {way: [asdict(each) for each in own] for way, own in ways.items()}
                for name, ways in runs.items()
            },
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def compare(folder: Path, chosen: Mapping[str, Trainer], rounds: int) -> Runs:
    """Runs every trainer in every way, round by round."""
    data: dict[str, Data] = {}
    for name, trainer in chosen.items():
        sys.stderr.write(f"{time.strftime('%X')} {name}: creating and packing images ...\n")
        data[name] = prepare(name, trainer, folder / name)
    runs: Runs = {name: {way: [] for way in WAYS} for name in chosen}
    for turn in range(rounds):
        for name, trainer in chosen.items():
            for way in WAYS if turn % 2 == 0 else reversed(WAYS):
                sys.stderr.write(
                    f"{time.strftime('%X')} round {turn + 1} of {rounds}: {name}, {way} ...\n"
                )
                runs[name][way].append(
                    trained(name, trainer, data[name], way, seed=turn, folder=folder)
                )
    return runs


def row(name: str, trainer: Trainer, ways: Mapping[str, Sequence[Trained]]) -> dict[str, Any]:
    """The figures of one trainer. The gain is taken per round, like in all comparisons."""
    plain, fastload, no_loading = (ways[way] for way in WAYS)
    gains = [
        one.samples_per_s / other.samples_per_s for one, other in zip(fastload, plain, strict=True)
    ]
    figures = {
        what: {
            way: spread([getattr(each, what) for each in own]).as_json()
            for way, own in ways.items()
        }
        for what in ("samples_per_s", "waiting", "variation", "step_to_step")
    }
    figures["loss"] = {way: spread([each.loss for each in ways[way]]).as_json() for way in WAYS[:2]}
    own_work = statistics.median(
        one.samples_per_s / other.samples_per_s
        for one, other in zip(plain, no_loading, strict=True)
    )
    return {
        "name": name,
        "letter": trainer.letter,
        "about": trainer.about,
        "batch_size": trainer.batch_size,
        "steps": trainer.steps,
        "counted": fastload[0].steps,
        "disturbed": {way: sum(each.disturbed for each in own) for way, own in ways.items()},
        "gain": spread(gains).as_json(),
        "reached": spread(
            [
                one.samples_per_s / other.samples_per_s
                for one, other in zip(fastload, no_loading, strict=True)
            ]
        ).as_json(),
        **figures,
        "own_work": own_work,
        "limit": limit(own_work),
        "losses": losses([each.loss for each in plain], [each.loss for each in fastload]),
    }


def limit(own_work: float) -> str:
    """What limits a step with torch's DataLoader.

    ``own_work`` is the share of its time that remains without loading.
    """
    if own_work > 2 / 3:
        return "the model"
    return "loading" if own_work < 1 / 3 else "both"


def losses(plain: Sequence[float], fastload: Sequence[float]) -> str:
    """Whether the final losses differ by more than the variation between seeds."""
    mean = statistics.mean(plain)
    difference = (statistics.mean(fastload) - mean) / mean
    if min(len(plain), len(fastload)) < 2:
        return f"{difference:+.1%}, one seed"
    variance = sum(statistics.variance(each) / len(each) for each in (plain, fastload))
    noise = max(SAME, 2 * math.sqrt(variance) / mean)
    side = "within" if abs(difference) <= noise else "outside"
    return f"{difference:+.1%}, {side} the variation between seeds ({noise:.1%})"


def show(rows: Sequence[Mapping[str, Any]], rounds: int) -> None:
    headings = (
        "trainer",
        "plain/s",
        "fastload/s",
        "gain",
        "no loading/s",
        "waiting",
        "variation",
        "",
        "step to step",
        "loss",
        "",
        "limit",
    )
    title = (
        f"samples/s, medians of {rounds} rounds [quartiles]; other columns: plain, fastload, and "
        "for variations no loading"
    )
    table = Table(title, headings)
    for each in rows:
        gain = each["gain"]
        missed = each["variation"]["fastload"]["median"] >= BAR
        speeds = [f"{each['samples_per_s'][way]['median']:.1f}" for way in WAYS]
        table.rows.append(
            (
                each["name"],
                *speeds[:2],
                f"{gain['median']:.2f} [{gain['low']:.2f}-{gain['high']:.2f}]",
                speeds[2],
                _both(each["waiting"], ".1%"),
                _all(each["variation"]),
                "MISSED" if missed else "",
                _all(each["step_to_step"]),
                _both(each["loss"], ".3g"),
                each["losses"],
                each["limit"],
            )
        )
    table.show()


def _both(found: Mapping[str, Any], form: str) -> str:
    return ", ".join(format(found[way]["median"], form) for way in WAYS[:2])


def _all(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{found[way]['median']:.1%}" for way in WAYS)


if __name__ == "__main__":
    sys.exit(main())
