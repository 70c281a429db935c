"""`fastload monitor`: GPU, processors, disk and network over a fixed window."""

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
        "GPU, CPU, disk over a window",
        "Measures GPUs (NVML) and the machine for a minute, ten times a second: utilization, memory, power, clocks,\n"
        "temperature, throttling, JPEG engine, PCIe; processors, iowait, memory, swap, disk, network. Ends with a summary and\n"
        "one word a GPU: steady, wavy, starved or idle. Without a GPU it shows the rest.\n"
        "Exit codes: 0 measured (or: better), 1 the gate did not open (or: not better), 2 used wrongly.",
        examples="""fastload monitor --out before.json
        fastload monitor --gate metrics.jsonl --gate-iter 120 --gate-data-time 0.02 --out after.json
        fastload monitor --compare before.json after.json""",
        json_help="print the window (or the comparison) as JSON, nothing else",
    )
    monitor.add_argument(
        "--interval",
        type=seconds,
        default=1.0,
        metavar="S",
        help="seconds between two lines (default: %(default)s)",
    )
    monitor.add_argument(
        "--duration",
        type=seconds,
        default=60.0,
        metavar="S",
        help="length of the window (default: %(default)s)",
    )
    monitor.add_argument(
        "--hz", type=_hz, default=10.0, help="raw samples a second, 5 to 50 (default: %(default)s)"
    )
    monitor.add_argument(
        "--gpus", metavar="0,1", help="indices or UUIDs as NVML counts them (default: all)"
    )
    monitor.add_argument(
        "--pid",
        type=whole_number(1),
        action="append",
        default=[],
        metavar="PID",
        help="show what this process and its children use; may be repeated (default: those named in the metrics file)",
    )
    monitor.add_argument(
        "--metrics",
        type=Path,
        metavar="FILE",
        help="metrics.jsonl of the run: adds images/s and energy per image",
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
        help="steady: it has reached this step (default: %(default)s)",
    )
    monitor.add_argument(
        "--gate-data-time",
        type=seconds,
        default=0.02,
        metavar="S",
        help="steady: its last rows waited less than this for data (default: %(default)s)",
    )
    monitor.add_argument(
        "--gate-rows",
        type=whole_number(1),
        default=5,
        metavar="N",
        help="how many last rows that means (default: %(default)s)",
    )
    monitor.add_argument(
        "--gate-timeout",
        type=seconds,
        default=1800.0,
        metavar="S",
        help="give up waiting after this many seconds (default: %(default)s)",
    )
    monitor.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="compare two windows: is the second better, beyond the spread?",
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
        # Before a minute is spent
        raise ConfigError(f"--out {options.out}: no such folder: {options.out.parent}")
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
            f"{window.seconds:g} s, {window.hz:g} samples a second"
            + (f", in {options.out}" if options.out else ""),
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
        show_sections(f"{before} against {after}: {found.verdict}", comparison_sections(found))
    return 0 if found.better else 1


def _hz(text: str) -> float:
    value = seconds(text)
    if not 5 <= value <= 50:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 5 to 50")
    return value
