"""The code blocks of docs/diagnose.md run in order and print what the page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fastload._tools.scenes import imagenet

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "diagnose.md"


def test_the_blocks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imagenet.make(tmp_path / "photos", n=30, n_classes=3)
    monkeypatch.chdir(tmp_path)
    text = DOCUMENT.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 6
    scope: dict[str, Any] = {"__name__": "diagnose_docs"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    capsys.readouterr()
    try:
        for block in blocks:
            exec(compile(block.replace("seconds=10", "seconds=2"), str(DOCUMENT), "exec"), scope)
    finally:
        torch.set_num_threads(threads)
    scope["loader"].close()
    said = capsys.readouterr().out
    shown = "".join(re.findall(r"```text\n(.*?)```", text, re.DOTALL))
    for words in (
        "Your step needs",
        "Time of the loader (one batch of 8 in one of 1 worker)",
        "mixed precision is off",
        "reading a value (.item(), float(), bool(), if), once per step",
        "fastload pack photos/train packed",
        "T.Resize(128, 128)",
    ):
        assert words in said
        assert words in shown
