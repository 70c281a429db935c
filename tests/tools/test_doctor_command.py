"""Tests of `fastload doctor`: files, JSON, exit codes and the machine checks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fastload._cli import main
from fastload._cli.doctor import show
from fastload._common import formatting as fmt
from fastload._tools.doctor import machine
from fastload._tools.doctor.finding import BAD, OK, WARN
from fastload._tools.doctor.machine import (
    Check,
    Machine,
    backend_check,
    check_machine,
    memory_limit,
    shm_check,
)
from tests.made_runs import made, rows_of, write


def test_exit_code_and_json_agree_with_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy, slow = (
        write(tmp_path / "healthy.jsonl", rows_of(made(600))),
        write(tmp_path / "slow.jsonl", rows_of(made(600, data=0.1))),
    )
    assert main(["doctor", str(healthy)]) == 0
    assert capsys.readouterr().out.startswith("Healthy: ")
    assert main(["doctor", str(slow)]) == 1
    verdict = capsys.readouterr().out.splitlines()[0]
    assert main(["doctor", str(slow), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == verdict
    assert report["findings"][0]["kind"] == "data-bound"


def test_a_terminal_shows_the_text_without_interpreting_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show("Healthy: [red]not markup[/red]\n1. BAD  x\nwarn  cores")
    assert "[red]not markup[/red]" in capsys.readouterr().out


def test_machine_checks_report_every_part_and_do_not_raise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    names = [check["name"] for check in report["checks"]]
    assert {
        "cores",
        "RAM",
        "swap",
        "/dev/shm",
        "disk",
        "torch",
        "native core",
        "backend dali",
        "backend nvjpeg",
    } <= set(names)
    assert all(check["state"] in (OK, WARN, BAD) for check in report["checks"])
    assert code == any(check["state"] == BAD for check in report["checks"])
    assert all(check["do"] for check in report["checks"] if check["state"] == BAD)


def test_a_check_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> Check:
        raise OSError("no /proc here")

    monkeypatch.setattr(machine, "cores_check", broken)
    check = next(check for check in check_machine().checks if check.name == "cores")
    assert check.state == WARN
    assert "no /proc here" in check.found


@pytest.mark.parametrize(
    ("states", "start"),
    [
        ([OK], "This machine is ready."),
        ([OK, WARN], "This machine works. Check: b"),
        ([WARN, BAD], "This machine needs a fix: b. Also check: a"),
    ],
)
def test_the_machine_verdict_names_failed_checks(states: list[str], start: str) -> None:
    found = Machine(
        tuple(
            Check(name, state, "found", "do this")
            for name, state in zip("ab", states, strict=False)
        )
    )
    assert str(found).startswith(start)
    assert found.bad == (BAD in states)


def test_the_disk_check_reads_files_without_changing_them(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "large.bin").write_bytes(os.urandom(20 << 20))
    (tmp_path / "small.txt").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # opening it would block
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert [path.name for path in machine.some_files(tmp_path)] == ["small.txt", "large.bin"]
    check = machine.disk_check(tmp_path)
    assert "MB/s sequential" in check.found
    assert "21 MB read" in check.found
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_the_disk_check_explains_why_it_measured_nothing(tmp_path: Path) -> None:
    assert machine.disk_check(tmp_path).state == WARN
    assert "does not exist" in machine.disk_check(tmp_path / "none").found
    (tmp_path / "tiny").write_text("x")
    assert "too little" in machine.disk_check(tmp_path).found
    assert "--data DIR" in machine.disk_check(None).found


def test_reading_stops_at_its_byte_and_time_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large.bin").write_bytes(bytes(8 << 20))
    monkeypatch.setattr(machine, "MAX_READ_BYTES", 1 << 20)
    assert machine.read([tmp_path / "large.bin"], piece=1 << 17, shuffled=True).n_bytes == 1 << 20
    monkeypatch.setattr(machine, "MAX_READ_SECONDS", -1.0)
    assert machine.read([tmp_path / "large.bin"], piece=1 << 17, shuffled=True).n_bytes == 0


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("sys/fs/cgroup/memory.max", "max\n", None),
        ("sys/fs/cgroup/memory.max", "4096\n", 4096),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712", None),
    ],
)
def test_memory_limit_of_the_container(
    name: str, text: str, limit: int | None, tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
    assert memory_limit(root=tmp_path) == limit


def test_missing_shared_memory_is_ok(tmp_path: Path) -> None:
    assert shm_check(path=tmp_path / "none").state == OK


def test_a_decoder_that_fails_to_import_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_decoder.py").write_text(
        "raise OSError('libnvjpeg.so.12: cannot open shared object file')"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = backend_check("nvjpeg", "broken_decoder", has_gpu=True)
    assert (found.state, "libnvjpeg" in found.found) == (BAD, True)
    assert backend_check("dali", "no_such_package.dali", has_gpu=True).state == WARN
    assert backend_check("dali", "no_such_package", has_gpu=False).state == OK


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0581, "58 ms"),
        (4.12, "4.1 s"),
        (723, "12 min 3 s"),
        (0.00124, "1.2 ms"),
        (1.5, "1.50 s"),
        (0.99996, "1.00 s"),
        (7300, "2 h 2 min"),
        (3e-6, "3 us"),
        (float("nan"), "?"),
    ],
)
def test_seconds_are_formatted(value: float, text: str) -> None:
    assert fmt.seconds(value) == text


def test_shares_rates_and_counts_are_formatted() -> None:
    assert [fmt.percent(share) for share in (0, 0.0001, 0.0042, 0.301, 1)] == [
        "0 %",
        "< 0.1 %",
        "0.4 %",
        "30 %",
        "100 %",
    ]
    assert [fmt.rate(value) for value in (1210.4, 62.31, 6.78, 0.0321)] == [
        "1,210",
        "62.3",
        "6.78",
        "0.032",
    ]
    assert [fmt.count(n, "step") for n in (1, 5000)] == ["1 step", "5,000 steps"]
    assert [fmt.ordinal(n) for n in (1, 2, 3, 8, 11, 22)] == [
        "1st",
        "2nd",
        "3rd",
        "8th",
        "11th",
        "22nd",
    ]
