"""benchmarks/train.py runs with each loader, and accuracies are compared seed by seed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks import train
from benchmarks.accuracy import BASE, interval, verdict


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
                "--validation",
                "6",
                "--json",
                str(out),
            ]
        )
        == 0
    )
    report = json.loads(out.read_text())
    assert set(report["runs"]) == {"torch DataLoader", "fastload", "fastload, full shuffle, exact"}
    assert report["validation"] == 6
    for runs in report["runs"].values():
        assert len(runs) == 1
        assert 0 <= runs[0]["accuracy"] <= 1
        assert runs[0]["loss"] > 0
        assert 0 <= runs[0]["waiting"] <= 1
    assert "accuracy" in capsys.readouterr().out


def test_the_verdict_states_the_difference_and_what_it_cannot_show() -> None:
    base = [0.80, 0.82, 0.81, 0.80, 0.83, 0.79, 0.81, 0.82]
    near = [0.81, 0.80, 0.83, 0.80, 0.82, 0.80, 0.80, 0.83]
    text = verdict({BASE: base, "fastload": near})
    assert "+0.1 ± 1.1 percentage points compared with torch (95 % confidence, 8 seeds)" in text
    assert "would not show one below 1.1 points" in text
    worse = verdict({BASE: base, "fastload": [value - 0.03 for value in near]})
    assert "-2.9 ± 1.1" in worse
    assert "larger than the variation between seeds explains" in worse
    assert "show no difference" not in worse


def test_too_few_seeds_are_not_compared() -> None:
    """Three seeds once became "same accuracy" in the documents, with 68.1 % and 65.4 %."""
    text = verdict({BASE: [0.6875, 0.6625, 0.69375], "fastload": [0.66875, 0.60625, 0.6875]})
    assert text.startswith("Accuracy is not compared: 3 seeds, at least 8")
    assert interval([0.5], [0.6])[1] == math.inf
