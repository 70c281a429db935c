"""StepProbe times a training loop; HookTimer does the same from the hooks of a framework."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Generic, TypeVar

from fastload._common.public import public
from fastload._tools.monitor.recorder import Recorder, Stage, clock

T = TypeVar("T")


@public()
class StepProbe:
    """Times the steps of a training loop over any loader and logs them to ``metrics.jsonl``.

    A row is written with its last step and survives ``kill -9`` from then on. Leaving the ``with``
    block, or the end of the program, writes the remaining steps. On a GPU, stage times are CUDA
    events. They appear a few steps late, because the probe never waits for the GPU.

    Args:
        out: File to append to. All ranks on a machine may share one file. ``{rank}`` in the name
            is replaced by the rank; use it if machines share a network folder. Default:
            "metrics.jsonl".
        every: Steps per row. Default: 10.
        start: Steps completed before, for a resumed run. Default: 0.
        device: Clock of the stage times: "cuda" (CUDA events), "cpu", or "auto" (CUDA events once
            the program uses CUDA). Default: "auto".
        samples: Returns the number of samples in a batch. Default: the first dimension of the
            first tensor.

    Raises:
        ConfigError: An argument is invalid, or the file cannot be opened.

    Examples:
        >>> with fastload.StepProbe("metrics.jsonl") as probe:
        ...     for images, labels in probe.watch(loader):
        ...         with probe.stage("forward"):
        ...             loss = criterion(model(images), labels)
        ...         if probe.iter % 1000 == 999:
        ...             with probe.event("checkpoint"):
        ...                 save(model)
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
        self._closing = weakref.finalize(self, self.recorder.close)

    @property
    def iter(self) -> int:
        """Completed steps, including ``start``."""
        return self.recorder.done

    def watch(self, loader: Iterable[T]) -> Watched[T]:
        """Wraps a loader so that its batches are timed.

        Args:
            loader: Any iterable of batches.

        Returns:
            An iterable with the attributes of ``loader``. It can be iterated as often.
        """
        return Watched(self, loader)

    def stage(self, name: str) -> Stage:
        """Returns a context that times a part of the step.

        Args:
            name: Any name. The usual names are "to_device", "forward", "loss", "backward" and
                "optimizer".
        """
        return self.recorder.stage(name)

    @contextlib.contextmanager
    def event(self, name: str) -> Iterator[None]:
        """Returns a context that writes its duration as a row, even if it raises.

        Args:
            name: For example "checkpoint" or "evaluation".
        """
        started = clock()
        try:
            yield
        finally:
            self.recorder.event(name, clock() - started)

    def close(self) -> None:
        """Writes the last row.

        A step counts when the next batch is requested or the loader is exhausted.
        """
        self._closing()

    def __enter__(self) -> StepProbe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Watched(Generic[T]):
    """A loader whose batches are timed. Other attributes are those of the loader."""

    def __init__(self, probe: StepProbe, loader: Iterable[T]) -> None:
        self._probe = probe
        self._loader = loader

    def __iter__(self) -> Iterator[T]:
        recorder = self._probe.recorder
        recorder.drop()  # the step of a loop that was left by break
        recorder.loader.track(self._loader)
        recorder.mark()  # the time to start the loader's workers counts as waiting
        return _Steps(self._probe, iter(self._loader))

    def __len__(self) -> int:
        if isinstance(self._loader, Sized):
            return len(self._loader)
        raise TypeError(f"object of type {type(self._loader).__name__!r} has no len()")

    def __getattr__(self, name: str) -> Any:  # Any: the type of the loader's attribute
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class _Steps(Generic[T]):
    """An iterator without a reference to a batch.

    A generator would keep the last batch alive while the next one is built.
    """

    def __init__(self, probe: StepProbe, batches: Iterator[T]) -> None:
        self._probe = probe  # keeps the probe alive, which writes the last row when it is freed
        self._batches = batches
        self._first = True

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        recorder = self._probe.recorder
        if self._first:  # Watched.__iter__ has set the mark
            self._first = False
        else:
            recorder.request()
        batch = next(self._batches)
        recorder.arrived(batch)
        return batch


class HookTimer:
    """Drives a recorder from the hooks of a framework. Hooks before ``start`` have no effect."""

    def __init__(self, out: str | os.PathLike[str], every: int) -> None:
        self._out = os.fspath(out)
        self._every = every
        self.recorder: Recorder | None = None
        self._stage: Stage | None = None
        self._events: dict[str, float] = {}

    def start(self, done: int) -> None:
        """Starts to record. ``done`` steps of the run were completed before."""
        self.close()
        self.recorder = Recorder(
            self._out, every=self._every, start=done, device="auto", samples=None
        )

    def mark(self) -> None:
        """Records a possible end of the step. Only waiting or another mark follows."""
        if self.recorder is not None:
            self.recorder.mark()

    def arrived(self, batch: object, *, samples: int | None = None, loader: object = None) -> None:
        """Starts the step of ``batch``."""
        if self.recorder is not None:
            self.recorder.loader.track(loader)
            self.recorder.arrived(batch, samples=samples)

    def stage(self, name: str | None) -> None:
        """Ends the current stage and starts stage ``name``."""
        if self._stage is not None:
            self._stage.__exit__()
            self._stage = None
        if name is not None and self.recorder is not None:
            self._stage = self.recorder.stage(name)
            self._stage.__enter__()

    def begin_event(self, name: str, *, at_mark: bool = False) -> None:
        """Starts an event now, or retroactively at the last mark."""
        if self.recorder is not None:
            self._events.setdefault(name, self.recorder.marked if at_mark else clock())

    def end_event(self, name: str) -> None:
        """Writes the event, if it has started, and sets a mark."""
        if self.recorder is not None:
            begun = self._events.pop(name, None)
            if begun is not None:
                self.recorder.event(name, clock() - begun)
            self.recorder.mark()

    def finish(self) -> None:
        """Ends the last step at the last mark and writes the last row."""
        if self.recorder is not None:
            self.recorder.end()
        self.close()

    def close(self) -> None:
        """Writes the last row without the open step."""
        self.stage(None)
        self._events.clear()
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None
