"""README's list of what no GPU has run is that code, and there is no other code that only a GPU could run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = "<!-- fastload/_common/cuda.py: function, statements -->"


def statements(function: ast.FunctionDef) -> int:
    """Without its docstring."""
    inside = [
        node for part in function.body for node in ast.walk(part) if isinstance(node, ast.stmt)
    ]
    return len(inside) - (ast.get_docstring(function) is not None)


def functions() -> dict[str, int]:
    """Every function of fastload/_common/cuda.py, and how many statements it has."""
    found = {}
    for node in ast.parse((ROOT / "fastload" / "_common" / "cuda.py").read_text()).body:
        for each in (
            [node]
            if isinstance(node, ast.FunctionDef)
            else node.body
            if isinstance(node, ast.ClassDef)
            else []
        ):
            if isinstance(each, ast.FunctionDef):
                found[each.name if each is node else f"{node.name}.{each.name}"] = statements(each)  # type: ignore[attr-defined]
    return found


def as_text(found: dict[str, int]) -> str:
    lines, line = [], ""
    for name, count in found.items():
        word = f"`{name}` {count}"
        if len(line) + len(word) > 150:
            lines.append(line + ",")
            line = ""
        line += f", {word}" if line else word
    return "\n".join([*lines, f"{line}: {sum(found.values())} statements."])


def test_readme_lists_what_no_gpu_has_run() -> None:
    readme = (ROOT / "README.md").read_text()
    section = readme.split("## What no GPU has run yet\n", 1)[1].split("\n## ", 1)[0]
    listed = {
        name: int(count)
        for name, count in re.findall(r"`([\w.]+)` (\d+)", section.split(MARK, 1)[1])
    }
    expected = as_text(functions())
    assert listed == functions(), f"put this below {MARK} in README.md:\n\n{expected}\n"
    assert expected in section


def test_there_are_functions_to_list() -> None:
    assert functions()["CudaOutputLease.hold"] == 8
    assert functions()["CudaTransfer.receive"] == 5


def test_only_that_module_calls_cuda() -> None:
    """``is_available`` and ``is_initialized`` anybody may ask."""
    others = [path for path in (ROOT / "fastload").rglob("*.py") if path.name != "cuda.py"]
    calls = re.compile(r"torch\.cuda\.(?!is_available\b|is_initialized\b)\w+|\.cuda\(|cuda_stream=")
    found = {
        f"{path.relative_to(ROOT)}: {match}"
        for path in others
        for match in calls.findall(path.read_text())
    }
    assert not found
    assert len(others) > 100


def test_the_module_is_small() -> None:
    assert sum(functions().values()) < 130
