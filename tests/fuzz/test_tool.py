"""tools/fuzz.py: its table, its messages, and the files that remain after a run."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tools import fuzz


def test_the_table_has_every_target_in_columns() -> None:
    assert fuzz.table({"a": 0.5, "b": 1, "c": 0.994, "d": 0.75}).splitlines() == [
        "| target | lines | target | lines | target | lines |",
        "|---|---|---|---|---|---|",
        "| a | 50 | c | 99 |  |  |",
        "| b | 100 | d | 75 |  |  |",
    ]


def test_a_signal_is_reported_by_name() -> None:
    assert fuzz.how_it_ended(77) == "exit code 77"
    assert fuzz.how_it_ended(-signal.SIGALRM).startswith("ended by SIGALRM")


@pytest.mark.parametrize("ending", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGALRM)"])
def test_a_run_leaves_no_temporary_files(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libFuzzer ends the process without exit handlers: 1 folder per run stayed in /dev/shm."""
    program = tmp_path / "python"
    body = f"import os, signal, tempfile; print(tempfile.mkdtemp(), file=sys.stderr); {ending}"
    program.write_text(f"#!{sys.executable}\nimport sys; {body}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(fuzz, "BUILD", tmp_path)
    monkeypatch.setattr(fuzz, "NATIVE", {"stub": ("", ())})
    monkeypatch.setattr(fuzz, "program", lambda _name: "python")
    monkeypatch.setattr(fuzz, "memory_folder", lambda: str(tmp_path))
    if "_exit" in ending:
        made = Path(fuzz.run("stub").strip())
    else:
        with pytest.raises(RuntimeError, match="ended by SIGALRM") as caught:
            fuzz.run("stub")
        made = Path(str(caught.value).strip().splitlines()[-1])
    assert made.is_relative_to(tmp_path)
    assert not made.exists()
