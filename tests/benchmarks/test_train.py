"""benchmarks/train.py runs with each loader, and its verdict accounts for the seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import train
from benchmarks.train import Trained


def test_it_trains_with_every_loader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "train.json"
    assert (
        train.main(
            [
                "--images",
                "16",
                "--classes",
                "2",
                "--epochs",
                "1",
                "--seeds",
                "1",
                "--batch-size",
                "8",
                "--json",
                str(out),
            ]
        )
        == 0
    )
    report = json.loads(out.read_text())
    assert set(report["runs"]) == {"torch DataLoader", "fastload", "fastload, full shuffle, exact"}
    for runs in report["runs"].values():
        assert len(runs) == 1
        assert 0 <= runs[0]["accuracy"] <= 1
        assert runs[0]["loss"] > 0
        assert 0 <= runs[0]["waiting"] <= 1
    assert "accuracy" in capsys.readouterr().out


def test_the_verdict_compares_the_difference_with_the_variation_between_seeds() -> None:
    def runs(*values: float) -> list[Trained]:
        return [Trained(value, 1.0, 0.1, 1.0) for value in values]

    same = train.verdict(
        {"torch DataLoader": runs(0.8, 0.82, 0.81), "fastload": runs(0.81, 0.8, 0.83)}
    )
    assert "within the variation" in same
    worse = train.verdict(
        {"torch DataLoader": runs(0.8, 0.82, 0.81), "fastload": runs(0.5, 0.51, 0.52)}
    )
    assert "outside the variation" in worse
    assert "-30.0%" in worse
