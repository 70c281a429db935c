"""Runs with one planted cause: the doctor lists it first, with the planted share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fastload._tools.doctor.examine import examine
from tests.made_runs import Made, every, foreign_rows, made, rows_of, window, write, write_window

PROBE = {
    "read": 0.001,
    "cut": 0.0002,
    "decode": 0.008,
    "resize": 0.003,
    "finish": 0.001,
    "wait": 0.05,
}
Paths = list[Path]
Case = tuple[Callable[[Path], Paths], str, float]


def one(run: Made, **options: object) -> Callable[[Path], Paths]:
    """Files of one run, and of a window if there are options for one."""

    def files(folder: Path) -> Paths:
        paths = [write(folder / "metrics.jsonl", rows_of(run))]
        return paths + (
            [write_window(folder / "window.json", window(**options))] if options else []  # type: ignore[arg-type]
        )

    return files


def steady_share(run: Made, lost: NDArray[np.float64]) -> float:
    return float(lost[run.warm :].sum() / run.step[run.warm :].sum())


def events_run() -> Made:
    run = every(made(12_000, step=0.1), 2000, 14.1)
    return replace(run, events=[(k, "checkpoint", 14.0) for k in range(2000, 12_001, 2000)])


def swap_run() -> Made:
    run = made(3000, step=0.1)
    slow = (np.arange(3000) // 250) % 3 == 2
    run.data[slow] += 0.4
    return replace(run, swap=np.where(slow, 4e7, 0.0))


def bursts_run() -> Made:
    run = made(4000, step=0.1, parts=None)
    at = np.random.default_rng(3).choice(np.arange(100, 4000), 12, replace=False)
    run.data[at] += np.linspace(2, 6.6, 12)
    return run


def jitter_run() -> Made:
    run = made(4000, step=0.1)
    at = np.random.default_rng(5).choice(np.arange(100, 4000), 60, replace=False)
    run.extra[at] += np.linspace(0.3, 1.5, 60)
    return run


def slow_rank_files(stage: bool) -> Callable[[Path], Paths]:
    def files(folder: Path) -> Paths:
        rows = []
        for rank in range(4):
            run = made(2000, step=0.1, seed=rank, warm=30, rank=rank, world=4)
            slow = 0.04
            if rank == 2 and not stage:
                run.data[:] += slow
            elif rank == 2:  # forward 33 ms -> 73 ms
                parts = {
                    "forward": 73 / 140,
                    "backward": 55 / 140,
                    "to_device": 2 / 140,
                    "loss": 2 / 140,
                    "optimizer": 8 / 140,
                }
                run = replace(run, parts=parts, work=run.work + slow)
            else:  # waits for rank 2 in backward
                parts = {
                    "forward": 33 / 140,
                    "backward": 95 / 140,
                    "to_device": 2 / 140,
                    "loss": 2 / 140,
                    "optimizer": 8 / 140,
                }
                run = replace(run, parts=parts, work=run.work + slow)
            rows.append(rows_of(run))
        return [write(folder / f"rank{k}.jsonl", each) for k, each in enumerate(rows)]

    return files


def late_workers(folder: Path) -> Paths:
    return [write(folder / "log.json", foreign_rows(every(made(3000), 8, 0.4, data=True)))]


SLOW_COPY = {"to_device": 0.25, "forward": 0.25, "backward": 0.45, "optimizer": 0.05}
CASES: dict[str, Case] = {
    "slow decode": (one(made(data=0.07, probe=PROBE)), "data-bound", 0.33),
    "slow loader, free cores": (
        one(made(data=0.05), cpu=30.0, util=70.0),
        "data-bound",
        0.26,
    ),
    "workers that cannot keep up": (late_workers, "data-bound", 0.25),
    "slow disk, by the probe": (
        one(made(data=0.15, probe=PROBE | {"read": 0.04})),
        "disk-bound",
        0.51,
    ),
    "slow disk, by iowait": (one(made(data=0.15), iowait=35.0, util=50.0), "disk-bound", 0.51),
    "no core free": (one(made(data=0.1), cpu=99.0, util=60.0), "cpu-saturated", 0.41),
    "slow copy": (one(made(parts=SLOW_COPY)), "transfer-bound", 0.25),
    "checkpoints, named by events": (one(events_run()), "checkpoint", 0.065),
    "checkpoints, by period": (one(every(made(12_000, step=0.1), 2000, 14.0)), "checkpoint", 0.065),
    "evaluation each epoch": (
        one(every(made(6_000, step=0.1), 1251, 61.0, phase=7)),
        "evaluation",
        0.28,
    ),
    "logging": (one(every(made(4000, step=0.1), 50, 0.6)), "logging", 0.107),
    "workers restarted in each epoch": (
        one(every(made(4000, step=0.1), 390, 9.0, phase=1, data=True)),
        "epoch-start",
        0.185,
    ),
    "swap": (
        one(swap_run()),
        "swap",
        steady_share(swap_run(), np.where((np.arange(3000) // 250) % 3 == 2, 0.4, 0.0)),
    ),
    "data in bursts": (one(bursts_run()), "jitter", 0.113),
    "single slow steps": (one(jitter_run()), "jitter", 0.12),
    "one rank with slow data": (slow_rank_files(False), "slow-rank", 0.282),
    "one rank with a slow GPU": (slow_rank_files(True), "slow-rank", 0.45),
    "heat": (one(made(), hot=0.6), "throttled", 0.6 * (1 - 1200 / 1700)),
    "Python in the way": (one(made(), util=45.0, power=150.0), "host-bound", 0.54),
}


@pytest.mark.parametrize("name", CASES)
def test_the_planted_cause_is_first_with_its_share_and_alone(name: str, tmp_path: Path) -> None:
    files, kind, share = CASES[name]
    found = examine(*files(tmp_path))
    first, others = found.findings[0], found.findings[1:]
    assert not found.healthy
    assert first.kind == kind, str(found)
    assert first.share == pytest.approx(share, rel=0.08), str(found)
    assert first.of_lost > 0.8
    assert first.fix
    assert first.evidence
    assert found.verdict.startswith(first.state)
    assert not [each for each in others if each.severity != "info"], str(found)


def test_the_ceiling_is_the_speed_without_the_cause(tmp_path: Path) -> None:
    slow, healthy = made(data=0.07), made()
    found = examine(write(tmp_path / "slow.jsonl", rows_of(slow)))
    ceiling = found.findings[0].ceiling
    assert ceiling is not None
    assert ceiling.it_s == pytest.approx(1 / healthy.work[30:].mean(), rel=0.01)
    assert ceiling.gain == pytest.approx(ceiling.it_s / found.numbers.runs[0].it_s - 1, rel=0.01)
    assert (
        f"with data for free you would reach {ceiling.it_s:.2f} it/s (+{100 * ceiling.gain:.0f} %)"
        in found.verdict
    )


def test_checkpoint_and_evaluation_in_the_same_step_are_separated(tmp_path: Path) -> None:
    run = every(every(made(22_000), 1000, 4.1), 5000, 31.0)
    found = examine(write(tmp_path / "m.jsonl", rows_of(run)))
    by_kind = {each.kind: each for each in found.findings}
    assert set(by_kind) == {"checkpoint", "evaluation"}
    assert "every 1,000 steps, 4.1 s" in by_kind["checkpoint"].title
    assert "every 5,000 steps, 31.0 s" in by_kind["evaluation"].title
    assert by_kind["checkpoint"].lost_s == pytest.approx(22 * 4.1, rel=0.02)
    assert by_kind["evaluation"].lost_s == pytest.approx(4 * 31.0, rel=0.02)
    assert sum(each.of_lost for each in found.findings) == pytest.approx(1.0)


def test_a_period_is_found_among_noise_and_with_its_phase(tmp_path: Path) -> None:
    run = every(made(15_000, step=0.1), 2500, 5.0, phase=3)
    at = np.random.default_rng(1).choice(15_000, 80, replace=False)
    run.extra[at] += 0.2
    found = examine(write(tmp_path / "m.jsonl", rows_of(run)))
    group = next(each for each in found.findings if each.kind == "checkpoint")
    assert "every 2,500 steps, 5.0 s" in group.title
    assert "at steps 3 + n x 2,500" in group.evidence[0]


def test_an_evaluation_between_rows_is_found_by_timestamps(tmp_path: Path) -> None:
    rows = rows_of(made(6000, step=0.1))
    shift = 0.0
    for row in rows[1:]:
        shift += 20.0 if row["iter"] == 10 or (int(str(row["iter"])) - 10) % 1000 == 0 else 0.0
        row["time"] = float(str(row["time"])) + shift
    found = examine(write(tmp_path / "m.jsonl", rows))
    first = found.findings[0]
    assert "every 1,000 steps, 20.0 s" in first.title
    assert first.share == pytest.approx(100 / (597 + 100), rel=0.02)


def test_data_wait_covered_by_device_work_is_not_lost(tmp_path: Path) -> None:
    """data_time is 70 of 150 ms, but the device is busy for 148 ms: only the host waits."""
    rows = rows_of(made(2000))
    for row in rows[1:]:
        row["data_time"] = 0.07
    found = examine(write(tmp_path / "m.jsonl", rows))
    assert found.healthy, str(found)


def test_runs_with_different_batch_sizes_are_compared_in_samples_per_second(tmp_path: Path) -> None:
    small = write(tmp_path / "b4.jsonl", rows_of(made(step=1 / 7.5, batch=4)))
    large = write(tmp_path / "b8.jsonl", rows_of(made(step=1 / 3.65, batch=8)))
    found = examine(small, large)
    assert found.findings[0].kind == "batch-size"
    assert "batch 8 is as fast (-2 %) as batch 4 in samples/s" in found.verdict
    assert "the change in it/s (-51 %) misleads" in found.verdict
    same = examine(small, write(tmp_path / "again.jsonl", rows_of(made(step=0.1, batch=4))))
    assert same.findings[0].kind == "comparison"
    assert same.healthy
    assert "faster" in same.verdict


def test_a_busy_gpu_with_low_power_draw_is_reported(tmp_path: Path) -> None:
    found = examine(*one(made(), util=97.0, power=300.0, limit=575.0)(tmp_path))
    assert [each.kind for each in found.findings] == ["low-power"]
    assert "check_trainer" in found.findings[0].fix
    assert "52 %" in found.verdict


def test_cores_used_by_other_jobs_are_not_blamed_on_the_loader(tmp_path: Path) -> None:
    own = examine(*one(made(data=0.1), cpu=99.0, util=60.0)(tmp_path)).findings[0]
    foreign = examine(*one(made(data=0.1), cpu=99.0, util=60.0, own_share=0.1)(tmp_path)).findings[
        0
    ]
    assert (own.kind, foreign.kind) == ("cpu-saturated", "cpu-saturated")
    assert "More workers cannot help" in own.fix
    assert "its own cores" in foreign.fix
    assert "This job uses 10 % of that." in foreign.evidence


def test_time_explained_by_an_event_is_not_jitter(tmp_path: Path) -> None:
    run = made(2000, step=0.1, noise=0.0)
    at = np.sort(np.random.default_rng(8).choice(np.arange(100, 2000), 14, replace=False))
    run.extra[at] += 2.9  # the event covers 2.0 s of it
    run = replace(run, events=[(int(k) + 1, "checkpoint", 2.0) for k in at])
    found = {
        each.kind: each for each in examine(write(tmp_path / "m.jsonl", rows_of(run))).findings
    }
    assert found["checkpoint"].lost_s == pytest.approx(28.0)
    assert found["jitter"].lost_s == pytest.approx(14 * 0.9, rel=0.02)
    assert "up to 1.00 s" in found["jitter"].title


def test_rows_without_data_probe_do_not_hide_the_longest_stage(tmp_path: Path) -> None:
    """The probe reads loader statistics at most four times per second, so many rows have none."""
    rows = rows_of(made(600, data=0.07, probe=PROBE))
    for row in rows[2::2]:
        row.pop("data_probe", None)
    assert "decode takes up to 96 ms" in str(examine(write(tmp_path / "m.jsonl", rows)))
