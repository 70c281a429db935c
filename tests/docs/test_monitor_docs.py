"""The loop in docs/monitor.md runs, and the page names every key of both files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch

from fastload._tools.monitor.metrics_file import read_metrics
from fastload._tools.monitor.window import RULE
from tests.windows import window

PAGE = Path(__file__).resolve().parents[2] / "docs" / "monitor.md"


def test_the_loop_on_the_page_runs(tmp_path: Path) -> None:
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[0].replace(
        '"metrics.jsonl"', repr(str(tmp_path / "m.jsonl"))
    )
    model = torch.nn.Linear(4, 2)
    saved: list[object] = []
    names = {
        "loader": [(torch.randn(8, 4), torch.randint(0, 2, (8,)))] * 20,
        "device": "cpu",
        "model": model,
        "save": saved.append,
        "criterion": torch.nn.CrossEntropyLoss(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }
    exec(block.replace("% 5000 == 4999", "% 10 == 9"), names)
    metrics = read_metrics(tmp_path / "m.jsonl")
    assert [(row.iter, row.samples) for row in metrics.steps] == [(10, 80), (20, 80)]
    assert list(metrics.steps[0].stage_times) == [
        "to_device",
        "forward",
        "loss",
        "backward",
        "optimizer",
    ]
    assert [(event.name, event.iter) for event in metrics.events] == [
        ("checkpoint", 10),
        ("checkpoint", 20),
    ]
    assert len(saved) == 2


def test_the_page_names_every_key_and_the_rule(tmp_path: Path) -> None:
    text = PAGE.read_text()
    saved_window = json.loads(json.dumps(window([50.0]).as_json()))
    (gpu,) = saved_window["gpus"]
    keys = {*saved_window, *saved_window["host"]["samples"], *gpu["samples"], *gpu["summary"]} - {
        "gpus",
        "host",
    }
    missing = [key for key in sorted(keys) if f"`{key}`" not in text]
    assert missing == []
    assert RULE in text.replace("\n  ", " ")
