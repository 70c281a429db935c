"""A lost second is charged to one finding: all findings together never lose more than the run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fastload._cli import main
from fastload._tools.doctor.examine import examine
from tests.made_runs import START, made, rows_of, write


def assert_charged_once(path: Path) -> float:
    """Checks the shares of all findings; returns their sum."""
    found = examine(path)
    run = found.numbers.runs[0]
    lost_s = sum(each.lost_s for each in found.findings)
    assert lost_s <= run.seconds
    assert sum(each.share for each in found.findings) <= 1.0
    assert all(each.ceiling is None or each.ceiling.gain >= 0 for each in found.findings)
    return lost_s / run.seconds


def test_a_wait_during_a_checkpoint_is_charged_to_the_checkpoint(tmp_path: Path) -> None:
    """The event delays the next batch, so its time is also part of data_time."""
    rows: list[dict[str, object]] = []
    for number in range(1, 10):
        saves = number % 3 == 0
        rows.append(
            {
                "kind": "step",
                "time": START + number + 4 * (number // 3),
                "iter": number,
                "data_time": 4.0 if saves else 0.1,
                "iter_time": 5.0 if saves else 1.0,
                "stage_times": {"to_device": 0.3, "forward": 0.5},
            }
        )
        if saves:
            rows.append({"kind": "event", "iter": number, "name": "checkpoint", "seconds": 4.0})
    path = write(tmp_path / "metrics.jsonl", rows)
    assert_charged_once(path)
    found = examine(path)
    (checkpoint,) = found.found("checkpoint")
    assert checkpoint.lost_s == pytest.approx(12.0)
    assert sum(each.lost_s for each in found.findings if each.is_data_wait) < 1.0


def test_the_wait_inside_a_slow_step_is_not_charged_again_as_data_wait(tmp_path: Path) -> None:
    run = made(2000, data=0.02)
    slow = np.arange(200, 2000, 100)
    run.extra[slow] += 3.0
    run.data[slow] += 2.0
    path = write(tmp_path / "metrics.jsonl", rows_of(run, every_steps=1))
    planted_s = 5.0 * len(slow) + run.data.sum()
    lost_s = sum(each.lost_s for each in examine(path).findings)
    assert lost_s <= planted_s


@pytest.mark.parametrize("seed", range(60))
def test_findings_never_lose_more_than_the_run(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for number in range(1, int(rng.integers(5, 60))):
        step_s = float(rng.choice([0.1, 0.1, 0.2, 3.0]))
        rows.append(
            {
                "kind": "step",
                "time": START + float(rng.choice([1.0, 7.0])) * number,
                "iter": 10 * number,
                "steps": 10,
                "data_time": step_s * float(rng.random()),
                "iter_time": step_s,
                "iter_time_max": step_s * float(rng.choice([1, 20])),
                "stage_times": {"to_device": step_s * float(rng.random()), "forward": step_s / 3},
                "swap_bytes": int(rng.choice([0, 10**9])),
                "slow": [[10 * number, 9 * step_s, 8 * step_s]] * int(rng.integers(0, 3)),
            }
        )
        if rng.random() < 0.3:
            name = str(rng.choice(["save", "eval", "log"]))
            seconds = float(rng.choice([0.1, 2, 50]))
            rows.append({"kind": "event", "iter": 10 * number, "name": name, "seconds": seconds})
    assert_charged_once(write(tmp_path / "metrics.jsonl", rows))


def test_json_and_text_agree_with_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(made(300, data=0.4))
    rows += [{"kind": "event", "iter": 100 + n, "name": "eval", "seconds": 9.0} for n in range(99)]
    path = write(tmp_path / "metrics.jsonl", rows)
    share = assert_charged_once(path)
    main(["doctor", str(path), "--json"])
    report = json.loads(capsys.readouterr().out)
    lost_s = sum(each["lost_s"] for each in report["findings"])
    assert lost_s / report["runs"][0]["seconds"] == pytest.approx(share)
    assert sum(each["of_lost"] for each in report["findings"]) == pytest.approx(1.0)


def test_the_joint_ceiling_belongs_to_one_run(tmp_path: Path) -> None:
    """Losses of two compared runs are not added up."""
    paths = [
        write(tmp_path / f"{name}.jsonl", rows_of(made(600, data=0.1, seed=seed)))
        for seed, name in enumerate("ab")
    ]
    assert "With both fixed" not in examine(*paths).verdict


def test_slow_steps_longer_than_their_row_are_ignored(tmp_path: Path) -> None:
    rows = rows_of(made(300))
    for row in rows[1:]:
        row["slow"] = [[row["iter"], 99.0, 98.0]]
    found = examine(write(tmp_path / "metrics.jsonl", rows))
    assert found.healthy
