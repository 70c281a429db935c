"""The doctor names the largest stage of a host-bound step and reads the users' stage names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fastload
from fastload._tools.doctor.examine import examine
from fastload._tools.doctor.loader.model import LoaderCosts, suggestions
from tests.made_runs import foreign_rows, made, rows_of, window, write

STAGES = ("to_device", "forward", "loss", "backward", "optimizer")


def write_window(folder: Path) -> Path:
    (folder / "window.json").write_text(json.dumps(window(util=45.0, power=150.0)))
    return folder / "window.json"


@pytest.mark.parametrize("largest", ["loss", "optimizer", "forward", "my own stage"])
def test_a_host_bound_step_names_its_largest_stage(largest: str, tmp_path: Path) -> None:
    parts = {"forward": 0.1, "backward": 0.15} | {largest: 0.6}
    metrics = write(tmp_path / "metrics.jsonl", rows_of(made(600, parts=parts)))
    (found,) = examine(metrics, write_window(tmp_path)).found("host-bound")
    assert f"the largest stage is {largest} (60 % of a step)" in found.title
    assert "A step takes 15" in " ".join(found.evidence)
    if largest == "optimizer":
        assert found.fix.startswith("Create the optimizer with fused=True.")


def test_a_host_bound_step_without_stages_is_reported_as_before(tmp_path: Path) -> None:
    metrics = write(tmp_path / "metrics.jsonl", rows_of(made(600, parts=None)))
    (found,) = examine(metrics, write_window(tmp_path)).found("host-bound")
    assert "largest stage" not in found.title


@pytest.mark.parametrize("form", ["time_{}", "{}_time"])
def test_stage_names_of_users_are_read(form: str, tmp_path: Path) -> None:
    rows = foreign_rows(made(300, step=0.1))
    for row in rows:
        row |= {form.format(stage): 0.01 * place for place, stage in enumerate(STAGES, 1)}
    path = write(tmp_path / "metrics.jsonl", rows)
    stages = examine(path).numbers.runs[0].stages
    expected = {stage: 0.01 * place for place, stage in enumerate(STAGES, 1)}
    assert stages == pytest.approx(expected)
    assert fastload.read_metrics(path).steps[0].stage_times == pytest.approx(expected)


def test_a_slow_copy_in_a_users_file_is_found(tmp_path: Path) -> None:
    rows = foreign_rows(made(300, step=0.1))
    for row in rows:
        row["time_to_device"] = 0.04
    found = examine(write(tmp_path / "metrics.jsonl", rows))
    assert found.state == "transfer-bound"


def test_values_that_are_no_times_are_not_stages(tmp_path: Path) -> None:
    rows = foreign_rows(made(100))
    for row in rows:
        row |= {"time_forward": "fast", "time_loss": True, "time_elapsed": 5.0, "time_backward": -1}
    stages = examine(write(tmp_path / "metrics.jsonl", rows)).numbers.runs[0].stages
    assert stages == {}


def test_num_workers_0_is_a_finding_of_its_own() -> None:
    costs = {"loader_s": 0.4, "step_s": 0.1, "together_s": 0.5, "wall_s": 0.4, "cpu_s": 0.4}
    (none,) = suggestions(LoaderCosts(cores=4, workers=0, **costs))  # type: ignore[arg-type]
    assert none.kind == "no-workers"
    assert none.state == "num_workers=0"
    assert none.fix.startswith("num_workers=4 (now 0)")
    assert "With num_workers=0 the step waits" in none.evidence[0]
    costs["together_s"] = 0.4
    (few,) = suggestions(LoaderCosts(cores=4, workers=1, **costs))  # type: ignore[arg-type]
    assert few.kind == "workers"
