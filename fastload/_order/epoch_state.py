"""The state machine that tracks the epochs of a loader.

It decides which epoch the next iteration loads and at which batch that iteration starts. fastload's
own order (``RankOrder``) and the samplers of users (``SamplerOrder``) share it.

::

    any state ── restore, inside an epoch ───► RESUMING ─┐
                                                         │ begin
                                                         ▼
    any state ── ended, set_epoch, ──► READY ── begin ──► STARTED ── delivered ──► RUNNING ─┐
                 restore, epoch start                                                 ▲     │
                                                                                      └─────┘
                                                                                     delivered

States:

- READY: the next iteration loads epoch ``next_epoch`` from its first batch.
- RESUMING: the next iteration continues inside an epoch.
- STARTED: ``iter()`` was called, but the trainer has not received a batch.
- RUNNING: the trainer has received at least one batch of the iteration.

Transitions:

- ``begin`` (the trainer calls ``iter()``) returns the next pass and leads to STARTED. A *pass* is
  one iteration over an epoch, or over the rest of an epoch.
- ``delivered`` (the trainer received a batch) leads to RUNNING.
- ``ended`` (the trainer saw the end of a pass) leads to READY, or to RESUMING if a state was loaded
  in the meantime.
- ``restore`` (a saved state was loaded) leads to RESUMING if the state is inside an epoch,
  otherwise to READY.
- ``set_epoch`` selects the epoch of the next iteration and leads to READY. A pending resume point
  survives if it belongs to that epoch; the machine then is in RESUMING.

``set_epoch`` in STARTED also applies to the iteration that has already started, because Lightning
calls ``iter()`` before ``set_epoch()``, and torch's samplers draw only at the first batch. The pass
is *withdrawn*: its iterator notices and calls ``begin`` again. In RUNNING, ``set_epoch`` affects
only the next iteration.

Every transition is legal in every state, because a loader can have several iterators at once, and
an old one may report after ``set_epoch`` or ``restore``. The machine follows the iterator that
reported last.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from fastload._order.permutation import Indices
from fastload._order.saved_state import whole_number


class Phase(enum.Enum):
    READY = "ready"
    RESUMING = "resuming"
    STARTED = "started"
    RUNNING = "running"


class Pass(Protocol):
    """One iteration over an epoch, or over the rest of an epoch after a resume."""

    @property
    def epoch(self) -> int: ...

    @property
    def start(self) -> int:
        """Number of batches that were delivered before this pass."""

    @property
    def continues(self) -> bool:
        """Whether the pass starts after the first sample of its epoch."""


PassT = TypeVar("PassT", bound=Pass)


class EpochState(ABC, Generic[PassT]):
    """The state machine. A loader, its sampler, batch sampler and dataset view share one instance.

    Attributes:
        draws_in_trainer: Whether ids must be drawn in the trainer's thread, because a user's
        sampler
            may use the random state of that thread.
        horizon: Number of samples to read ahead; 0 if the order is not known in advance.
        latest_epoch: Epoch of samples that are requested from the dataset view: that of the newest
            iteration, or the one that was set.
    """

    draws_in_trainer: bool
    horizon: int

    def __init__(self) -> None:
        self.next_epoch = 0
        self.latest_epoch = 0
        self.epoch_was_set = False
        self._resume_at: PassT | None = None
        self._withdrawn: PassT | None = None
        # The pass that reported last and the number of its batches that the trainer has. One tuple,
        # so that a Ctrl-C cannot separate the two.
        self._progress: tuple[PassT, int] | None = None

    @property
    def phase(self) -> Phase:
        if self._progress is None:
            return Phase.READY if self._resume_at is None else Phase.RESUMING
        current, done = self._progress
        return Phase.STARTED if done == current.start else Phase.RUNNING

    def begin(self) -> PassT:
        """Starts and returns the next pass."""
        current = self._next_pass()
        self._resume_at = self._withdrawn = None
        self.next_epoch = current.epoch + 1
        self.latest_epoch = current.epoch
        self._progress = (current, current.start)
        return current

    def delivered(self, current: PassT, done: int) -> None:
        """Records that the trainer has ``done`` batches, including batches before a resume."""
        self._progress = (current, done)

    def ended(self, _: PassT) -> None:
        """Records that the trainer has seen the end of a pass."""
        self._progress = None

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch of the next iteration, and of a started one without a batch."""
        epoch = whole_number("set_epoch", epoch)
        if self.phase is Phase.STARTED and self._restarts():
            self._withdrawn = self._resume_at = self.newest
        resume_at = self._resume_at
        if resume_at is not None and (resume_at.epoch != epoch or not resume_at.continues):
            self._resume_at = None
        self._progress = None
        self.next_epoch = epoch
        self.latest_epoch = epoch
        self.epoch_was_set = True

    def restore(self, resume_at: PassT | None, next_epoch: int) -> None:
        """Makes ``resume_at`` the next pass; if it is None, the next pass is ``next_epoch``."""
        self._resume_at = resume_at
        self._withdrawn = None
        self._progress = None
        self.next_epoch = next_epoch

    def discard_resume_point(self) -> None:
        """Makes the next iteration start at the first batch, even after a state was loaded."""
        self._resume_at = None

    @property
    def newest(self) -> PassT | None:
        """The pass that reported last."""
        return None if self._progress is None else self._progress[0]

    @property
    def withdrawn(self) -> PassT | None:
        """The pass whose iterator must call ``begin`` again."""
        return self._withdrawn

    def state(self) -> dict[str, object]:
        """Returns the position of the newest iteration, or of the next one, as JSON."""
        current, done = self._progress or self._next_position()
        if done >= self.n_batches(current):
            current, done = self._next_position()
        return self._saved(current, done)

    def resume_state(self) -> dict[str, object] | None:
        """Returns the state of a pending resume point; None if there is none."""
        resume_at = self._resume_at
        return None if resume_at is None else self._saved(resume_at, resume_at.start)

    def _next_position(self) -> tuple[PassT, int]:
        upcoming = self._peek()
        return upcoming, upcoming.start

    def _next_pass(self) -> PassT:
        return self._peek()

    def _restarts(self) -> bool:
        """Returns whether ``set_epoch`` in STARTED restarts the pass."""
        return True

    @abstractmethod
    def _peek(self) -> PassT:
        """Returns the pass that ``begin`` would return."""

    @abstractmethod
    def batches(self, current: PassT) -> Iterator[Indices]:
        """Yields the sample ids of each batch of a pass, starting at ``current.start``."""

    @abstractmethod
    def n_batches(self, current: PassT) -> float:
        """Returns the batches of a pass, including those before a resume; inf if unknown."""

    @abstractmethod
    def __len__(self) -> int:
        """Returns the batches of a complete epoch; a resumed iteration has fewer."""

    @abstractmethod
    def load(self, state: Mapping[str, object]) -> None:
        """Resumes at a saved state; raises ConfigError if it belongs to another order."""

    @abstractmethod
    def _saved(self, current: PassT, done: int) -> dict[str, object]:
        """Returns the position after ``done`` batches of a pass as JSON."""
