"""`fastload doctor --script`: the script is imported, not run, and each mistake gives one line."""

from __future__ import annotations

import functools
import json
import pickle
import sys
from pathlib import Path

import pytest

import fastload
from fastload._cli import main
from fastload._cli.doctor import call_script, import_script
from fastload._tools.doctor.loader.stages import WatchedDataset, measured_collate

SCRIPT = """
import time
from beside import SECONDS

def make_loader():
    class Loader:
        def __iter__(self):
            for number in range(20):
                time.sleep(SECONDS)
                yield number
    return Loader()

def make_step():
    return lambda batch: time.sleep(%s)

def fails():
    raise ValueError("no data\\nhere")

def number():
    return 3

def needs(argument):
    return [argument]

ready = [1, 2, 3]

if __name__ == "__main__":
    raise SystemExit("it was run")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "beside.py").write_text("SECONDS = 0.010\n")
    path = tmp_path / "train_it.py"
    path.write_text(SCRIPT % "0.001")
    return path


def doctor(*words: str) -> int:
    return main(["doctor", *words])


def test_a_slow_loader_gives_exit_code_1_and_shows_progress(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor("--script", f"{script}:make_loader,make_step", "--seconds", "0.5") == 1
    captured = capsys.readouterr()
    assert "the step waits" in captured.out
    phases = [line.split(" (")[0] for line in captured.err.splitlines()]
    assert phases == [
        "measuring the loader alone",
        "measuring the step alone",
        "measuring loader and step together",
    ]


def test_a_fast_loader_gives_exit_code_0_and_json_without_progress(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text((SCRIPT % "0.050").replace("SECONDS)", "0)"))
    assert doctor("--script", f"{script}:make_loader,make_step", "--seconds", "1", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["state"] == "compute-bound"
    assert not captured.err


def test_a_name_may_be_a_function_or_the_loader_itself(script: Path) -> None:
    assert call_script(f"{script}:make_loader")[1] is None
    assert call_script(f"{script}:ready") == ([1, 2, 3], None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{}", "expected PATH:make_loader"),
        ("{}:a,b,c", "expected PATH:make_loader"),
        ("{}:make-loader", "expected PATH:make_loader"),
        ("{}x:make_loader", "does not exist"),
        ("{}:missing", "no function missing; it defines fails, make_loader"),
        ("{}:fails", r"fails\(\) raised ValueError: no data"),
        ("{}:number", "returned int; expected an iterable loader"),
        ("{}:needs", r"needs\(\) raised TypeError: .*called without arguments"),
        ("{}:make_loader,number", "returned int; expected a function"),
    ],
)
def test_each_mistake_is_reported_in_one_line(script: Path, words: str, message: str) -> None:
    with pytest.raises(fastload.ConfigError, match=message) as raised:
        call_script(words.format(script))
    assert "\n" not in str(raised.value)
    assert call_script(f"{script}:ready")[0] == [1, 2, 3]


@pytest.mark.parametrize(
    "text", ["import nothing_of_this_name", "def broken(:\n", "raise SystemExit(3)"]
)
def test_a_script_that_fails_to_import_is_reported(script: Path, text: str) -> None:
    script.write_text(text)
    with pytest.raises(fastload.ConfigError, match=r"importing .* raised"):
        call_script(f"{script}:make_loader")
    assert script.stem not in sys.modules


def test_migrate_without_script_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("--migrate") == 2
    assert "needs --script" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["0", "x", "nan", "-1"])
def test_seconds_are_checked(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("--seconds", word) == 2
    assert "expected seconds, more than 0" in capsys.readouterr().err


def test_wrappers_for_worker_processes_can_be_pickled(script: Path) -> None:
    watched = WatchedDataset([10, 20, 30])
    measured = functools.partial(measured_collate, watched, list)
    dataset, collate = pickle.loads(pickle.dumps((watched, measured)))
    batch, work = collate([dataset[1], dataset[2]])
    assert (batch, work.items, len(dataset)) == ([20, 30], 2, 3)
    module = import_script(script)
    assert sys.modules[module.__name__] is module
    assert module.__name__ == script.stem  # worker processes import it by this name
    assert str(script.parent) in sys.path
