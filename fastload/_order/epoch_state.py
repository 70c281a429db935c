"""The state machine of a loader's epochs: which iteration counts, and where the next one begins.

Several iterators of one loader may run at once; the machine follows the one that reported last.

::

                    begin                 delivered
       READY ─────────────────► STARTED ─────────────► RUNNING ──┐ delivered
      │     ▲                    │   ▲                  │   ▲────┘
      │     └── ended, set_epoch ┼───┼──────────────────┤
      │ restore                  │   │ begin            │ restore
      ▼                          ▼   │                  ▼
       RESUMING ◄────────────────────┼───────────────────
          └──────────────────────────┘

- READY: the next iteration is epoch ``next_epoch`` from its first batch.
- RESUMING: the next iteration continues inside an epoch (``restore`` with a pass that has batches
  left). ``set_epoch`` with the same epoch stays here, with another one it leads to READY.
- STARTED: ``iter()`` was called, but the trainer has no batch yet. ``set_epoch`` still applies to
  this iteration, because Lightning calls ``iter()`` before ``set_epoch()`` and torch's samplers
  draw at the first batch: the pass is *withdrawn*, and its iterator begins again. Where the pass
  continued an epoch and the epoch stays the same, the machine is RESUMING, else READY.
- RUNNING: the trainer has batches. ``set_epoch`` concerns the next iteration only.

``begin``, ``delivered``, ``ended``, ``set_epoch`` and ``restore`` are the only transitions. All are
legal in every state: an older iterator may still report after ``set_epoch`` or ``restore``.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from fastload._order.permutation import Indices
from fastload._order.saved_state import whole_number


class Phase(enum.Enum):
    """States of the machine."""

    READY = "ready"
    RESUMING = "resuming"
    STARTED = "started"
    RUNNING = "running"


class Pass(Protocol):
    """One iteration over an epoch, or over what a resumed run has left of it."""

    @property
    def epoch(self) -> int: ...

    @property
    def start(self) -> int:
        """Batches delivered before it began."""

    @property
    def continues(self) -> bool:
        """It does not begin at the epoch's first sample."""


PassT = TypeVar("PassT", bound=Pass)


class EpochState(ABC, Generic[PassT]):
    """Sampler, batch sampler, dataset view and loader share one, so they agree on the epoch."""

    draws_in_trainer: bool  # in the trainer's thread, whose random state a sampler may use
    horizon: int  # samples to read ahead of the order; 0: the order is not known in advance

    def __init__(self) -> None:
        self.next_epoch = 0
        # For samples requested from the dataset view: the epoch of the newest iteration, or as set.
        self.latest_epoch = 0
        self.epoch_was_set = False
        self._resume_at: PassT | None = None
        self._withdrawn: PassT | None = None
        # The pass that reported last, and how many of its batches the trainer has. One assignment
        # changes both: a Ctrl-C comes before it or after it.
        self._progress: tuple[PassT, int] | None = None

    @property
    def phase(self) -> Phase:
        """The state, as the module's diagram names it."""
        if self._progress is None:
            return Phase.READY if self._resume_at is None else Phase.RESUMING
        current, done = self._progress
        return Phase.STARTED if done == current.start else Phase.RUNNING

    def begin(self) -> PassT:
        """The next iteration; the one after it is the next epoch."""
        current = self._next_pass()
        self._resume_at = self._withdrawn = None
        self.next_epoch = current.epoch + 1
        self.latest_epoch = current.epoch
        self._progress = (current, current.start)
        return current

    def delivered(self, current: PassT, done: int) -> None:
        """The trainer has ``done`` batches of a pass, those before a resume included."""
        self._progress = (current, done)

    def ended(self, _: PassT) -> None:
        """The trainer has seen the end of a pass."""
        self._progress = None

    def set_epoch(self, epoch: int) -> None:
        """The next iteration, or one without a batch yet, is this epoch."""
        epoch = whole_number("set_epoch", epoch)
        if self.phase is Phase.STARTED and self._restarts():
            self._withdrawn = self.newest
            self._resume_at = self.newest
        if self._resume_at is not None and not (
            self._resume_at.continues and self._resume_at.epoch == epoch
        ):
            self._resume_at = None
        self._progress = None
        self.next_epoch = epoch
        self.latest_epoch = epoch
        self.epoch_was_set = True

    def restore(self, resume_at: PassT | None, next_epoch: int) -> None:
        """The next iteration is ``resume_at``, or, where that is None, ``next_epoch``."""
        self._resume_at = resume_at
        self._withdrawn = None
        self._progress = None
        self.next_epoch = next_epoch

    def discard_resume_point(self) -> None:
        """The next iteration is a whole epoch, also after a state was loaded."""
        self._resume_at = None

    @property
    def newest(self) -> PassT | None:
        """The pass that reported last."""
        return None if self._progress is None else self._progress[0]

    @property
    def withdrawn(self) -> PassT | None:
        """The pass that must begin again: its epoch was set before its first batch."""
        return self._withdrawn

    def state(self) -> dict[str, object]:
        """The position of the newest iteration, or of the next one, as JSON."""
        current, done = self._progress or self._next_position()
        if done >= self.n_batches(current):
            current, done = self._next_position()
        return self._saved(current, done)

    def resume_state(self) -> dict[str, object] | None:
        """Where the next iteration continues an epoch; None where it begins one."""
        resume_at = self._resume_at
        return None if resume_at is None else self._saved(resume_at, resume_at.start)

    def _next_position(self) -> tuple[PassT, int]:
        upcoming = self._peek()
        return upcoming, upcoming.start

    def _next_pass(self) -> PassT:
        return self._peek()

    def _restarts(self) -> bool:
        """A pass without a batch yet begins again when the epoch is set."""
        return True

    @abstractmethod
    def _peek(self) -> PassT:
        """The pass that ``begin`` would return."""

    @abstractmethod
    def batches(self, current: PassT) -> Iterator[Indices]:
        """The sample ids of each batch that a pass has left."""

    @abstractmethod
    def n_batches(self, current: PassT) -> float:
        """Batches of a pass, those before a resume included; infinite where it is unknown."""

    @abstractmethod
    def __len__(self) -> int:
        """Batches of a whole epoch; a resumed iteration has fewer."""

    @abstractmethod
    def load(self, state: Mapping[str, object]) -> None:
        """Continues after a saved state; raises ConfigError if it belongs to another order."""

    @abstractmethod
    def _saved(self, current: PassT, done: int) -> dict[str, object]:
        """JSON for the position after ``done`` batches of a pass."""
