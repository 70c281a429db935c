"""docs/gpu.md lists every function of fastload/_common/cuda.py, and no other module calls CUDA."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gpu.md"
HEADING = "## Code that no GPU has run yet\n"
MARK = "<!-- fastload/_common/cuda.py: function, statements -->"


def statements(function: ast.FunctionDef) -> int:
    """Number of statements in the body, without the docstring."""
    inside = [
        node for part in function.body for node in ast.walk(part) if isinstance(node, ast.stmt)
    ]
    return len(inside) - (ast.get_docstring(function) is not None)


def functions() -> dict[str, int]:
    """Statements of each function in fastload/_common/cuda.py."""
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
        if len(line) + len(word) > 96:
            lines.append(line + ",")
            line = ""
        line += f", {word}" if line else word
    return "\n".join([*lines, f"{line}: {sum(found.values())} statements."])


def test_page_lists_every_function_that_no_gpu_has_run() -> None:
    section = PAGE.read_text().split(HEADING, 1)[1].split("\n## ", 1)[0]
    listed = {
        name: int(count)
        for name, count in re.findall(r"`([\w.]+)` (\d+)", section.split(MARK, 1)[1])
    }
    expected = as_text(functions())
    assert listed == functions(), f"write this below {MARK} in docs/gpu.md:\n\n{expected}\n"
    assert expected in section


def test_there_are_functions_to_list() -> None:
    assert functions()["CudaOutputLease.hold"] == 8
    assert functions()["CudaTransfer.receive"] == 5


def test_only_that_module_calls_cuda() -> None:
    """Only ``is_available`` and ``is_initialized`` are allowed everywhere."""
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
