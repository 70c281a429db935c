"""benchmarks/plan_scale.py runs, and docs/distributed-packing.md has the recorded tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plan_scale

ROOT = Path(__file__).resolve().parents[2]


def test_every_stage_runs_with_a_whole_and_with_a_sparse_list(tmp_path: Path) -> None:
    scales: list[dict[str, Any]] = []
    for listed in (True, False):
        folder = tmp_path / str(listed)
        folder.mkdir()
        found = dict(plan_scale.simulate(40_000, folder, listed=listed, publishes=listed))
        assert found["worker"]["result"]["task_bytes"] < 1000
        assert found["restart"]["result"] == 0
        assert [each["deaths"] for each in found["deaths"]] == list(plan_scale.DEATHS)
        scales.append({"n": 40_000, **found})
    assert scales[0]["publish"]["result"]["n_samples"] == 40_000
    assert "| not measured |" in plan_scale.page({"scales": scales})


@pytest.mark.parametrize("name", ["engines", "plan_scale"])
def test_the_page_has_the_recorded_tables(name: str) -> None:
    module = pytest.importorskip(f"benchmarks.{name}", reason="not run: no Ray")
    results = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
    page = (ROOT / "docs/distributed-packing.md").read_text()
    assert module.page(results).strip() in page, (
        f"run python -m benchmarks.{name} --page benchmarks/results/{name}.json"
    )
