"""A backend is one module and one line of the registry; no other code compares its name."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from fastload._decode.registry import (
    AUTO,
    BACKENDS,
    GPU_BACKENDS,
    default_cpu_backend,
    find_backend,
)
from fastload.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def name_comparisons(source: str) -> list[int]:
    """Returns the lines that compare a value with a backend name, alone or in a tuple."""

    def names(node: ast.AST) -> bool:
        literals = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
        return any(value in BACKENDS for value in literals if isinstance(value, str))

    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            found += [node.lineno] if any(map(names, (node.left, *node.comparators))) else []
        elif isinstance(node, ast.MatchValue):
            found += [node.lineno] if names(node) else []
    return found


@pytest.mark.parametrize(
    "line",
    [
        'x == "native"',
        'x.choice.name != "reference"',
        'x in ("dali", "nvjpeg")',
        '"dali" == x',
        "match x:\n    case 'nvjpeg': pass",
    ],
)
def test_the_scan_finds_comparisons(line: str) -> None:
    assert name_comparisons(line)
    assert not name_comparisons('x = "native"\ny == "auto"\nf("dali")')


def test_no_module_compares_backend_names() -> None:
    paths = sorted((ROOT / "fastload").rglob("*.py"))
    assert len(paths) > 100
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in paths
        for line in name_comparisons(path.read_text())
    ]
    assert not found, "give the backend an attribute instead"


@pytest.mark.parametrize("name", BACKENDS)
def test_an_entry_loads_its_class(name: str) -> None:
    entry = find_backend(name)
    backend = entry.load()
    assert backend.name == entry.name == name
    assert entry.on_gpu == (name in GPU_BACKENDS)


def test_unknown_names_raise() -> None:
    for name in ("cuda", "", AUTO):
        with pytest.raises(ConfigError, match="expected one of auto, native, dali, nvjpeg"):
            find_backend(name)


@pytest.mark.parametrize("native", ["on", "off"])
def test_the_default_is_the_first_available_cpu_backend(
    native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "" if native == "on" else "not built"
    monkeypatch.setattr(BACKENDS["native"].load(), "missing", lambda device, hardware=False: why)
    assert default_cpu_backend().name == ("native" if native == "on" else "reference")


def test_reading_the_names_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, fastload._decode.registry as r; "
        "print(sorted({'torch', 'numpy'} & set(sys.modules)), *r.BACKENDS)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["[]", *BACKENDS]
