"""The command line's manners: help, version, exit codes, one-line errors."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

import fastload
from fastload import cli
from fastload.cli import COMMANDS, main
from fastload.cli.options import byte_size, human_bytes


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fastload", *words], capture_output=True, text=True, check=False)


def test_help_names_every_command_and_each_shows_an_example() -> None:
    listing = run("--help")
    assert listing.returncode == 0
    for name in COMMANDS:
        assert f"  {name} " in listing.stdout
        shown = run(name, "--help")
        assert shown.returncode == 0
        assert f"fastload {name} " in shown.stdout.split("Example:")[1], f"{name} --help shows no example"


def test_no_command_prints_the_help_and_exits_with_2() -> None:
    result = run()
    assert result.returncode == 2
    assert "COMMAND" in result.stdout


def test_version_says_whether_the_native_core_is_here() -> None:
    result = run("--version")
    assert result.returncode == 0
    assert result.stdout.splitlines() == [f"fastload {fastload.__version__}", str(fastload.native_status())]


@pytest.mark.parametrize("words", [["no-such-command"], ["demo", "--no-such-option"]])
def test_wrong_use_exits_with_2_and_says_what(words: list[str]) -> None:
    result = run(*words)
    assert result.returncode == 2
    assert words[-1] in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("error", "code"), [(fastload.ConfigError("seed 'x': expected a number"), 2),
                                             (fastload.StoreError("disk full"), 1), (KeyboardInterrupt(), 130)])
def test_errors_are_one_line_and_an_exit_code(error: BaseException, code: int, capsys: pytest.CaptureFixture[str],
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_run", fail)
    assert main(["demo"]) == code
    assert len(capsys.readouterr().err.splitlines()) == 1
    if isinstance(error, fastload.FastloadError):
        with pytest.raises(type(error)):
            main(["demo", "--debug"])


@pytest.mark.parametrize(("text", "size"), [("512MiB", 512 * 2**20), ("8 MB", 8_000_000), ("100000", 100_000), ("1.5k", 1500),
                                            ("2Gi", 2**31)])
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert byte_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "12q", "1e999"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a size"):
        byte_size(text)


def test_bytes_for_people() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1536, 3 * 2**40)] == ["0 B", "1023 B", "1.5 KiB", "3072.0 GiB"]
