"""What the three callbacks share: stages that begin in one hook and end in another, and events whose end only shows later."""

from __future__ import annotations

import os

from fastload._tools.monitor.clocks import Stage, clock
from fastload._tools.monitor.recorder import Recorder


class Marks:
    """A recorder driven by hooks; ``start`` must have been called before the others do anything."""

    def __init__(self, out: str | os.PathLike[str], every: int) -> None:
        self._out, self._every = os.fspath(out), every
        self.recorder: Recorder | None = None
        self._stages: dict[str, Stage] = {}
        self._stage: Stage | None = None
        self._events: dict[str, float] = {}

    def start(self, done: int) -> None:
        """Training begins, ``done`` steps after the run's beginning."""
        self.close()
        self.recorder = Recorder(
            self._out, every=self._every, start=done, device="auto", samples=None
        )
        self._stages = {}

    def mark(self) -> None:
        """The step may end here: nothing but waiting for data follows, or another mark."""
        if self.recorder is not None:
            self.recorder.mark()

    def arrived(self, batch: object, *, samples: int | None = None, loader: object = None) -> None:
        """A batch is here."""
        if self.recorder is not None:
            self.recorder.loader.look_at(loader)
            self.recorder.arrived(batch, samples=samples)

    def stage(self, name: str | None) -> None:
        """The stage that was going on ends, and this one begins."""
        if self._stage is not None:
            self._stage.__exit__(None, None, None)
            self._stage = None
        if name is not None and self.recorder is not None:
            self._stage = self._stages.setdefault(name, Stage(name, self.recorder))
            self._stage.__enter__()

    def event_began(self, name: str, *, with_mark: bool = False) -> None:
        """It began now, or with the last mark, and ends with ``event_ended``."""
        if self.recorder is not None:
            self._events.setdefault(name, self.recorder.marked if with_mark else clock())

    def event_ended(self, name: str) -> None:
        """Writes the event, if it had begun, and marks."""
        if self.recorder is not None:
            begun = self._events.pop(name, None)
            if begun is not None:
                self.recorder.event(name, clock() - begun)
            self.recorder.mark()

    def finish(self) -> None:
        """Training is over: the last step ended with the last mark."""
        if self.recorder is not None:
            self.recorder.end()
        self.close()

    def close(self) -> None:
        """Writes what is left; a step that did not come to its end does not count."""
        self.stage(None)
        self._events.clear()
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None
