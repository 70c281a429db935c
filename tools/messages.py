"""Lists every error, warning and log message of the package, to review them as one text.

python -m tools.messages                     # all of fastload/
python -m tools.messages fastload/_pack      # one package
python -m tools.messages --sample 20         # 20 picked with a fixed seed
python -m tools.messages --docstrings --sample 20
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEED = 20260728
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
LOGGERS = {"log", "logger", "_log", "_logger", "LOG", "logging"}


@dataclass(frozen=True)
class Message:
    """One message: where it is written, what shows it, and its text with ``{...}`` for values."""

    path: Path
    line: int
    shown_by: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.shown_by}: {self.text}"


def messages_in(path: Path) -> Iterator[Message]:
    """The messages of one file, in the order of its lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call):
            continue
        shown_by = "raise" if isinstance(node, ast.Raise) else _shown_by(call.func)
        text = " ".join(filter(None, (_text(argument) for argument in call.args)))
        if shown_by == "raise":
            shown_by = f"raise {ast.unparse(call.func)}"
        if shown_by and text:
            yield Message(path.relative_to(ROOT), call.lineno, shown_by, text)


def docstrings_in(path: Path) -> Iterator[Message]:
    """The docstrings of one file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                name = "module" if isinstance(node, ast.Module) else node.name
                yield Message(path.relative_to(ROOT), getattr(node, "lineno", 1), name, text)


def _shown_by(function: ast.expr) -> str:
    """ "warn" or "log.warning" for a call that shows its text, "" for any other call."""
    if not isinstance(function, ast.Attribute):
        return "warn" if isinstance(function, ast.Name) and function.id == "warn" else ""
    if function.attr == "warn":
        return "warn"
    owner = function.value
    if function.attr in LOG_METHODS and isinstance(owner, ast.Name) and owner.id in LOGGERS:
        return f"log.{function.attr}"
    if function.attr == "error" and isinstance(owner, ast.Name) and owner.id == "parser":
        return "usage error"
    return ""


def _text(node: ast.expr) -> str:
    """The text of a string expression; other expressions stand in braces."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.IfExp):
        return f"[{_text(node.body)} | {_text(node.orelse)}]"
    if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        return "{" + ast.unparse(node) + "}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="List messages or docstrings for a review.")
    parser.add_argument("paths", nargs="*", default=["fastload"], help="files or folders")
    parser.add_argument("--docstrings", action="store_true", help="list docstrings instead")
    parser.add_argument("--sample", type=int, metavar="N", help="only N, picked with a fixed seed")
    arguments = parser.parse_args()
    collect = docstrings_in if arguments.docstrings else messages_in
    found: list[Message] = []
    for given in arguments.paths:
        start = Path(given).resolve()
        files = sorted(start.rglob("*.py")) if start.is_dir() else [start]
        found += [each for path in files for each in collect(path)]
    if arguments.sample is not None:
        found = random.Random(SEED).sample(found, min(arguments.sample, len(found)))
    for message in found:
        print(message)
    print(f"{len(found)} listed", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
