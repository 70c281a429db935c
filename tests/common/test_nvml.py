"""``fastload monitor`` with real bindings and stub drivers: new, old, MIG, denied, lost."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastload._tools.monitor.window import Window, read_window
from tests.nvml_stub import compiled, environment


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("nvml") / "new")


def monitor(library: Path, behavior: str, *words: str, duration: float = 1.0) -> dict[str, Any]:
    """Returns the window that the command prints; stderr must be empty."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fastload",
            "monitor",
            "--json",
            "--duration",
            str(duration),
            "--hz",
            "20",
            *words,
        ],
        capture_output=True,
        text=True,
        check=False,
        env=environment(library, behavior),
    )
    assert done.stderr == ""
    assert done.returncode == 0
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def notes(window: dict[str, Any]) -> str:
    return "\n".join(window["notes"])


def test_two_gpus_with_all_their_figures(driver: Path, tmp_path: Path) -> None:
    window = monitor(driver, "", "--out", str(tmp_path / "w.json"))
    first, second = window["gpus"]
    assert (first["name"], first["uuid"], first["mem_total_mb"]) == (
        "Stub 9000",
        "GPU-aaaa-stub",
        24576,
    )
    samples = first["samples"]
    assert len(samples["t"]) >= 5
    assert samples["t"] == sorted(samples["t"])
    expected = {
        "util": 96,
        "mem_mb": 3072,
        "power_w": 300,
        "power_limit_w": 575,
        "sm_mhz": 1980,
        "mem_mhz": 10000,
        "temp_c": 72,
        "jpeg": 40,
    }
    for name, value in expected.items():
        assert set(samples[name]) == {value}, name
        assert len(samples[name]) == len(samples["t"])
    assert samples["pcie_rx_mb_s"][-1] == 2048
    assert samples["pcie_tx_mb_s"][-1] == 1024
    assert samples["throttle"][0] == [
        "power cap",
        "software thermal",
    ]  # application clocks do not count as throttling
    assert first["summary"]["state"] == "steady"
    assert second["samples"]["throttle"][0] == []
    assert second["summary"]["state"] == "starved"
    assert set(second["samples"]["util"]) == {0, 100}
    assert window["summary"]["gpu0_avg"] == 96
    assert window["summary"]["all_avg"] == pytest.approx(
        (96 + window["summary"]["gpu1_avg"]) / 2, abs=0.01
    )
    assert first["summary"]["energy_j"] == pytest.approx(
        400 * (samples["t"][-1] - samples["t"][0]), rel=0.15
    )  # from the energy counter, not from power
    assert window["machine"]["driver"] == "580.00"
    assert "gpu 1: JPEG engine utilization is not available (Not Supported)" in notes(window)
    assert "gpu 0" not in notes(window)
    kept = read_window(tmp_path / "w.json")
    assert isinstance(kept, Window)
    assert json.loads(json.dumps(kept.as_json())) == window


def test_an_old_driver_is_read_with_older_queries(tmp_path: Path) -> None:
    window = monitor(compiled(tmp_path / "old", "-DOLD"), "")
    samples = window["gpus"][0]["samples"]
    assert (samples["temp_c"][0], samples["mem_mb"][0], samples["throttle"][0]) == (
        71,
        2048,
        ["hardware slowdown"],
    )
    assert set(samples["jpeg"]) == {None}
    assert "gpu 0: JPEG engine utilization is not available (Function Not Found)" in notes(window)
    assert "gpu 0: energy counter is not available (Function Not Found)" in notes(window)
    assert window["gpus"][0]["summary"]["energy_j"] == pytest.approx(
        300 * (samples["t"][-1] - samples["t"][0]), rel=0.01
    )  # from power
    assert len(window["notes"]) == len(
        set(window["notes"])
    )  # noted once, not for every measurement


def test_missing_utilization_with_mig_is_noted(driver: Path) -> None:
    window = monitor(driver, "mig")
    first = window["gpus"][0]
    assert set(first["samples"]["util"]) == {None}
    assert first["samples"]["mem_mb"][0] == 3072
    assert first["summary"]["state"] == "unknown"
    assert "gpu 0: MIG is on, 2 instances: Stub MIG 1g 100 of 24576 MiB, Stub MIG 1g" in notes(
        window
    )
    assert "gpu 0: utilization is not available with MIG" in notes(window)
    assert window["summary"]["all_avg"] == window["summary"]["gpu1_avg"]
    assert window["summary"]["gpu0_avg"] is None


def test_a_gpu_that_is_lost_during_a_run_keeps_its_readings(driver: Path) -> None:
    window = monitor(driver, "gone", duration=1.5)
    alive, lost = (gpu["samples"]["util"] for gpu in window["gpus"])
    assert None not in alive
    assert lost[0] is not None
    assert lost[-1] is None
    assert len(lost) == len(alive)
    assert notes(window).count("gpu 1: can no longer be read: GPU is lost") == 1


def test_a_single_failed_reading_leaves_a_gap(driver: Path) -> None:
    window = monitor(driver, "timeout", "--gpus", "0")
    (gpu,) = window["gpus"]
    assert gpu["samples"]["util"][:5] == [96, None, 96, None, 96]
    assert gpu["summary"]["avg"] == 96
    assert "gpu 0" not in notes(window)


def test_gpus_are_chosen_by_index_or_uuid_and_a_wrong_one_is_named(driver: Path) -> None:
    window = monitor(driver, "", "--gpus", "baaa,7")
    assert [gpu["index"] for gpu in window["gpus"]] == [1]
    assert "--gpus 7: no such GPU; available: 0, 1" in notes(window)
    assert next(iter(window["summary"])) == "gpu1_avg"


@pytest.mark.parametrize(
    ("behavior", "gpus", "said"),
    [
        ("unloaded", 0, "no NVIDIA driver: Driver Not Loaded"),
        ("none", 0, "lists no GPU"),
        ("denied", 1, "gpu 1: cannot be opened: Insufficient Perm"),
    ],
)
def test_a_missing_driver_is_explained(driver: Path, behavior: str, gpus: int, said: str) -> None:
    window = monitor(driver, behavior, duration=0.5)
    assert len(window["gpus"]) == gpus
    assert said in notes(window)
    assert window["host"]["samples"]["t"]


def test_plain_lines_name_gpu_and_host(driver: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fastload", "monitor", "--duration", "1", "--interval", "0.5"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(driver),
    )
    lines = done.stdout.splitlines()
    assert "gpu0 96 % mem 3072 MiB power 300/575 W clocks 1980/10000 MHz 72 °C" in lines[0]
    assert "[throttled by power cap, software thermal]" in lines[0]
    assert "| cpu " in lines[0]
    assert (
        "  throttled    power cap (100 % of samples), software thermal (100 % of samples)" in lines
    )
    assert any(line.startswith("  rule") and "starved: mean below 70 %" in line for line in lines)
    assert done.stderr == ""


@pytest.mark.parametrize(("columns", "shown"), [(200, "SM/mem MHz"), (80, "1980/10000 MHz")])
def test_a_terminal_of_any_width_shows_every_gpu(driver: Path, columns: int, shown: str) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "fastload", "monitor", "--duration", "0.5"],
        stdout=theirs,
        stderr=theirs,
        env={**environment(driver), "COLUMNS": str(columns), "TERM": "xterm"},
    ) as child:
        os.close(theirs)
        text = b""
        while True:
            try:
                text += os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
    os.close(ours)
    assert child.returncode == 0
    table = " ".join(text.decode().split("samples per second")[0].split())  # long lines are wrapped
    for word in (
        shown,
        "0 Stub 9000",
        "1 Stub 9000",
        "steady",
        "power cap",
        "JPEG engine utilization is not available",
    ):
        assert word in table
    assert "…" not in table  # no text was truncated


METER = """
import json, types, torch
from fastload._tools.bench import decode

# CUDA_VISIBLE_DEVICES=1: torch's device 0 is the second GPU of the driver.
torch.cuda.is_available = lambda: True
torch.cuda.get_device_properties = lambda device=0: types.SimpleNamespace(uuid="baaa-stub")
decode._copy_speed = lambda n_bytes: 1.0
decode.WATCHED_S = 0.05
print(json.dumps(decode.gpu_figures(1, {"decode": lambda: 1})))
"""


def test_bench_reads_the_gpu_that_torch_uses(driver: Path) -> None:
    """GPU 0 always has 96 % and a JPEG engine; GPU 1 has 0 or 100 % and no engine."""
    done = subprocess.run(
        [sys.executable, "-c", METER],
        capture_output=True,
        text=True,
        check=False,
        env=environment(driver, "") | {"CUDA_VISIBLE_DEVICES": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["decode"]
    assert found["sm_share"] in (0.0, 1.0)
    assert "jpeg_engine_share" not in found
    assert found["joules_per_image"] > 0


UTILIZATION = """
import json, types, torch
from fastload._common import cuda

torch.cuda.get_device_properties = lambda device=0: types.SimpleNamespace(uuid="aaaa-stub")
print(json.dumps(cuda.utilization(torch.device("cuda", 1))))
"""


def test_cuda_reads_the_gpu_of_this_uuid(driver: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UTILIZATION],
        capture_output=True,
        text=True,
        check=False,
        env=environment(driver, ""),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"gpu_percent": 96, "jpeg_engine_percent": 40}


def test_the_doctor_shows_the_notes_of_the_monitor(driver: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fastload", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(driver, ""),
    )
    checks = {each["name"]: each["found"] for each in json.loads(done.stdout)["checks"]}
    assert checks["driver"] == "580.00"
    assert checks["GPU 1"] == "Stub 9000, 22.0 of 24.0 GiB free"
