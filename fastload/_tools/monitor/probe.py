"""StepProbe: times a training loop and appends the figures to metrics.jsonl."""

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
    few steps late, because nobody waits for them.
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
        self._probe, self._loader = probe, loader

    def __iter__(self) -> Iterator[T]:
        recorder = self._probe.recorder
        recorder.drop()  # of a loop that was left by break
        recorder.loader.look_at(self._loader)
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
        self._probe, self._recorder, self._batches, self._first = (
            probe,
            probe.recorder,
            batches,
            True,
        )

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._first:  # the mark was set before the iterator was made
            self._first = False
        else:
            self._recorder.asked()
        batch = next(self._batches)
        self._recorder.arrived(batch)
        return batch


class Event:
    """``with`` this, how long something took is written to the file, also where it failed."""

    __slots__ = ("_begun", "_name", "_recorder")

    def __init__(self, name: str, recorder: Recorder) -> None:
        self._name, self._recorder, self._begun = name, recorder, 0.0

    def __enter__(self) -> None:
        self._begun = clock()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._recorder.event(self._name, clock() - self._begun)
