"""append, merge, filter, export and diff on the command line: output, errors, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fastload
from fastload._cli import main
from tests.packing import class_folders


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "photos", per_class=2)
    fastload.pack("photos", "packed")
    return tmp_path


def test_results_are_printed_as_text_and_json(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["merge", "packed", "packed", "both"]) == 0
    assert capsys.readouterr().out.startswith("both: 12 samples in 2 shards, 12 samples added in ")
    assert main(["filter", "both", "ants", "--where", "label == 'ant'", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_samples"] == 4
    assert main(["append", "ants", "photos", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_added"] == 6
    assert main(["diff", "packed", "both", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["equal"], found["n_equal"], len(found["added"])) == (False, 6, 6)
    assert main(["export", "packed", "out", "--to", "files", "--limit", "4"]) == 0
    assert capsys.readouterr().out.startswith("out: 4 samples as files in 5 files, ")
    assert main(["export", "packed", "out", "--to", "webdataset", "--overwrite", "--json"]) == 0
    exported = json.loads(capsys.readouterr().out)
    assert (exported["to"], exported["n_samples"], exported["skipped"]) == ("webdataset", 6, 0)
    assert main(["diff", "packed", "packed"]) == 0
    assert "6 equal samples, 0 added, 0 removed, 0 changed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("merge packed other", 2, "found 1 dataset, expected two or more"),
        ("merge packed nowhere both", 1, "nowhere: no such folder"),
        ("merge packed packed packed", 2, "packed is not empty"),
        ("filter packed some --where label=1", 2, "character 6: unexpected '='"),
        ("filter packed some --limit 0", 2, "expected an integer, 1 or more"),
        ("filter packed some --split val", 2, "the dataset has no splits"),
        ("export packed some", 2, "the following arguments are required: --to"),
        ("export packed some --to zip", 2, "invalid choice: 'zip'"),
        ("export packed some --to files --shard-size 5", 2, "shard_size=5: expected at least"),
        ("export packed photos --to files --overwrite", 2, "not empty and not an export"),
        ("export photos some --to files", 1, "not a fastload dataset"),
        ("append packed nowhere", 2, "nowhere: No such file or directory"),
        ("append photos photos", 1, "not a fastload dataset"),
        ("append packed packed", 2, "packed is a packed dataset"),
        ("diff packed photos", 1, "not a fastload dataset"),
    ],
)
def test_errors_are_one_line(
    packed: Path, capsys: pytest.CaptureFixture[str], words: str, code: int, message: str
) -> None:
    before = sorted(path for path in packed.rglob("*"))
    assert main(words.split()) == code
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error
    assert sorted(path for path in packed.rglob("*")) == before
    assert main(["export", "packed", "out", "--to", "files", "--limit", "4"]) == 0
    assert capsys.readouterr().out.startswith("out: 4 samples as files in 5 files, ")
    assert main(["export", "packed", "out", "--to", "webdataset", "--overwrite", "--json"]) == 0
    exported = json.loads(capsys.readouterr().out)
    assert (exported["to"], exported["n_samples"], exported["skipped"]) == ("webdataset", 6, 0)
    assert main(["diff", "packed", "packed"]) == 0
