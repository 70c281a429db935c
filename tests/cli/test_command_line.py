"""The command line's manners: help, version, exit codes, one-line errors."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

import fastload
from fastload import _cli as cli
from fastload._cli import COMMANDS, main
from fastload._cli.options import byte_size, human_bytes
from tests.source_contract import put_image


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fastload", *words], capture_output=True, text=True, check=False
    )


def test_help_names_every_command_and_each_shows_an_example() -> None:
    listing = run("--help")
    assert listing.returncode == 0
    for name in COMMANDS:
        assert f"  {name} " in listing.stdout
        shown = run(name, "--help")
        assert shown.returncode == 0
        assert f"fastload {name} " in shown.stdout.split("Example:")[1], (
            f"{name} --help shows no example"
        )


def test_no_command_prints_the_help_and_exits_with_2() -> None:
    result = run()
    assert result.returncode == 2
    assert "COMMAND" in result.stdout


def test_version_says_whether_the_native_core_is_here() -> None:
    result = run("--version")
    assert result.returncode == 0
    assert result.stdout.splitlines() == [
        f"fastload {fastload.__version__}",
        str(fastload.native_status()),
    ]


@pytest.mark.parametrize("words", [["no-such-command"], ["demo", "--no-such-option"]])
def test_wrong_use_exits_with_2_and_says_what(words: list[str]) -> None:
    result = run(*words)
    assert result.returncode == 2
    assert words[-1] in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_option_is_told_by_its_own_command() -> None:
    result = run("verify", "packed", "--no-such-option", "3")
    assert result.stderr.startswith("usage: fastload verify ")
    assert result.stderr.endswith(
        "fastload verify: error: unrecognized arguments: --no-such-option 3\n"
    )


def test_no_pictures_are_no_demo() -> None:
    result = run("demo", "--images", "0")
    assert result.returncode == 2
    assert result.stderr.endswith("argument --images: '0': expected a number, 1 or more\n")


def test_pack_says_what_it_takes_the_source_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_image(tmp_path / "a.jpg")
    (tmp_path / "list.csv").write_text("name,x,y\na.jpg,1.5,2\n")
    assert main(["pack", str(tmp_path), str(tmp_path / "packed"), "--points", "corner=x,y"]) == 0
    assert capsys.readouterr().err == f"{tmp_path}: lists, with name: image, corner: points\n"
    assert main(["pack", str(tmp_path / "list.csv"), str(tmp_path / "again"), "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_selftest_names_the_stages_that_can_be_asked_for() -> None:
    shown = " ".join(run("selftest", "--help").stdout.split())
    assert "only this one of decode, engine," in shown
    assert "(environment is always told)" in shown


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (fastload.ConfigError("seed 'x': expected a number"), 2),
        (fastload.StoreError("disk full"), 1),
        (KeyboardInterrupt(), 130),
        (PermissionError(13, "Permission denied", "x.json"), 1),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    error: BaseException,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_run", fail)
    assert main(["demo"]) == code
    assert len(capsys.readouterr().err.splitlines()) == 1
    if isinstance(error, Exception):
        with pytest.raises(type(error)):
            main(["demo", "--debug"])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MiB", 512 * 2**20),
        ("8 MB", 8_000_000),
        ("100000", 100_000),
        ("1.5k", 1500),
        ("2Gi", 2**31),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert byte_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "12q", "1e999"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a size"):
        byte_size(text)


def test_bytes_for_people() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1536, 3 * 2**40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3072.0 GiB",
    ]
