"""Compares the names in fastload/_core.pyi with the compiled module."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from fastload._common.native import core


def declared(stub: Path) -> set[str]:
    """Returns the public names at the top level of a stub."""
    names: set[str] = set()
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def main() -> int:
    module = core()
    if module is None:
        print("no native core: its types are not checked")
        return 0
    stub = declared(Path(__file__).parents[1] / "fastload" / "_core.pyi")
    built = {name for name in dir(module) if not name.startswith("_")}
    for name in sorted(stub ^ built):
        print(
            f"{name}: {'only in _core.pyi' if name in stub else 'missing from _core.pyi'}",
            file=sys.stderr,
        )
    return 1 if stub != built else 0


if __name__ == "__main__":
    raise SystemExit(main())
