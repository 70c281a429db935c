"""Who spends the time: nested stages, each counted without what runs inside it."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class StageClock:
    """Counts the thread that started it, between ``start`` and ``stop``; everybody else's calls pass unseen.

    A stage's time is its own: a file read inside a decode is reading, not decoding.
    """

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self.inside: list[str] = []  # names of the stages that are open
        self._began: list[float] = []
        self._inner: list[float] = []  # seconds of the stages within each open one
        self._thread: int | None = None

    def start(self) -> None:
        """From now on calls of this thread count."""
        self.inside, self._began, self._inner = [], [], [0.0]
        self._thread = threading.get_ident()

    def stop(self) -> None:
        """They no longer do."""
        self._thread = None

    @property
    def counts(self) -> bool:
        """Whether a call here and now is counted."""
        return self._thread == threading.get_ident()

    def enter(self, name: str) -> None:
        """A stage begins."""
        self.inside.append(name)
        self._inner.append(0.0)
        self._began.append(time.perf_counter())

    def leave(self) -> None:
        """The newest stage ends."""
        seconds = time.perf_counter() - self._began.pop()
        name, inner = self.inside.pop(), self._inner.pop()
        self.totals[name] = self.totals.get(name, 0.0) + max(0.0, seconds - inner)
        self._inner[-1] += seconds

    def taken(self) -> dict[str, float]:
        """The totals since the last call."""
        totals, self.totals = self.totals, {}
        return totals

    def counted(self, stage: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function, counted as ``stage``."""
        if not self.counts:
            return function(*args, **kwargs)
        self.enter(stage)
        try:
            return function(*args, **kwargs)
        finally:
            self.leave()

    def timed(
        self,
        original: Callable[P, R],
        stage: str,
        *,
        unless_in: str = "",
        see: Callable[..., None] | None = None,
    ) -> Callable[P, R]:
        """The same function, counted as ``stage`` (as its surroundings, inside ``unless_in``); ``see`` is shown its arguments."""

        @functools.wraps(
            original, assigned=("__name__", "__qualname__", "__doc__", "__module__"), updated=()
        )
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not self.counts or (
                unless_in and any(name.startswith(unless_in) for name in self.inside)
            ):
                return original(*args, **kwargs)
            if see is not None:
                see(*args)
            return self.counted(stage, original, *args, **kwargs)

        return call
