"""Overhead of fastload.StepProbe per step: CPU time of an empty loop with and without the probe.

    python -m benchmarks.probe [--steps 20000] [--rounds 15] [--every 10]

Measures the CPU time of this process, so that other processes do not count. The loops alternate.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

import fastload
from benchmarks.machine import describe, spread
from fastload import StepProbe

GOAL_US = 20.0


def bare(batches: Iterable[object]) -> None:
    for _ in batches:
        pass


def staged(probe: StepProbe, batches: Iterable[object]) -> None:
    for _ in probe.watch(batches):
        for name in ("to_device", "forward", "loss", "backward", "optimizer"):
            with probe.stage(name):
                pass


def cpu_us(run: Callable[[], None], steps: int) -> float:
    begun = time.process_time_ns()
    run()
    return (time.process_time_ns() - begun) / steps / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--every", type=int, default=10)
    options = parser.parse_args()
    for key, value in describe("torch").items():
        print(f"{key:>12}: {value}")
    batches = [(torch.zeros(8, 3), torch.zeros(8))] * options.steps
    costs: dict[str, list[float]] = {"no stages": [], "five stages": [], "no stages, every=1": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        fastload.StepProbe(Path(folder) / "a.jsonl", every=options.every) as probe,
        fastload.StepProbe(Path(folder) / "b.jsonl", every=1) as each,
    ):
        for _ in range(options.rounds):
            free = cpu_us(lambda: bare(batches), options.steps)
            costs["no stages"].append(
                cpu_us(lambda: bare(probe.watch(batches)), options.steps) - free
            )
            costs["five stages"].append(
                cpu_us(lambda: staged(probe, batches), options.steps) - free
            )
            costs["no stages, every=1"].append(
                cpu_us(lambda: bare(each.watch(batches)), options.steps) - free
            )
    print(
        f"\nus of CPU time per step, every={options.every}, median [quartiles] of "
        f"{options.rounds} rounds of {options.steps} steps"
    )
    for name, values in costs.items():
        print(f"  {name:20} {spread(values)}")
    return 0 if sorted(costs["no stages"])[options.rounds // 2] < GOAL_US else 1


if __name__ == "__main__":
    raise SystemExit(main())
