"""Statistics of a window, the gate, the comparison of two windows, and the monitor command."""

from __future__ import annotations

import json
import math
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fastload._cli import main
from fastload._common.strict_json import Json
from fastload._tools.monitor import monitor as monitor_module
from fastload._tools.monitor.compare import compare
from fastload._tools.monitor.metrics_file import read_metrics
from fastload._tools.monitor.monitor import (
    GateRule,
    Tail,
    figures,
    pids_in,
    training_in,
    wait_for_gate,
)
from fastload._tools.monitor.sampling import HostSamples, ProcessTree
from fastload._tools.monitor.screens import sparkline
from fastload._tools.monitor.window import (
    HOST_SERIES,
    energy,
    read_window,
    state_of,
    summarize,
    summary_of_all,
    write_window,
)
from fastload.errors import ConfigError, GateClosed
from tests.loading import wait_until
from tests.windows import window


def test_summary_matches_hand_computed_values() -> None:
    found = summarize([0, 1, 2, 3], [100.0, 0.0, 50.0, None], seconds=5.0, energy_j=12.345)
    assert (found.avg, found.p50, found.std) == (50.0, 50.0, round(math.sqrt(5000 / 3), 2))
    assert (found.p5, found.p95) == (5.0, 95.0)
    # The last sample is unknown, so its 2 s are neither active nor idle.
    assert (found.active_seconds, found.idle_seconds, found.avg_active) == (2.0, 1.0, 75.0)
    assert (found.energy_j, found.state) == (12.35, "starved")


def test_each_sample_is_weighted_by_its_duration() -> None:
    # The driver did not respond for nine seconds.
    found = summarize([0, 9], [0.0, 100.0], seconds=10.0)
    assert (found.active_seconds, found.idle_seconds) == (1.0, 9.0)


@pytest.mark.parametrize(
    ("util", "state"),
    [
        ([97.0] * 50, "steady"),
        ([92.0, 80.0] * 25, "steady"),
        ([100.0, 60.0] * 25, "wavy"),
        ([100.0, 0.0] * 25, "starved"),
        ([50.0] * 50, "starved"),
        ([0.0] * 50, "idle"),
        ([0.0] * 48 + [90.0] * 2, "idle"),
        ([0.0] * 47 + [90.0] * 3, "starved"),
        ([None] * 50, "unknown"),
        ([], "unknown"),
    ],
)
def test_states_follow_the_printed_rule(util: list[float | None], state: str) -> None:
    found = summarize([place / 10 for place in range(len(util))], util, seconds=5.0)
    assert found.state == state
    assert ("starved: mean below 70 %" in found.rule) == (state != "unknown")


def test_state_at_the_limits_of_the_rule() -> None:
    assert state_of(70.0, 25.0, 1.0) == "steady"
    assert state_of(69.9, 0.0, 1.0) == "starved"
    assert state_of(70.0, 25.1, 1.0) == "wavy"
    assert state_of(69.9, 0.0, 0.05) == "starved"


def test_summary_of_all_gpus() -> None:
    one, two = window([100.0] * 10, [0.0, 50.0] * 5).gpus
    gpus = [replace(gpu, summary=replace(gpu.summary, energy_j=60.0)) for gpu in (one, two)]
    found = summary_of_all(gpus, 24.0)
    assert (found["gpu0_avg"], found["gpu1_avg"], found["all_avg"]) == (100.0, 25.0, 62.5)
    assert found["p50"] == np.percentile([100] * 10 + [0, 50] * 5, 50)
    assert found["spread"] == 100.0
    assert (found["active_seconds"], found["idle_seconds"]) == (0.75, 0.25)
    assert found["avg_active"] == pytest.approx((10 * 100 + 5 * 50) / 15, abs=0.01)
    assert found["joules_per_image"] == 5.0
    assert summary_of_all([gpus[0], two], 24.0)["joules_per_image"] is None
    assert summary_of_all([], 24.0)["joules_per_image"] is None
    assert summary_of_all([], None)["all_avg"] is None
    unknown = window([None] * 10).gpus
    assert summary_of_all(unknown, None)["spread"] is None
    assert summary_of_all(window([0.0] * 10).gpus, None)["spread"] == 0.0


def test_energy_from_power_interpolates_over_gaps() -> None:
    assert energy([0, 1, 2, 4], [100.0, None, 200.0, 200.0]) == 2 * 150 + 2 * 200
    assert energy([0, 1], [100.0, None]) is None


def test_sparkline_clips_values_and_marks_unknown_ones() -> None:
    assert sparkline([0.0, 50.0, 100.0, None, 200.0, -1.0], width=6) == "▁▅█·█▁"
    assert sparkline([0.0, 100.0], width=1) == "█"


def test_window_file_round_trip(tmp_path: Path) -> None:
    written = window(
        [90.0, None, 80.0], [1.0, 2.0, 3.0], gate={"waited_s": 3}, training={"images": 5.0}
    )
    write_window(tmp_path / "w.json", written)
    assert read_window(tmp_path / "w.json") == written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("[]", "expected dict, found"),
        ('{"format": "x"}', "expected 'fastload-window'"),
        ('{"format": "fastload-window", "version": 9}', "version=9: expected 1"),
        ('{"format": "fastload-window", "version": 1}', "host"),
        ("[" * 999, "nested"),
    ],
)
def test_other_files_are_rejected_as_windows(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "w.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_window(tmp_path / "w.json")
    with pytest.raises(ConfigError, match="No such file"):
        read_window(tmp_path / "none.json")


@pytest.mark.parametrize(
    "change",
    [
        lambda top: top["gpus"][0]["samples"]["util"].pop(),
        lambda top: top["gpus"][0]["samples"].update(t="x"),
        lambda top: top.update(gpus={}),
        lambda top: top["summary"].update(all_avg="much"),
        lambda top: top["gpus"][0]["summary"].update(avg=True),
    ],
)
def test_damaged_window_is_rejected(tmp_path: Path, change: Callable[[object], object]) -> None:
    found = window([90.0, 80.0]).as_json()
    (tmp_path / "w.json").write_text(json.dumps(found))
    read_window(tmp_path / "w.json")
    change(found)
    (tmp_path / "w.json").write_text(json.dumps(found))
    with pytest.raises(ConfigError, match="is not a window of fastload monitor"):
        read_window(tmp_path / "w.json")


def step(number: int, data_time: float | None, *, rank: int = 0, at: float = 4e9) -> str:
    """Returns a step row, by default of the year 2096 so that it is never too old."""
    return (
        json.dumps(
            {
                "kind": "step",
                "time": at,
                "rank": rank,
                "iter": number,
                "steps": 10,
                "data_time": data_time,
                "iter_time": 0.1,
                "samples": 80,
                "samples_per_s": 800.0,
            }
        )
        + "\n"
    )


def head(world: int = 1, rank: int = 0) -> str:
    return (
        json.dumps(
            {
                "kind": "run",
                "time": time.time(),
                "rank": rank,
                "world": world,
                "host": "h",
                "pid": 1,
            }
        )
        + "\n"
    )


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_gate_opens_when_a_growing_file_gets_steady(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_module, "_POLL_S", 0.01)
    path = tmp_path / "m.jsonl"
    heard: list[str] = []
    row = step(130, 0.001)
    # (reason that the gate must have reported, what the writer then appends). The writer waits
    # for the reader, not for a clock.
    script = [
        ("the file does not exist yet", head()),
        ("no step rows yet", step(10, 0.001)),
        ("rank 0 is at step 10 of 120", step(120, 0.001)),
        ("rank 0 has 2 of 3 rows", row[:30]),
        ("rank 0 has 2 of 3 rows", row[30:-1]),
        ("rank 0 has 2 of 3 rows", "\n" + step(140, 0.5)),
        ("rank 0: data_time in the last 3 rows is 0.001, 0.001, 0.5 s", step(150, 0.001)),
        ("rank 0: data_time in the last 3 rows is 0.001, 0.5, 0.001 s", step(160, 0.001)),
        ("rank 0: data_time in the last 3 rows is 0.5, 0.001, 0.001 s", step(170, 0.001)),
    ]

    def write() -> None:
        for reason, text in script:
            if wait_until(lambda reason=reason: reason in heard):  # type: ignore[misc]
                append(path, text)

    writer = threading.Thread(target=write)
    writer.start()
    seen = wait_for_gate(
        GateRule(path, iter=120, data_time=0.02, rows=3, timeout_s=600), report=heard.append
    )
    writer.join()
    assert seen["opened"] is True
    assert seen["seen"] == {"0": {"iter": 170, "data_time": [0.001, 0.001, 0.001]}}
    assert heard == list(dict.fromkeys(reason for reason, _ in script))


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("", "no step rows yet"),
        (step(90, 0.001) * 5, "rank 0 is at step 90 of 120"),
        (step(200, 0.03) * 5, "data_time in the last 5 rows is 0.03, 0.03, 0.03, 0.03, 0.03 s"),
        (step(200, None) * 5, "is unknown, unknown"),
        (step(200, 0.001) * 4, "4 of 5 rows"),
        (step(200, 0.02) * 5, "is 0.02, 0.02"),
        (
            step(200, 0.001) * 5 + step(200, 0.001, rank=1) * 4 + step(210, 0.3, rank=1),
            "rank 1: data_time",
        ),
        (step(200, 0.001, at=1.7e9) * 5, "rank 0 wrote its last row more than 30 s ago"),
        (step(200, 0.001) * 5 + head() + step(10, 0.001), "step 10 of 120"),
    ],
)
def test_gate_reports_why_it_gave_up(tmp_path: Path, rows: str, why: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(rows)
    with pytest.raises(
        GateClosed, match=rf"gave up after 0 s: .*{why}.*\(expected iter >= 120"
    ) as caught:
        wait_for_gate(GateRule(path, timeout_s=0.0), report=lambda text: None)
    assert caught.value.seen["opened"] is False
    append(path, head(2) + head(2, 1) + (step(200, 0.001) + step(200, 0.001, rank=1)) * 5)
    assert wait_for_gate(GateRule(path, timeout_s=0.0), report=lambda text: None)["opened"] is True


def test_gate_gives_up_when_the_process_ends(tmp_path: Path) -> None:
    with pytest.raises(GateClosed, match="the process ended: the file does not exist yet"):
        wait_for_gate(GateRule(tmp_path / "m.jsonl"), report=lambda text: None, alive=lambda: False)


def test_rows_of_an_old_run_count_after_a_new_row(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(step(200, 0.001, at=1.7e9) * 5)
    tail = Tail(path)
    tail.read()
    assert tail.fresh == set()
    append(path, step(210, 0.001, at=1.7e9))  # the clock is wrong, but the row is new
    assert tail.read()
    assert tail.fresh == {0}


def test_replaced_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(step(200, 0.001) * 5)
    tail = Tail(path)
    tail.read()
    path.write_text(step(10, 0.001))
    tail.read()
    assert len(tail.rows) == 1
    (tmp_path / "new").write_text(step(20, 0.001) * 50)
    (tmp_path / "new").rename(path)
    tail.read()
    assert len(tail.rows) == 50


def noisy(mean: float, seed: int, *, n: int = 600, wave: float = 10.0) -> list[float]:
    rng = np.random.default_rng(seed)
    slow = np.repeat(rng.normal(0, wave, n // 10), 10)  # samples within a second are correlated
    return [float(each) for each in np.clip(mean + slow, 0, 100)]


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (noisy(50, 0), noisy(85, 1), "better"),
        (noisy(85, 0), noisy(50, 1), "worse"),
        (noisy(80, 0), noisy(80, 1), "no difference"),
        # No spread at all, but one point is too small a change to count.
        ([80.0] * 600, [81.0] * 600, "no difference"),
        ([80.0] * 600, [83.0] * 600, "better"),
        ([80.0] * 90, [99.0] * 90, "unknown"),
        ([None] * 600, [90.0] * 600, "unknown"),
    ],
)
def test_better_requires_a_change_above_the_spread(
    before: list[float | None], after: list[float | None], verdict: str
) -> None:
    found = compare(window(before), window(after))
    assert found.verdict == verdict
    assert found.better == (verdict == "better")
    assert found.quantity == "GPU utilization"


def test_two_windows_of_one_run_rarely_differ() -> None:
    verdicts = [
        compare(window(noisy(75, 2 * seed)), window(noisy(75, 2 * seed + 1))).verdict
        for seed in range(100)
    ]
    assert verdicts.count("no difference") >= 90


def test_images_per_second_decide_if_both_windows_have_them() -> None:
    slow, fast = (
        {"rows": [[5 * n + 3, rate + n % 2, 1.0] for n in range(4)]} for rate in (100, 130)
    )
    found = compare(window([99.0] * 600, training=slow), window([60.0] * 600, training=fast))  # type: ignore[arg-type]
    assert (found.quantity, found.verdict) == ("images/s", "better")
    assert compare(window([99.0] * 600, training=slow), window([60.0] * 600)).verdict == "worse"  # type: ignore[arg-type]


def test_images_per_second_are_images_over_time() -> None:
    # Rows with 160 and with 40 images/s
    uneven: list[Json] = [
        [5 * n + at, 80, seconds] for n in range(4) for at, seconds in ((1, 0.5), (3, 2.0))
    ]
    found = compare(window([], training={"rows": uneven}), window([], training={"rows": uneven}))
    assert found.before is not None
    assert (found.before.mean, found.before.parts, found.before.error, found.verdict) == (
        64.0,
        4,
        0.0,
        "no difference",
    )
    short = compare(
        window([], training={"rows": uneven[:4]}), window([], training={"rows": uneven})
    )
    assert (short.verdict, short.why) == (
        "unknown",
        "the windows are too short: 2 and 4 blocks of 5 s, expected at least 3 in each",
    )
    assert (
        compare(window([], training={"rows": [[1], "x", [1, 2, 0]]}), window([])).verdict
        == "unknown"
    )


def test_comparison_lists_differences_of_the_setup() -> None:
    notes = compare(
        window([90.0] * 600, gate={}), window([90.0] * 300, [90.0] * 300, limit=450.0)
    ).notes
    assert [note.split(":")[0] for note in notes] == [
        "the GPUs differ",
        "gpu 0",
        "the lengths differ",
        "only one window waited for a steady run (--gate)",
    ]


def test_compare_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    low, high = str(tmp_path / "low.json"), str(tmp_path / "high.json")
    write_window(Path(low), window([40.0, 60.0] * 300))
    write_window(Path(high), window([90.0, 95.0] * 300))
    assert main(["monitor", "--compare", low, high]) == 0
    assert "better" in capsys.readouterr().out
    assert main(["monitor", "--compare", high, low]) == 1
    assert "verdict  worse" in capsys.readouterr().out
    assert main(["monitor", "--compare", low, high, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (
        printed["verdict"],
        printed["before"]["mean"],
        printed["after"]["mean"],
        printed["limit"],
    ) == (
        "better",
        50.0,
        92.5,
        2.0,
    )
    assert main(["monitor", "--compare", low, str(tmp_path / "none.json")]) == 2


def test_training_figures_cover_only_the_window(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"  # rows of one second each: 10 steps, 80 images, on two ranks
    path.write_text(
        "".join(
            step(10 * n, 0.01 * n, rank=rank, at=1.8e9 + n) for n in range(1, 11) for rank in (0, 1)
        )
    )
    found = figures(read_metrics(path).steps, 1.8e9 + 2.5, 1.8e9 + 5)
    assert (found["ranks"], found["it_per_s"], found["images_per_s"], found["images"]) == (
        2,
        10.0,
        160.0,
        400.0,
    )
    assert found["data_time"] == pytest.approx((0.5 * 0.03 + 0.04 + 0.05) / 2.5)
    assert found["rows"] == [[1.5, 160, 1.0], [2.5, 160, 1.0]]
    # The rows of the last two seconds are not written yet.
    late = figures(read_metrics(path).steps, 1.8e9 + 8, 1.8e9 + 12)
    assert (late["images_per_s"], late["images"]) == (160.0, 640.0)
    assert figures((), 0, 1) == {}
    assert training_in(path, 1.9e9, 60)[1].endswith("no step rows in the 60 s of the window")
    assert "No such file" in training_in(tmp_path / "none", 1.8e9, 60)[1]


def test_pids_are_from_the_newest_run_on_this_machine(tmp_path: Path) -> None:
    import socket

    path = tmp_path / "m.jsonl"
    here = {"kind": "run", "rank": 0, "world": 1, "host": socket.gethostname()}
    path.write_text(
        "".join(json.dumps(row) + "\n" for row in [{**here, "pid": 11}, {**here, "pid": 12}])
    )
    assert pids_in(path) == [12]
    append(path, head())
    assert pids_in(path) == []
    assert pids_in(tmp_path / "none") == []


def test_host_reading_has_rates_and_a_process_tree() -> None:
    host = HostSamples([os.getpid()])
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    host.read(0.5)
    assert host.t == [0.5]
    assert len(host.cpu[0]) == os.cpu_count()
    assert list(host.series) == list(HOST_SERIES)
    numbers = {name: values[0] for name, values in host.series.items()}
    assert (numbers["tree_cpu"] or 0) > 0
    assert (numbers["tree_rss_mb"] or 0) > 10
    assert (numbers["ram_used_mb"] or 0) > 10
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    tree = ProcessTree([gone.pid])
    assert tree.missing == [gone.pid]
    assert not tree.alive
    assert ProcessTree([os.getpid()]).alive


def monitor_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "fastload", "monitor", *words]


def test_command_with_a_gate_measures_the_run(tmp_path: Path) -> None:
    program = (
        "import fastload, sys, time, torch\nprobe = fastload.StepProbe(sys.argv[1], every=5)\n"
        "for batch in probe.watch(iter(lambda: torch.zeros(8, 2), None)):\n    time.sleep(0.005)\n"
    )
    path, out = tmp_path / "m.jsonl", tmp_path / "w.json"
    with subprocess.Popen([sys.executable, "-c", program, str(path)]) as trainer:
        try:
            done = subprocess.run(
                monitor_command(
                    "--gate",
                    str(path),
                    "--gate-iter",
                    "20",
                    "--duration",
                    "1.5",
                    "--out",
                    str(out),
                    "--gate-timeout",
                    "600",
                ),
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            trainer.kill()
    assert done.returncode == 0, done.stderr
    kept = read_window(out)
    assert kept.gate is not None
    assert kept.gate["opened"] is True
    assert kept.training is not None
    assert kept.training["images_per_s"] == pytest.approx(
        8 * float(str(kept.training["it_per_s"])), rel=0.01
    )
    assert kept.host.summary["tree_cpu"] is not None  # the process that the metrics file names
    assert "images/s" in done.stdout


def test_closed_gate_exits_with_code_1(tmp_path: Path) -> None:
    done = subprocess.run(
        monitor_command("--gate", str(tmp_path / "m.jsonl"), "--gate-timeout", "0.1", "--json"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "gave up after" in done.stderr
    assert json.loads(done.stdout)["gate"]["opened"] is False


def test_ctrl_c_keeps_the_samples_so_far(tmp_path: Path) -> None:
    out = tmp_path / "w.json"
    # Background jobs of a shell ignore SIGINT and so do their children, so the child restores it.
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from fastload._cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [
        sys.executable,
        "-c",
        program,
        "monitor",
        "--duration",
        "600",
        "--interval",
        "0.3",
        "--out",
        str(out),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        rest = child.stdout.read()
    assert child.returncode == 0
    assert "stopped by Ctrl-C after" in rest
    assert 0 < read_window(out).seconds < 600


def test_terminal_output_is_a_live_table() -> None:
    parent_end, child_end = pty.openpty()
    with subprocess.Popen(
        monitor_command("--duration", "1"), stdout=child_end, stderr=subprocess.STDOUT
    ) as child:
        os.close(child_end)
        shown = b""
        while True:
            try:
                shown += os.read(parent_end, 1 << 16)
            except OSError:  # the other end is closed
                break
    os.close(parent_end)
    assert child.returncode == 0
    assert "each core now" in shown.decode()
    assert b"\x1b[" in shown


@pytest.mark.parametrize(
    "words",
    [
        ["--hz", "1"],
        ["--duration", "0"],
        ["--interval", "x"],
        ["--gate-rows", "0"],
        ["--pid", "-3"],
        ["--compare", "a"],
        ["--out", "/no/such/folder/w.json"],
    ],
)
def test_invalid_options_exit_with_code_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["monitor", *words]) == 2
    assert words[0] in capsys.readouterr().err
