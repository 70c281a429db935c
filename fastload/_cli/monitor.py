"""The command ``fastload monitor``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fastload._cli.options import Commands, add_command, seconds, whole_number
from fastload._cli.output import print_json
from fastload.errors import ConfigError

if TYPE_CHECKING:
    from fastload._tools.monitor.gate import GateRule


def add(commands: Commands) -> None:
    monitor = add_command(
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
    )
    monitor.add_argument(
        "--interval",
        type=seconds,
        default=1.0,
        metavar="S",
        help="seconds between two updates (default: %(default)s)",
    )
    monitor.add_argument(
        "--duration",
        type=seconds,
        default=60.0,
        metavar="S",
        help="length of the window in seconds (default: %(default)s)",
    )
    monitor.add_argument(
        "--hz", type=_hz, default=10.0, help="samples per second, 5 to 50 (default: %(default)s)"
    )
    monitor.add_argument("--gpus", metavar="0,1", help="NVML indices or UUIDs (default: all GPUs)")
    monitor.add_argument(
        "--pid",
        type=whole_number(1),
        action="append",
        default=[],
        metavar="PID",
        help="also measure this process and its children; can be repeated (default: the processes "
        "in the metrics file)",
    )
    monitor.add_argument(
        "--metrics",
        type=Path,
        metavar="FILE",
        help="metrics.jsonl of the run; adds images/s and energy per image",
    )
    monitor.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write the window with all samples, for --compare, doctor and report",
    )
    monitor.add_argument(
        "--gate",
        type=Path,
        metavar="FILE",
        help="wait until the run that writes this metrics.jsonl is steady, then measure",
    )
    monitor.add_argument(
        "--gate-iter",
        type=whole_number(1),
        default=120,
        metavar="N",
        help="steady: every rank has reached this step (default: %(default)s)",
    )
    monitor.add_argument(
        "--gate-data-time",
        type=seconds,
        default=0.02,
        metavar="S",
        help="steady: data_time of the last rows is below this many seconds (default: %(default)s)",
    )
    monitor.add_argument(
        "--gate-rows",
        type=whole_number(1),
        default=5,
        metavar="N",
        help="number of last rows to check (default: %(default)s)",
    )
    monitor.add_argument(
        "--gate-timeout",
        type=seconds,
        default=1800.0,
        metavar="S",
        help="give up after this many seconds (default: %(default)s)",
    )
    monitor.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="compare two windows; exit code 0 if the second is significantly better",
    )
    monitor.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.compare is not None:
        return _compare(options)
    from fastload._common.tables import show_sections
    from fastload._tools.monitor.monitor import MonitorOptions, measure
    from fastload._tools.monitor.screens import Lines, Screen, Table, sections
    from fastload._tools.monitor.window import write_window
    from fastload.errors import GateClosed

    if options.out is not None and not options.out.parent.is_dir():
        # Fail before the measurement, which takes a minute.
        raise ConfigError(f"--out {options.out}: folder {options.out.parent} does not exist")
    gpus = (
        None
        if options.gpus is None
        else tuple(word.strip() for word in options.gpus.split(",") if word.strip())
    )
    wanted = MonitorOptions(
        interval=options.interval,
        duration=options.duration,
        hz=options.hz,
        gpus=gpus,
        pids=tuple(options.pid),
        metrics=options.metrics,
        gate=_gate(options),
    )
    screen = Screen()
    if not options.json:
        screen = Table() if sys.stdout.isatty() else Lines()
    try:
        window = measure(wanted, screen)
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


def _gate(options: argparse.Namespace) -> GateRule | None:
    from fastload._tools.monitor.gate import GateRule

    if options.gate is None:
        return None
    return GateRule(
        options.gate,
        iter=options.gate_iter,
        data_time=options.gate_data_time,
        rows=options.gate_rows,
        timeout_s=options.gate_timeout,
    )


def _compare(options: argparse.Namespace) -> int:
    from fastload._common.tables import show_sections
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


def _hz(text: str) -> float:
    value = seconds(text)
    if not 5 <= value <= 50:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 5 to 50")
    return value
