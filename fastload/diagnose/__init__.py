"""Live diagnosis of any loader: ``fastload.diagnose(loader, step)``. See docs/diagnose.md.

The function has the package's own name. Whoever imports a module of the package first would find the package at ``fastload.diagnose``,
so the package can be called as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastload.diagnose.result import Diagnosis


class _Callable(ModuleType):
    def __call__(self, loader: Iterable[Any], step: Callable[[Any], object] | None = None, *, seconds: float = 60.0) -> Diagnosis:
        from fastload.diagnose.run import diagnose

        return diagnose(loader, step, seconds=seconds)


sys.modules[__name__].__class__ = _Callable
