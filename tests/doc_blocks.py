"""Finds the fenced code blocks of the documents and runs their commands in this process."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from fastload._cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^(`{3,}|~{3,})[ ]*([^\n`]*)\n(.*?)^\1[ ]*$", re.S | re.M)


@dataclass(frozen=True, slots=True)
class Block:
    page: str  # path relative to the root
    number: int  # on the page, from 0
    language: str
    text: str

    def __str__(self) -> str:
        first = self.text.splitlines()[0] if self.text.strip() else ""
        return f"{self.page}, block {self.number} ({self.language or 'no language'}): {first[:60]}"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(name: str, text: str) -> list[Block]:
    """The blocks of a page. Raises ValueError for an indented or unclosed fence."""
    blocks = [
        Block(name, number, language.strip(), body)
        for number, (_, language, body) in enumerate(FENCE.findall(text))
    ]
    if len(re.findall(r"^\s*(?:`{3,}|~{3,})", text, re.M)) != 2 * len(blocks):
        raise ValueError(f"{name}: a block is indented or not closed")
    return blocks


def run_python(block: Block, names: dict[str, object], changes: Mapping[str, str]) -> None:
    """Runs a block after ``changes`` made it small enough for a test."""
    exec(compile(changed(block, changes), str(block), "exec"), names)


def run_shell(
    block: Block,
    changes: Mapping[str, str],
    *,
    more: Mapping[str, str] | None = None,
    expected: int = 0,
) -> int:
    """Runs a block line by line and returns the number of commands.

    ``more``: extra arguments for commands that contain the key.
    """
    done = 0
    lines = changed(block, changes).splitlines()
    # If there are prompts, the other lines are output.
    shown = [line[2:] for line in lines if line.startswith("$ ")] or lines
    for line in shown:
        for command in re.split(r"&&", line.partition(" #")[0]):
            words = shlex.split(command)
            for key, extra in (more or {}).items():
                words += shlex.split(extra) if key in command else []
            if words:
                assert run_command(words) == expected, " ".join(words)
                done += 1
    return done


def run_command(words: list[str]) -> int:
    """Runs one command and returns its exit code. Fails for commands that no page shows."""
    if words[0] == "fastload":
        return main(words[1:])
    if words[:2] == ["python", "-m"]:
        return _module(words[2], words[3:])
    if words[0] == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words[1:]]
        return subprocess.run(command, capture_output=True, timeout=900, check=False).returncode
    if words[0] == "make":  # checks only that the target exists
        return subprocess.run(
            ["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, timeout=300, check=False
        ).returncode
    raise AssertionError(
        f"a page shows {' '.join(words)!r}: add it to run_command in tests/doc_blocks.py"
    )


def _module(name: str, words: list[str]) -> int:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # another test may have imported it
        patch.setattr(sys, "argv", [name, *words])
        try:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def changed(block: Block, changes: Mapping[str, str]) -> str:
    """Applies regular-expression replacements; each must match, so that pages and tests agree."""
    text = block.text
    for old, new in changes.items():
        assert re.search(old, text), f"{block}: no {old!r}"
        text = re.sub(old, new, text)
    return text
