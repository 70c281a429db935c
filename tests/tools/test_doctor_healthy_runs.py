"""Runs without a fault are reported as healthy, and warm-up is excluded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fastload._tools.doctor.account import Stall, find_groups, warm_rows
from fastload._tools.doctor.examine import examine
from tests.made_runs import Made, every, foreign_rows, made, rows_of, window, write, write_window


def with_window(folder: Path) -> list[Path]:
    return [write(folder / "m.jsonl", rows_of(made())), write_window(folder / "w.json", window())]


def ranks(folder: Path) -> list[Path]:
    return [
        write(folder / f"r{k}.jsonl", rows_of(made(step=0.1, seed=k, rank=k, world=4)))
        for k in range(4)
    ]


def resumed(folder: Path) -> list[Path]:
    """A resumed run: a second header, continued step numbers and a second warm-up."""
    second = rows_of(made(1000, seed=1))
    for row in second:
        row["time"] = float(str(row["time"])) + 3000
        if row["kind"] == "step":
            row["iter"] = int(str(row["iter"])) + 1500
    return [write(folder / "m.jsonl", rows_of(made(1500)), second)]


def random_hiccups() -> Made:
    run = made(4000, step=0.1)
    run.data[np.random.default_rng(2).choice(4000, 20, replace=False)] += 0.15
    run.extra[np.random.default_rng(3).choice(4000, 20, replace=False)] += 0.2
    return run


def log_file(run: Made) -> Callable[[Path], list[Path]]:
    return lambda folder: [write(folder / "m.jsonl", rows_of(run))]


HEALTHY: dict[str, Callable[[Path], list[Path]]] = {
    "plain": log_file(made()),
    "with a window": with_window,
    "noisy": log_file(made(noise=0.15)),
    "noisy, one row a step": lambda folder: [
        write(folder / "m.jsonl", foreign_rows(made(noise=0.18)))
    ],
    "short": log_file(made(60, warm=5)),
    "very short": log_file(made(20, warm=3)),
    "rows of another tool": lambda folder: [
        write(folder / "log.json", foreign_rows(made(800), number="global_step", took="step_time"))
    ],
    "no data_time": lambda folder: [
        write(folder / "log.json", [{"iter": k, "time": 0.2} for k in range(300)])
    ],
    "four ranks": ranks,
    "resumed": resumed,
    "a few hiccups": log_file(random_hiccups()),
    "seldom saved": log_file(every(made(20_000), 5000, 4.1)),
    "short, with much warm-up": log_file(made(100)),
    "one long warm-up": log_file(made(600, warm=120)),
    "one row": lambda folder: [
        write(folder / "m.jsonl", [{"iter": 1, "time": 0.2, "data_time": 0.0}])
    ],
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_reported_as_healthy(name: str, tmp_path: Path) -> None:
    found = examine(*HEALTHY[name](tmp_path))
    assert found.healthy, str(found)
    assert found.state == "healthy"
    assert found.verdict.startswith("Healthy: ")
    assert not [each for each in found.findings if each.severity != "info"]


def test_a_small_periodic_pause_is_only_information(tmp_path: Path) -> None:
    found = examine(*HEALTHY["seldom saved"](tmp_path))
    assert found.healthy
    assert (
        "Minor: probably a checkpoint, every 5,000 steps, 4.1 s (0.5 % of the time)"
        in found.verdict
    )


def test_warm_up_is_excluded_with_a_note(tmp_path: Path) -> None:
    run = made(1000, warm=60)
    facts = examine(write(tmp_path / "m.jsonl", rows_of(run))).numbers.runs[0]
    assert 50 <= facts.warm_steps <= 60
    assert facts.step_s == pytest.approx(run.step[60:].mean(), rel=0.01)
    assert facts.warm_s == pytest.approx(run.step[: facts.warm_steps].sum(), rel=0.01)


def test_every_start_has_its_own_warm_up(tmp_path: Path) -> None:
    facts = examine(*resumed(tmp_path)).numbers.runs[0]
    assert facts.warm_steps == 60
    assert facts.steps == 2440


def test_a_row_whose_steps_are_all_slow_counts_once(tmp_path: Path) -> None:
    rows = rows_of(made(1000, step=0.1), every_steps=5)
    rows[120] |= {
        "iter_time": 1.1,
        "iter_time_max": 1.1,
        "slow": [[int(str(rows[120]["iter"])) - k, 1.1, 0.0] for k in range(4, -1, -1)],
    }
    found = examine(write(tmp_path / "m.jsonl", rows))
    assert found.findings[0].kind == "jitter"
    assert found.findings[0].lost_s == pytest.approx(5.0, rel=0.02)


@pytest.mark.parametrize(
    ("step", "excluded"),
    [
        ([1.0] * 100, 10),  # the first ten always
        ([9.0] * 20 + [1.0] * 180, 20),
        ([9.0] * 60 + [1.0] * 40, 50),  # a short run: up to half of it
        ([9.0] * 600 + [1.0] * 400, 250),  # a longer one: up to a quarter
        ([1.0] * 30, 0),  # too short to give ten away
        ([9.0] + [1.0] * 5, 1),
        ([1.0], 0),
    ],
)
def test_number_of_warm_up_rows(step: list[float], excluded: int) -> None:
    assert warm_rows(np.array(step), np.ones(len(step), np.int64)) == excluded


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("n", [3, 10, 60, 300])
def test_random_stalls_have_no_period(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    stalls = [
        Stall(int(at), 1, float(rng.uniform(0.2, 1.0)), 0.0)
        for at in np.sort(rng.choice(5000, n, replace=False))
    ]
    groups, rest = find_groups(stalls, 0, 4999)
    assert groups == []
    assert len(rest) == n


def test_one_missed_save_does_not_hide_the_period() -> None:
    stalls = [Stall(k, 1, 4.0, 0.0) for k in range(500, 10_001, 500) if k != 3000]
    groups, rest = find_groups(stalls, 1, 10_000)
    assert [(group.period, group.phase, len(group.stalls)) for group in groups] == [(500, 0, 19)]
    assert rest == []


def test_json_equals_the_diagnosis_and_has_no_nan(tmp_path: Path) -> None:
    import json

    found = examine(write(tmp_path / "m.jsonl", rows_of(replace(made(data=0.08), parts=None))))
    content = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert content["state"] == "data-bound"
    assert content["verdict"] == found.verdict
    ceiling = found.findings[0].ceiling
    assert ceiling is not None
    assert content["findings"][0]["ceiling"]["it_s"] == pytest.approx(ceiling.it_s)
