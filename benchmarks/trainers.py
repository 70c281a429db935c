"""The five trainers of examples/ with torch's DataLoader and with fastload: samples/s at equal loss, waiting, step-time variation.

    python -m benchmarks.trainers [--only lanes,gray] [--rounds 5] [--steps 24] [--json FILE]        (some 10 minutes on 2 cores)

Each run is a process of its own. Every round runs each trainer three ways, one after the other, every second round backwards: as it was
(torch's DataLoader, two worker processes), with fastload, and without loading (the first batch again and again: no loader can be faster).
All see the same samples as often, from the same weights; the seed is the round's. Figures come from the metrics.jsonl that the trainers
write, a row a step, and count the middle of each epoch: at its ends a loader's stock of batches is filled and used up.

Variation is the standard deviation of the step time over its mean; the bar is for that. Beside it stands the same from step to step
(benchmarks/evenness.py), which leaves out slow changes: a virtual machine that is slower for some seconds and then faster again is in the
first and not in the second, which has all that a loader does every few steps. Steps in which the host took away more than a twentieth of
the processors' time (/proc/stat, "steal") are left out of both, for all three ways, and counted.
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
from fastload._tools.bench.machine import commit
from fastload._tools.bench.measure import spread

PACKAGES = ("torch", "pillow", "lmdb")
BAR = 0.10  # of the step time's variation with fastload
SAME = 0.01  # losses that differ by less are the same whatever the seeds say
Runs = dict[str, dict[str, list[Trained]]]  # trainer → way → its runs, round by round


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(TRAINERS), help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, help="an epoch, of which there are two (default: 24)")
    parser.add_argument("--folder", type=Path, help="where datasets are made")
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
        told = {
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
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0


def compare(folder: Path, chosen: Mapping[str, Trainer], rounds: int) -> Runs:
    """Round by round, trainer by trainer, way by way."""
    data: dict[str, Data] = {}
    for name, trainer in chosen.items():
        sys.stderr.write(f"{time.strftime('%X')} {name}: making and packing pictures ...\n")
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
    """One trainer's figures. The gain is taken round by round: both sides then saw the same mood of the machine."""
    plain, ours, alone = (ways[way] for way in WAYS)
    gains = [
        one.samples_per_s / other.samples_per_s for one, other in zip(ours, plain, strict=True)
    ]
    told = {
        what: {
            way: spread([getattr(each, what) for each in own]).as_json()
            for way, own in ways.items()
        }
        for what in ("samples_per_s", "waiting", "variation", "step_to_step")
    }
    told["loss"] = {way: spread([each.loss for each in ways[way]]).as_json() for way in WAYS[:2]}
    own_work = statistics.median(
        one.samples_per_s / other.samples_per_s for one, other in zip(plain, alone, strict=True)
    )
    return {
        "name": name,
        "letter": trainer.letter,
        "about": trainer.about,
        "batch_size": trainer.batch_size,
        "steps": trainer.steps,
        "counted": ours[0].steps,
        "disturbed": {way: sum(each.disturbed for each in own) for way, own in ways.items()},
        "gain": spread(gains).as_json(),
        **told,
        "own_work": own_work,
        "limit": limit(own_work),
        "losses": losses([each.loss for each in plain], [each.loss for each in ours]),
    }


def limit(own_work: float) -> str:
    """What most of a step goes into with torch's DataLoader; ``own_work`` is the share that is left without loading."""
    if own_work > 2 / 3:
        return "the model"
    return "loading" if own_work < 1 / 3 else "both"


def losses(plain: Sequence[float], ours: Sequence[float]) -> str:
    """Are the final losses equal, as far as seeds let them be?"""
    mean = statistics.mean(plain)
    difference = (statistics.mean(ours) - mean) / mean
    if min(len(plain), len(ours)) < 2:
        return f"{difference:+.1%}, one seed"
    noise = max(
        SAME,
        2
        * math.sqrt(statistics.variance(plain) / len(plain) + statistics.variance(ours) / len(ours))
        / mean,
    )
    return f"{difference:+.1%}, {'within' if abs(difference) <= noise else 'outside'} the noise of the seeds ({noise:.1%})"


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
    title = f"samples/s, medians of {rounds} rounds [quartiles]; the rest: plain, fastload, and the variations without loading"
    table = Table(title, headings)
    for each in rows:
        gain = each["gain"]
        missed = each["variation"]["fastload"]["median"] >= BAR
        plain, ours, alone = (f"{each['samples_per_s'][way]['median']:.1f}" for way in WAYS)
        table.rows.append(
            (
                each["name"],
                plain,
                ours,
                f"{gain['median']:.2f} [{gain['low']:.2f}-{gain['high']:.2f}]",
                alone,
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
