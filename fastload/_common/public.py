"""Marks public objects, so that messages, reprs and pickles name the public module."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def public(module: str = "fastload") -> Callable[[T], T]:
    """Returns a decorator that sets ``__module__`` of a class or function.

    Place it above ``@dataclass``, because dataclasses look up ``ClassVar`` in the module of the
    class.
    """

    def mark(exported: T) -> T:
        exported.__module__ = module
        return exported

    return mark
