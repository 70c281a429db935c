"""StepProbe: times a training loop and appends the figures to metrics.jsonl; Marks is the same for the hooks of a framework."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sized
from types import TracebackType
from typing import Any, Generic, TypeVar

from fastload._common.public import public
from fastload._tools.monitor.clocks import Stage, clock
from fastload._tools.monitor.recorder import Recorder

T = TypeVar("T")


@public()
class StepProbe:
    """Times the steps of a training loop over any loader; appends a row to ``out`` for every ``every`` of them.

        with fastload.StepProbe("metrics.jsonl") as probe:
            for images, labels in probe.watch(loader):
                with probe.stage("forward"):
                    ...
                with probe.event("checkpoint"):
                    ...

    All ranks on a machine may write to one file; ``{rank}`` in the name gives each its own (needed where ranks on several machines
    share a network folder). ``start`` is the number of steps done before, for a run that goes on. ``samples(batch)`` counts a
    batch whose first tensor's first axis is not the number of samples. A row is written, whole, with its last step, and is safe from
    then on; leaving the ``with`` block, or the program's end, writes the rest. On a GPU stage times are the GPU's own and come a
    few steps late, because the probe never waits for the GPU.
    """

    def __init__(
        self,
        out: str | os.PathLike[str] = "metrics.jsonl",
        *,
        every: int = 10,
        start: int = 0,
        device: str = "auto",
        samples: Callable[[object], int | None] | None = None,
    ) -> None:
        self.recorder = Recorder(
            os.fspath(out), every=every, start=start, device=device, samples=samples
        )
        self._stages: dict[str, Stage] = {}
        self._closing = weakref.finalize(self, self.recorder.close)

    @property
    def iter(self) -> int:
        """Steps that are over, ``start`` included."""
        return self.recorder.done

    def watch(self, loader: Iterable[T]) -> Watched[T]:
        """The loader, timed. Iterate it as often as the loader itself; its attributes are the loader's."""
        return Watched(self, loader)

    def stage(self, name: str) -> Stage:
        """``with probe.stage("forward"):`` times a part of the step; to_device, forward, loss, backward, optimizer are the usual ones."""
        found = self._stages.get(name)
        if found is None:
            found = self._stages[name] = Stage(name, self.recorder)
        return found

    def event(self, name: str) -> Event:
        """``with probe.event("checkpoint"):`` writes a row of its own, so that a stall has a name."""
        return Event(name, self.recorder)

    def close(self) -> None:
        """Writes the last row. A step counts once the next batch is asked for, or the loader is at its end."""
        self._closing()

    def __enter__(self) -> StepProbe:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Watched(Generic[T]):
    """A loader whose batches are timed; everything else goes to the loader."""

    def __init__(self, probe: StepProbe, loader: Iterable[T]) -> None:
        self._probe = probe
        self._loader = loader

    def __iter__(self) -> Iterator[T]:
        recorder = self._probe.recorder
        recorder.drop()  # of a loop that was left by break
        recorder.loader.track(self._loader)
        recorder.mark()  # starting a DataLoader's workers is waiting, too
        return _Steps(self._probe, iter(self._loader))

    def __len__(self) -> int:
        if isinstance(self._loader, Sized):
            return len(self._loader)
        raise TypeError(f"object of type {type(self._loader).__name__!r} has no len()")

    def __getattr__(self, name: str) -> Any:  # Any: whatever the loader has
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class _Steps(Generic[T]):
    """An iterator that keeps no batch: a generator would hold the last one while the next is made."""

    def __init__(self, probe: StepProbe, batches: Iterator[T]) -> None:
        self._probe = probe
        self._recorder = probe.recorder
        self._batches = batches
        self._first = True

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._first:  # the mark was set before the iterator was made
            self._first = False
        else:
            self._recorder.request()
        batch = next(self._batches)
        self._recorder.arrived(batch)
        return batch


class Event:
    """``with`` this, how long something took is written to the file, also where it failed."""

    __slots__ = ("_begun", "_name", "_recorder")

    def __init__(self, name: str, recorder: Recorder) -> None:
        self._name = name
        self._recorder = recorder
        self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = clock()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._recorder.event(self._name, clock() - self._begun)


class Marks:
    """A recorder driven by hooks; ``start`` must have been called before the others do anything."""

    def __init__(self, out: str | os.PathLike[str], every: int) -> None:
        self._out = os.fspath(out)
        self._every = every
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
            self.recorder.loader.track(loader)
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
