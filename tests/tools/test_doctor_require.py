"""`fastload doctor --require` passes or fails against targets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fastload._cli import main
from fastload._tools.doctor.require import METRICS, parse_targets
from fastload.errors import ConfigError
from tests.made_runs import foreign_rows, made, rows_of, window, write


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "window.json").write_text(json.dumps(window(util=90.0)))
    metrics = write(tmp_path / "metrics.jsonl", rows_of(made(600, step=0.2, data=0.002)))
    return [str(metrics), str(tmp_path / "window.json")]


def require(
    files: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, dict[str, object]]]:
    code = main(["doctor", *files, "--require", text, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["requirements_met"] == (code == 0)
    return code, {each["name"]: each for each in report["requirements"]}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("util>=85 step_cv<10", 0),
        ("util>=85,data_ms <= 4", 0),
        ("util >= 99", 1),
        ("it_s>4, it_s<5.5", 0),
        ("samples_s>1000", 1),
        ("swap_mb_s<=0 lost<5", 0),
        ("step_ms<150", 1),
        ("data_share>50", 1),
    ],
)
def test_targets_decide_the_exit_code(
    files: list[str], text: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert require(files, text, capsys)[0] == code


def test_each_target_has_a_line_with_value_and_result(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *files, "--require", "util>=85 it_s>100"]) == 1
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert lines[0].startswith("pass  util >= 85 %: 8")
    assert lines[1].startswith("FAIL  it_s > 100 it/s: 4.")


def test_an_unhealthy_run_passes_if_its_targets_are_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "metrics.jsonl", rows_of(made(600, data=0.1)))
    assert main(["doctor", str(path)]) == 1
    capsys.readouterr()
    assert require([str(path)], "it_s>1", capsys)[0] == 0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("util", "window.json"),
        ("data_ms", "no data_time"),
        ("data_share", "no data_time"),
        ("samples_s", "no batch size"),
        ("swap_mb_s", "no swap_bytes"),
    ],
)
@pytest.mark.parametrize("comparison", [">=", "<"])
def test_an_unknown_value_fails_with_the_reason(
    tmp_path: Path, name: str, reason: str, comparison: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"iter": row["step"], "iter_time": row["time"]} for row in foreign_rows(made(300))]
    path = write(tmp_path / "metrics.jsonl", rows)
    code, found = require([str(path)], f"{name}{comparison}0.5", capsys)
    assert code == 1
    assert found[name]["value"] is None
    assert reason in str(found[name]["reason"])


def test_a_window_alone_has_no_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "window.json").write_text(json.dumps(window(util=90.0)))
    code, found = require([str(tmp_path / "window.json")], "util>80 step_cv<99 lost<99", capsys)
    assert code == 1
    assert found["util"]["passed"]
    assert "metrics.jsonl" in str(found["step_cv"]["reason"])
    assert "metrics.jsonl" in str(found["lost"]["reason"])


@pytest.mark.parametrize("every_steps", [1, 10])
def test_step_cv_is_that_of_the_steps(
    tmp_path: Path, every_steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(1000, step=0.1, noise=0.0, warm=0)
    run.extra[np.arange(50, 1000, 50)] += 0.5
    steady = run.step[100:]
    path = write(tmp_path / "metrics.jsonl", rows_of(run, every_steps=every_steps))
    _, found = require([str(path)], "step_cv<10", capsys)
    expected = 100 * steady.std() / steady.mean()
    assert found["step_cv"]["value"] == pytest.approx(expected, rel=0.1)
    assert not found["step_cv"]["passed"]


@pytest.mark.parametrize("text", ["", "util", "util>=x", "util=85", "util>=85;it_s>1", "85<util"])
def test_wrong_targets_are_usage_errors_that_list_the_names(
    text: str, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *files, "--require", text]) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in METRICS)


def test_an_unknown_name_and_missing_files_are_usage_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigError, match=r"unknown name 'speed'.*util \(%\), step_cv"):
        parse_targets("util>5 speed>3")
    assert main(["doctor", "--require", "util>5"]) == 2
    assert "needs files" in capsys.readouterr().err


def test_every_run_must_meet_the_targets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [
        str(write(tmp_path / name, rows_of(made(600, step=step))))
        for name, step in (("fast.jsonl", 0.1), ("slow.jsonl", 0.5))
    ]
    assert main(["doctor", *paths, "--require", "it_s>5"]) == 1
    lines = capsys.readouterr().out.splitlines()[-2:]
    assert [line[:4] for line in lines] == ["pass", "FAIL"]
    assert lines[1].endswith("[slow.jsonl]")


def test_the_help_lists_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--help"]) == 0
    text = capsys.readouterr().out
    assert '--require "util>=85 step_cv<10"' in text
    assert all(name in text for name in METRICS)
