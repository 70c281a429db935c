"""The command ``fastload selftest``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fastload._cli.shared import Commands, add_command, number, print_json
from fastload._decode.registry import GPU_BACKENDS
from fastload._tools.selftest.catalog import CATALOG, NAMES

if TYPE_CHECKING:
    from fastload._tools.selftest.run import Result


def add(commands: Commands) -> None:
    listing = "\n".join(f"  {n} {entry.name:12} {entry.what}" for n, entry in enumerate(CATALOG))
    stage_help = (
        f"run only this stage: {', '.join(NAMES[1:])} ({NAMES[0]} always runs); can be repeated "
        "(default: all except roi)"
    )
    add_command(
        commands,
        "selftest",
        "test the GPU backends on this machine",
        "Compares the GPU backends with the CPU. Each stage runs in a separate process, so that\n"
        "a crash or a hang is also a result. The results are recorded: the loader uses the GPU's\n"
        "JPEG engine only if it has passed with this GPU, driver and package versions.\n"
        f"Exit code: 0 passed, 1 failed or not available, 2 wrong usage.\n\nStages:\n{listing}",
        examples="fastload selftest --device cuda --dataset packed",
        json_help="print the results as JSON",
        options={
            "--device": {
                "default": "cuda",
                "metavar": "DEVICE",
                "help": "cuda, cuda:N, or cpu to run the same backends on the CPU (default: "
                "%(default)s)",
            },
            "--dataset": {
                "type": Path,
                "metavar": "DATASET",
                "help": "packed dataset for the stages that load (default: generated)",
            },
            "--backend": {
                "action": "append",
                "choices": tuple(GPU_BACKENDS),
                "default": [],
                "help": "test only this backend; can be repeated (default: both)",
            },
            "--stage": {
                "action": "append",
                "choices": NAMES[1:],
                "default": [],
                "metavar": "NAME",
                "help": stage_help,
            },
            "--timeout": {
                "type": number(1e-6, 1e6, "a positive number, for example 2 to double the limits"),
                "default": 1.0,
                "metavar": "X",
                "help": "multiply the time limit of each stage (120 or 300 s) by X (default: 1)",
            },
        },
        run=run,
    )


def run(options: argparse.Namespace) -> int:
    from fastload._decode import selftest_record as record
    from fastload._tools.selftest.run import Options, selftest

    wanted = Options(
        options.device,
        tuple(options.backend),
        tuple(options.stage),
        options.dataset,
        options.timeout,
    )
    results = selftest(wanted, on_result=(lambda _: None) if options.json else _show)
    good = all(result.ok for result in results)
    if options.json:
        print_json(
            {
                "ok": good,
                "device": options.device,
                "record": str(record.path()),
                "results": [asdict(each) for each in results],
            }
        )
        return 0 if good else 1
    print(f"{'All passed' if good else 'NOT all passed'}. Recorded in {record.path()}")
    if options.device != "cpu":
        for backend in sorted({result.backend for result in results} - {"-"}):
            allowed = record.hardware_passed(backend, options.device)
            print(f"{backend}: JPEG engine {'enabled' if allowed else 'disabled'}")
    return 0 if good else 1


def _show(result: Result) -> None:
    number = NAMES.index(result.stage)
    seconds = f"{result.seconds:6.1f} s" if result.seconds else " " * 8
    print(
        f"{number} {result.stage:12} {result.backend:7} {result.verdict:8} {seconds}  "
        f"{result.summary}",
        flush=True,
    )
