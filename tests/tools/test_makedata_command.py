"""python -m tools.makedata: reproducible files, and existing files are never overwritten."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tools.makedata.__main__ import LAYOUTS, main


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tools.makedata", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("layout", "few", "many"),
    [
        ("imagenet", 3, 5),
        ("gray", 4, 12),
        ("captcha", 4, 12),  # the large ones: test_makedata_streets.py
    ],
)
def test_fewer_samples_are_a_prefix_of_more(
    tmp_path: Path, layout: str, few: int, many: int
) -> None:
    for name, n in (("few", few), ("many", many)):
        assert (
            main([layout, str(tmp_path / name), "--n", str(n), "--seed", "11", "--jobs", "1"]) == 0
        )
    small = digests(tmp_path / "few")
    large = digests(tmp_path / "many")
    for name in small.keys() - {"labels.csv"}:
        assert small[name] == large[name], name
    assert len(large) > len(small)
    if layout == "captcha":
        assert (
            (tmp_path / "many/labels.csv")
            .read_text()
            .startswith((tmp_path / "few/labels.csv").read_text())
        )


def test_another_seed_gives_other_files(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        assert main(["gray", str(tmp_path / seed), "--n", "2", "--seed", seed, "--jobs", "1"]) == 0
    first = digests(tmp_path / "1")
    second = digests(tmp_path / "2")
    assert first.keys() == second.keys()
    assert not set(first.values()) & set(second.values())


def test_the_number_of_processes_does_not_change_files_and_the_summary_is_printed(
    tmp_path: Path,
) -> None:
    done = command("captcha", str(tmp_path / "two"), "--n", "6", "--seed", "5", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("captcha: 6 samples, 6 JPEGs, ")
    assert "captcha 6/6" in done.stderr
    assert main(["captcha", str(tmp_path / "one"), "--n", "6", "--seed", "5", "--jobs", "1"]) == 0
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_all_makes_every_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["all", str(tmp_path / "d"), "--n", "1", "--jobs", "1"]) == 0
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == sorted(LAYOUTS)
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == list(LAYOUTS)


@pytest.mark.parametrize("layout", [*LAYOUTS, "all"])
def test_a_folder_with_files_is_refused(
    tmp_path: Path, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keep.txt").write_text("mine")
    assert main([layout, str(tmp_path), "--n", "1"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "is not empty; choose another DEST" in error
    assert [path.name for path in tmp_path.iterdir()] == ["keep.txt"]
    assert (tmp_path / "keep.txt").read_text() == "mine"


def test_a_file_is_refused_and_an_empty_folder_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(["gray", str(tmp_path / "file")]) == 2
    assert "is a file" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["gray", str(tmp_path / "empty"), "--n", "1", "--jobs", "1"]) == 0


def test_a_usage_error_is_one_line(tmp_path: Path) -> None:
    done = command("gray", str(tmp_path / "d"), "--n", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "makedata: making a dataset: n is 0, expected 1 or more\n"
    assert not (tmp_path / "d").exists()
    assert command("nonsense", str(tmp_path / "d")).returncode == 2
