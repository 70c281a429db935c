"""`fastload doctor --script train.py:make_loader,make_step`: the script is imported, not run; every mistake is one line."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest

import fastload
from fastload._cli import main
from fastload._tools.doctor.loader.script import call_script, import_script
from fastload._tools.doctor.loader.workers import WatchedCollate, WatchedDataset

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


def test_a_loader_that_is_too_slow(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("--script", f"{script}:make_loader,make_step", "--seconds", "0.5") == 1
    assert "the step waits" in capsys.readouterr().out


def test_a_loader_that_is_fast_enough_as_json(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text((SCRIPT % "0.050").replace("SECONDS)", "0)"))
    assert doctor("--script", f"{script}:make_loader,make_step", "--seconds", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "compute-bound"


def test_a_loader_alone_and_a_loader_that_is_there_already(script: Path) -> None:
    assert call_script(f"{script}:make_loader")[1] is None
    assert call_script(f"{script}:ready") == ([1, 2, 3], None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{}", "expected PATH:make_loader"),
        ("{}:a,b,c", "expected PATH:make_loader"),
        ("{}:make-loader", "expected PATH:make_loader"),
        ("{}x:make_loader", "no such file"),
        ("{}:missing", "no function missing; it has fails, make_loader"),
        ("{}:fails", r"fails\(\) raised ValueError: no data"),
        ("{}:number", "returned int: expected a loader"),
        ("{}:needs", r"needs\(\) raised TypeError: .*called without arguments"),
        ("{}:make_loader,number", "returned int: expected a function"),
    ],
)
def test_mistakes_are_reported_in_one_line(script: Path, words: str, message: str) -> None:
    with pytest.raises(fastload.ConfigError, match=message) as raised:
        call_script(words.format(script))
    assert "\n" not in str(raised.value)
    assert call_script(f"{script}:ready")[0] == [1, 2, 3]


@pytest.mark.parametrize(
    "text", ["import nothing_of_this_name", "def broken(:\n", "raise SystemExit(3)"]
)
def test_a_script_that_cannot_be_imported(script: Path, text: str) -> None:
    script.write_text(text)
    with pytest.raises(fastload.ConfigError, match=r"importing .* raised"):
        call_script(f"{script}:make_loader")
    assert script.stem not in sys.modules


def test_migrate_alone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("--migrate") == 2
    assert "go with --script" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["0", "x", "nan", "-1"])
def test_seconds_are_checked(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("--seconds", word) == 2
    assert "expected seconds, more than 0" in capsys.readouterr().err


def test_what_is_sent_to_new_worker_processes_can_be_sent(script: Path) -> None:
    watched = WatchedDataset([10, 20, 30])
    dataset, collate = pickle.loads(pickle.dumps((watched, WatchedCollate(list, watched))))
    batch, work = collate([dataset[1], dataset[2]])
    assert (batch, work.items, len(dataset)) == ([20, 30], 2, 3)
    module = import_script(script)
    assert sys.modules[module.__name__] is module
    assert (
        module.__name__ == script.stem
    )  # a worker imports it by this name, from the folder put into sys.path
    assert str(script.parent) in sys.path
