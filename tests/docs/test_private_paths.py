"""No user document, example or message names a private module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doc_blocks import PAGES, name_of

ROOT = Path(__file__).resolve().parents[2]
PRIVATE = re.compile(r"\bfastload[./]_[a-z]\w*(?:[./]\w+)*")
# These are about the code itself.
ABOUT_THE_CODE = {"CONTRIBUTING.md", "docs/architecture.md"}
GPU_LIST = "## Code that no GPU has run yet\n"  # in docs/gpu.md; names fastload/_common/cuda.py


def without_gpu_list(text: str) -> str:
    before, _, rest = text.partition(GPU_LIST)
    return before + rest.partition("\n## ")[2]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if name_of(page) not in ABOUT_THE_CODE], ids=name_of
)
def test_user_documents_name_no_private_path(page: Path) -> None:
    assert PRIVATE.findall(without_gpu_list(page.read_text())) == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name
)
def test_examples_name_no_private_path(path: Path) -> None:
    assert PRIVATE.findall(path.read_text()) == []


def messages() -> Iterator[tuple[str, str]]:
    """Every string inside a raise, warning, log or print call of the package, with its place."""
    says = {"warn", "warning", "info", "error", "print", "write"}
    for path in sorted((ROOT / "fastload").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            called = getattr(node, "func", None)
            name = getattr(called, "attr", getattr(called, "id", ""))
            if isinstance(node, ast.Raise) or name in says:
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield f"{path.relative_to(ROOT)}:{part.lineno}", part.value


def test_messages_name_no_private_path() -> None:
    found = list(messages())
    assert len(found) > 500  # the search itself works
    assert [place for place, text in found if PRIVATE.search(text)] == []


def test_the_pattern_finds_private_paths() -> None:
    assert PRIVATE.findall("see fastload._load.loader and fastload/_common/cuda.py")
    assert not PRIVATE.findall("fastload.transforms, fastload/errors.py, fastload.__version__")
