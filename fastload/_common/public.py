"""Marks what users import, so that messages, reprs and pickles name the public module."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def public(module: str = "fastload") -> Callable[[T], T]:
    """A decorator that makes a class or function report ``module`` as its ``__module__``.

    It stands above ``@dataclass``: dataclasses look up ``ClassVar`` in the module of the class.
    """

    def mark(exported: T) -> T:
        exported.__module__ = module
        return exported

    return mark
