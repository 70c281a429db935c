"""Every command has examples, --json, exit codes, one-line errors and progress."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastload
from fastload import _cli as cli
from fastload._cli import COMMANDS, main, parser
from fastload._cli.shared import ProgressLine, byte_size
from tests.source_contract import put_image


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fastload", *words], capture_output=True, text=True, check=False
    )


def all_commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Returns the parser of every command and subcommand by name."""

    def walk(
        words: str, command: argparse.ArgumentParser
    ) -> Iterator[tuple[str, argparse.ArgumentParser]]:
        inner = [each for each in command._actions if isinstance(each, argparse._SubParsersAction)]
        if not inner:
            yield words, command
        for name, each in inner[0].choices.items() if inner else ():
            yield from walk(f"{words} {name}".strip(), each)

    yield from walk("", parser())


EVERY_COMMAND = dict(all_commands())


def examples(command: argparse.ArgumentParser) -> list[str]:
    listed = (command.epilog or "").split("Example: ")[1].split("\n\n")[0]
    return [line.strip() for line in listed.splitlines()]


def test_help_names_every_command() -> None:
    listing = run("--help")
    assert listing.returncode == 0
    for name in COMMANDS:
        assert f"  {name} " in listing.stdout
    assert {words.split()[0] for words in EVERY_COMMAND} == set(COMMANDS)


@pytest.mark.parametrize("words", EVERY_COMMAND)
def test_help_shows_examples_that_the_parser_accepts(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    for example in examples(EVERY_COMMAND[words]):
        assert example in shown
        assert example.startswith(f"fastload {words} ")
        parser().parse_args(shlex.split(example)[1:])


@pytest.mark.parametrize("words", EVERY_COMMAND)
def test_every_command_can_print_json(words: str) -> None:
    assert "--json" in EVERY_COMMAND[words].format_help()


@pytest.mark.parametrize("words", EVERY_COMMAND)
def test_every_command_rejects_unknown_options_with_its_own_usage(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    example = shlex.split(examples(EVERY_COMMAND[words])[0])[1:]
    assert main([*example, "--no-such-option"]) == 2
    error = capsys.readouterr().err
    assert "unrecognized arguments: --no-such-option" in error.splitlines()[-1]
    assert error.startswith(f"usage: fastload {words.split()[0]} ")


def test_no_command_prints_the_help_and_exits_with_2() -> None:
    result = run()
    assert result.returncode == 2
    assert "COMMAND" in result.stdout


def test_version_prints_the_status_of_the_native_core() -> None:
    result = run("--version")
    assert result.returncode == 0
    assert result.stdout.splitlines() == [
        f"fastload {fastload.__version__}",
        str(fastload.native_status()),
    ]


@pytest.mark.parametrize("words", [["no-such-command"], ["demo", "--no-such-option"]])
def test_wrong_usage_exits_with_2_and_names_the_argument(words: list[str]) -> None:
    result = run(*words)
    assert result.returncode == 2
    assert words[-1] in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_option_shows_the_usage_of_its_command() -> None:
    result = run("verify", "packed", "--no-such-option", "3")
    assert result.stderr.startswith("usage: fastload verify ")
    assert result.stderr.endswith(
        "fastload verify: error: unrecognized arguments: --no-such-option 3\n"
    )


def test_demo_with_zero_images_is_a_usage_error() -> None:
    result = run("demo", "--images", "0")
    assert result.returncode == 2
    assert result.stderr.endswith("argument --images: '0': expected an integer, 1 or more\n")


def test_pack_prints_the_detected_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "photos"
    put_image(root / "a.jpg")
    (root / "list.csv").write_text("name,x,y\na.jpg,1.5,2\n")
    assert main(["pack", str(root), str(tmp_path / "packed"), "--points", "corner=x,y"]) == 0
    assert capsys.readouterr().err == f"{root}: format lists, fields name: image, corner: points\n"
    assert main(["pack", str(root / "list.csv"), str(tmp_path / "again"), "--json"]) == 0
    assert capsys.readouterr().err == ""


def test_selftest_help_lists_the_stages() -> None:
    shown = " ".join(run("selftest", "--help").stdout.split())
    assert "run only this stage: decode, engine," in shown
    assert "(environment always runs)" in shown


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (fastload.ConfigError("seed 'x': expected a number"), 2),
        (fastload.StoreError("disk full"), 1),
        (KeyboardInterrupt(), 130),
        (PermissionError(13, "Permission denied", "x.json"), 1),
        (ValueError("a fault of ours\nin two lines"), 1),
    ],
)
def test_errors_print_one_line_and_set_the_exit_code(
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
def test_byte_sizes_accept_common_units(text: str, size: int) -> None:
    assert byte_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "12q", "1e999"])
def test_invalid_byte_sizes_are_rejected(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a size"):
        byte_size(text)


def test_progress_is_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine("packing", every_s=0.0) as line:
        line.update(4, 10, "2 skipped")
        line.update(5, 20)
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"\d+ s\b", "N s", each) for each in lines] == [
        "packing: 4 of 10 (40 %), N s, 2 skipped",
        "packing: 5 of 20 (25 %), N s",
    ]


def test_progress_is_a_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressLine("packing") as line:
        line.update(10, 10)
    shown = capsys.readouterr().err
    assert "packing" in shown
    assert "10/10" in shown


def test_json_is_not_disturbed_by_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine("packing", every_s=0.0, quiet=True) as line:
        line.update(4, 10)
    assert capsys.readouterr().err == ""


def test_demo_prints_the_result_of_every_step_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--dest", str(tmp_path / "demo"), "--images", "64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["dest"] == str(tmp_path / "demo")
    commands = [name.split()[1] for name in found if name.startswith("fastload ")]
    assert commands == ["pack", "verify", "inspect", "inspect", "bench", "report"]
    assert [each["loader"] for each in found["training"]] == ["torch", "fastload"]
    assert found["epochs"][0]["n_images"] > 0
    assert (tmp_path / "demo" / "report.html").exists()
