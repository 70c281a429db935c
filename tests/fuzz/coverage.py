"""Measures which lines of a parser the inputs of a fuzz target execute."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from types import CodeType, FrameType
from typing import Any

from tests.fuzz.target import Target

Line = tuple[str, int]  # file, line number


def line_coverage(target: Target, inputs: Iterable[bytes]) -> tuple[float, set[Line]]:
    """Returns the share of the parser's lines that the inputs execute, and the other lines.

    Lines in functions count: those of classes and modules run at import.
    """
    counted = {line for each in target.modules for line in _lines_of(each, target.skipped)}
    files = {file for file, _ in counted}
    seen: set[Line] = set()

    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        seen.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for data in inputs:
            target.run(data)
    finally:
        sys.settrace(before)
    return len(seen & counted) / len(counted), counted - seen


def _lines_of(place: str, skipped: tuple[str, ...]) -> Iterator[Line]:
    """Yields the lines of a module, or of one function in it ("module:Class.method")."""
    name, _, only = place.partition(":")
    file = str(importlib.import_module(name).__file__)
    with open(file, encoding="utf-8") as text:
        module = compile(text.read(), file, "exec")
    for function, code in _functions(module, ""):
        is_skipped = any(_is_in(function, pattern) for pattern in skipped)
        if not is_skipped and (not only or _is_in(function, only)):
            yield from ((file, line) for *_, line in code.co_lines() if line)


def _is_in(function: str, pattern: str) -> bool:
    """Returns whether the pattern matches a function or the class or function around it."""
    return fnmatchcase(function, pattern) or fnmatchcase(function, f"{pattern}.*")


def _functions(code: CodeType, inside: str) -> Iterator[tuple[str, CodeType]]:
    """Yields name (Class.method) and code of all functions; comprehensions belong to them."""
    for each in code.co_consts:
        if isinstance(each, CodeType) and (inside or not each.co_name.startswith("<")):
            name = f"{inside}{each.co_name}"
            if each.co_flags & 2:  # CO_NEWLOCALS: a function, not a class
                yield name, each
            yield from _functions(each, f"{name}.")
