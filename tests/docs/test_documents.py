"""Documents: links lead to files, code blocks parse, commands exist."""

from __future__ import annotations

import ast
import doctest
import re
from pathlib import Path

import pytest

from fastload._cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_are_python(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        examples = doctest.DocTestParser().get_examples(block) if ">>>" in block else []
        for source in [example.source for example in examples] or [block]:
            ast.parse(source)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_shown_exist(page: Path) -> None:
    for block in re.findall(r"```(?:sh|bash|console)?\n(.*?)```", page.read_text(), re.S):
        for word in re.findall(r"^\$? ?fastload ([a-z]+)", block, re.M):
            assert word in COMMANDS, f"{page.name} shows 'fastload {word}'"


def test_troubleshooting_quotes_existing_messages() -> None:
    source = "\n".join(
        path.read_text()
        for path in [*(ROOT / "fastload").rglob("*.py"), *(ROOT / "native").rglob("*.cpp")]
    )
    quoted = re.findall(r'^\*\*"([^"]+)"', (ROOT / "docs/troubleshooting.md").read_text(), re.M)
    assert len(quoted) >= 7
    assert [text for text in quoted if text not in source] == []


def test_the_files_that_architecture_names_exist() -> None:
    named = re.findall(
        r"`(fastload/[\w./]+|native/[\w./]*)`", (ROOT / "docs/architecture.md").read_text()
    )
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []
