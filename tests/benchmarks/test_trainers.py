"""benchmarks/trainers.py runs every way of a trainer, counts the right steps, compares losses."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fastload
from benchmarks import evenness, trainer_runs, trainers
from benchmarks.trainer_runs import EMPTYING, FILLING, TRAINERS, Trained, figures, prepare
from fastload._common.metrics import StepRow
from fastload._tools.monitor.metrics_file import read_metrics


def step(number: int, took: float, waited: float = 0.0) -> StepRow:
    return StepRow(None, 0, number, 1, waited, waited, took, took, samples=4)


def test_each_way_runs_and_the_figures_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trainers.json"
    words = [
        "--only",
        "gray",
        "--rounds",
        "2",
        "--steps",
        "3",
        "--folder",
        str(tmp_path),
        "--json",
        str(out),
    ]
    assert trainers.main(words) == 0
    report = json.loads(out.read_text())
    (row,) = report["rows"]
    assert (
        set(row["samples_per_s"])
        == set(row["waiting"])
        == set(row["variation"])
        == {"plain", "fastload", "no loading"}
    )
    assert all(each["n"] == 2 and each["median"] > 0 for each in row["samples_per_s"].values())
    assert set(row["loss"]) == {"plain", "fastload"}
    assert row["counted"] == 6  # two epochs of three steps
    assert set(row["step_to_step"]) == set(row["disturbed"]) == set(row["variation"])
    for runs in report["runs"]["gray"].values():
        assert runs[0]["loss"] != runs[1]["loss"]  # the rounds have different seeds
    ratios = [
        ours["samples_per_s"] / plain["samples_per_s"]
        for ours, plain in zip(
            *(report["runs"]["gray"][way] for way in ("fastload", "plain")), strict=True
        )
    ]
    assert min(ratios) <= row["gain"]["median"] <= max(ratios)
    assert "torch" in report["machine"]
    captured = capsys.readouterr()
    assert "gray" in captured.out
    order = [line.rsplit(", ", 1)[1] for line in captured.err.splitlines() if "round " in line]
    assert order == [
        f"{way} ..."
        for way in ("plain", "fastload", "no loading", "no loading", "fastload", "plain")
    ]


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_an_epoch_has_the_samples_that_its_steps_need(name: str, tmp_path: Path) -> None:
    """Samples are repeated if fewer were generated, as files and packed."""
    trainer = replace(TRAINERS[name], made=2, batch_size=1, steps=3)
    data = prepare(name, trainer, tmp_path)
    dataset = fastload.open(data.packed)
    assert len(dataset.with_split(next(iter(dataset.splits), None))) == 3
    of_classes = name in ("gray", "classifier")
    assert len(plain_dataset(name, data.source / ("train" if of_classes else "."))) == 3


def plain_dataset(name: str, source: Path) -> list[object]:
    module: Any = importlib.import_module(f"examples.{name}_torch")
    classes: dict[str, tuple[str, dict[str, Any]]] = {
        "lanes": ("Frames", {"size": (72, 96)}),
        "bev": ("Rigs", {"size": (64, 176)}),
        "gray": ("GrayImages", {}),
        "captcha": ("Captchas", {"size": (80, 160)}),
        "classifier": ("ClassFolders", {"side": 32, "augment": True}),
    }
    kind, options = classes[name]
    dataset = getattr(module, kind)(str(source), **options)
    return [dataset[number] for number in range(len(dataset))]


def test_only_the_middle_of_an_epoch_counts() -> None:
    steps = 2 * (FILLING + EMPTYING) + 2
    rows = [
        step(epoch * steps + place + 1, 1.0 if FILLING <= place < steps - EMPTYING else 100.0, 0.25)
        for epoch in range(2)
        for place in range(steps)
    ]
    assert figures(rows, 0.5, steps) == Trained(
        0.5, 4.0, 0.25, 0.0, 0.0, 2 * (steps - FILLING - EMPTYING)
    )
    short = figures([step(1, 1.0), step(2, 3.0)], 0.5, 2)
    assert (short.steps, short.samples_per_s, short.variation) == (2, 2.0, 0.5)
    assert short.step_to_step == pytest.approx(math.sqrt(0.5))


def test_steps_disturbed_by_the_host_do_not_count_for_the_variation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evenness, "available_cpus", lambda: 2)
    rows = [step(1, 1.0), step(2, 1.0), step(3, 4.0), step(4, 1.0)]
    # 0.1 s of two CPUs in one second is 5 %.
    found = figures(rows, 0.5, 4, stolen=[0.0, 0.1, 3.0, 0.0])
    assert (found.variation, found.step_to_step, found.steps, found.disturbed) == (0.0, 0.0, 4, 1)
    assert found.samples_per_s == pytest.approx(16 / 7)  # stolen time counts as elapsed time
    assert (
        figures(rows, 0.5, 4, stolen=[0.0, 0.2, 3.0, 0.3]).disturbed == 0
    )  # few would be left: then all count
    assert figures(rows, 0.5, 4).variation > 0.7


def test_the_probe_records_stolen_cpu_time_per_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken = iter([1.0, 1.5, 1.5, 4.0, 7.0, 7.25, 7.25, 7.25])
    monkeypatch.setattr(trainer_runs, "stolen_s", lambda: next(taken))
    with fastload.StepProbe(tmp_path / "metrics.jsonl", every=1) as probe:
        watched = trainer_runs._Probe(probe, repeat=False)
        assert [list(watched.watch("abc")), list(watched.watch("def"))] == [
            ["a", "b", "c"],
            ["d", "e", "f"],
        ]
    assert watched.stolen == [0.5, 0.0, 2.5, 0.25, 0.0, 0.0]
    assert len(watched.stolen) == len(read_metrics(tmp_path / "metrics.jsonl").steps)


def test_losses_are_compared_with_the_variation_between_seeds() -> None:
    assert "within" in trainers.losses([1.0, 1.1, 0.9], [1.05, 1.0, 1.1])
    assert (
        trainers.losses([1.0, 1.01, 0.99], [1.5, 1.51, 1.49])
        == "+50.0%, outside the variation between seeds (1.6%)"
    )
    assert "within" in trainers.losses(
        [1.0, 1.0, 1.0], [1.005, 1.005, 1.005]
    )  # a half percent is equal, however quiet the seeds
    assert trainers.losses([2.0], [3.0]) == "+50.0%, one seed"


def test_what_limits_a_plain_step() -> None:
    assert [trainers.limit(share) for share in (0.9, 0.5, 0.1)] == ["the model", "both", "loading"]


def test_a_failed_run_names_the_example_and_the_way(tmp_path: Path) -> None:
    missing = trainer_runs.Data(tmp_path / "none", tmp_path / "none")
    with pytest.raises(
        SystemExit, match=r"examples.gray, fastload: the process ended with exit code 1"
    ):
        trainer_runs.trained("gray", TRAINERS["gray"], missing, "fastload", seed=0, folder=tmp_path)
