"""The command ``fastload monitor``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fastload._cli.shared import Commands, add_command, number, print_json, seconds, whole_number
from fastload._common.tables import show_sections
from fastload.errors import ConfigError, GateClosed


def add(commands: Commands) -> None:
    add_command(
        commands,
        "monitor",
        "measure GPUs, CPUs, disk and network for a minute",
        "Samples GPUs and host ten times per second for a minute.\n"
        "GPUs (through NVML): utilization, memory, power, clocks, temperature, throttling, JPEG\n"
        "engine, PCIe. Host: CPU, iowait, memory, swap, disk, network. Prints a summary and a\n"
        "state per GPU: steady, wavy, starved or idle. Without a GPU it measures the host only.\n"
        "Exit code: 0 measured (with --compare: better), 1 the gate did not open (with\n"
        "--compare: not better), 2 wrong usage.",
        examples="""fastload monitor --out before.json
        fastload monitor --gate metrics.jsonl --gate-iter 120 --gate-data-time 0.02 --out after.json
        fastload monitor --compare before.json after.json""",
        json_help="print only the window or the comparison, as JSON",
        options={
            "--interval": {
                "type": seconds,
                "default": 1.0,
                "metavar": "S",
                "help": "seconds between two updates (default: %(default)s)",
            },
            "--duration": {
                "type": seconds,
                "default": 60.0,
                "metavar": "S",
                "help": "length of the window in seconds (default: %(default)s)",
            },
            "--hz": {
                "type": number(5, 50, "5 to 50"),
                "default": 10.0,
                "help": "samples per second, 5 to 50 (default: %(default)s)",
            },
            "--gpus": {
                "metavar": "0,1",
                "help": "NVML indices or UUIDs (default: all GPUs)",
            },
            "--pid": {
                "type": whole_number(1),
                "action": "append",
                "default": [],
                "metavar": "PID",
                "help": "also measure this process and its children; can be repeated (default: the "
                "processes "
                "in the metrics file)",
            },
            "--metrics": {
                "type": Path,
                "metavar": "FILE",
                "help": "metrics.jsonl of the run; adds images/s and energy per image",
            },
            "--out": {
                "type": Path,
                "metavar": "FILE",
                "help": "write the window with all samples, for --compare, doctor and report",
            },
            "--gate": {
                "type": Path,
                "metavar": "FILE",
                "help": "wait until the run that writes this metrics.jsonl is steady, then measure",
            },
            "--gate-iter": {
                "type": whole_number(1),
                "default": 120,
                "metavar": "N",
                "help": "steady: every rank has reached this step (default: %(default)s)",
            },
            "--gate-data-time": {
                "type": seconds,
                "default": 0.02,
                "metavar": "S",
                "help": "steady: data_time of the last rows is below this many seconds (default: "
                "%(default)s)",
            },
            "--gate-rows": {
                "type": whole_number(1),
                "default": 5,
                "metavar": "N",
                "help": "number of last rows to check (default: %(default)s)",
            },
            "--gate-timeout": {
                "type": seconds,
                "default": 1800.0,
                "metavar": "S",
                "help": "give up after this many seconds (default: %(default)s)",
            },
            "--compare": {
                "type": Path,
                "nargs": 2,
                "metavar": ("BEFORE", "AFTER"),
                "help": "compare two windows; exit code 0 if the second is significantly better",
            },
        },
        run=run,
    )


def run(options: argparse.Namespace) -> int:
    if options.compare is not None:
        return _compare(options)
    from fastload._tools.monitor.monitor import GateRule, measure
    from fastload._tools.monitor.screens import Lines, Screen, Table, sections
    from fastload._tools.monitor.window import write_window

    if options.out is not None and not options.out.parent.is_dir():
        # Fail before the measurement, which takes a minute.
        raise ConfigError(f"--out {options.out}: folder {options.out.parent} does not exist")
    gpus = (
        None
        if options.gpus is None
        else tuple(word.strip() for word in options.gpus.split(",") if word.strip())
    )
    gate = None
    if options.gate is not None:
        gate = GateRule(
            options.gate,
            iter=options.gate_iter,
            data_time=options.gate_data_time,
            rows=options.gate_rows,
            timeout_s=options.gate_timeout,
        )
    screen = Screen()
    if not options.json:
        screen = Table() if sys.stdout.isatty() else Lines()
    try:
        window = measure(
            screen,
            interval=options.interval,
            duration=options.duration,
            hz=options.hz,
            gpus=gpus,
            pids=options.pid,
            metrics=options.metrics,
            gate=gate,
        )
    except GateClosed as closed:
        if options.json:
            print_json({"gate": closed.seen})
        raise
    if options.out is not None:
        write_window(options.out, window)
    if options.json:
        print_json(window.as_json())
    else:
        show_sections(
            f"measured {window.seconds:g} s with {window.hz:g} samples per second"
            + (f", written to {options.out}" if options.out else ""),
            sections(window),
        )
    return 0


def _compare(options: argparse.Namespace) -> int:
    from fastload._tools.monitor.compare import compare
    from fastload._tools.monitor.screens import comparison_sections
    from fastload._tools.monitor.window import read_window

    before, after = options.compare
    found = compare(read_window(before), read_window(after))
    if options.json:
        print_json(found.as_json())
    else:
        show_sections(
            f"{after} compared with {before}: {found.verdict}", comparison_sections(found)
        )
    return 0 if found.better else 1
