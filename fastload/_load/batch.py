"""The values that a batch passes through between sample ids and the trainer.

    ids --plan--> PlannedBatch --submit--> PendingBatch --finish--> Batch

Each stage takes one of these values and returns the next. If a stage raises an error, ``Failed``
replaces the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._load.decode_requests import SlotFault
from fastload._load.faults import Faults
from fastload._load.records import BatchRecords
from fastload._load.spec import LoadedField
from fastload._plan.rows import PlanRows
from fastload.errors import FastloadError

Ids = NDArray[np.int64]  # with copy numbers while they are requests: fastload._plan.draw_ids
Values = dict[str, Any]  # field name -> values of the batch


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch with mapped records and all random decisions made, but without pixel memory."""

    ids: Ids  # as requested, with copy numbers
    epoch: int
    records: BatchRecords  # bad samples are already replaced by good samples of the batch
    rows: dict[str, PlanRows]  # image field -> plan
    faults: Faults  # bad samples found while planning
    plan_s: float  # planning time


@dataclass(frozen=True, slots=True)
class PendingField:
    """An image or mask field of a batch that the decode threads are working on."""

    chosen: LoadedField
    output: torch.Tensor
    ticket: Any  # handle of the decode backend
    faults: dict[int, SlotFault]  # slot -> why it cannot be decoded
    n_bytes: int  # encoded size


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """A batch that was submitted to the decode threads."""

    planned: PlannedBatch
    fields: tuple[PendingField, ...]

    @property
    def n_bytes(self) -> int:
        """Encoded size of all images and masks."""
        return sum(field.n_bytes for field in self.fields)


class Batch(NamedTuple):
    """A finished batch: the data for the user and the number of samples."""

    data: Any
    n_samples: int


@dataclass(frozen=True, slots=True)
class Failed:
    """An error in place of a batch. Later batches are still delivered."""

    error: BaseException

    @staticmethod
    def of(error: BaseException) -> Failed:
        """Drops the traceback of fastload's own errors, whose message is sufficient.

        A traceback references the frames of the background thread. These would keep whole batches
        alive as long as the user keeps the error.
        """
        return Failed(error.with_traceback(None) if isinstance(error, FastloadError) else error)


def unwrap(result: Batch | Failed) -> Batch:
    """Returns the batch, or raises the error in its place."""
    if isinstance(result, Batch):
        return result
    try:
        raise result.error
    finally:
        del result  # breaks the reference cycle error -> traceback -> this frame -> error


@dataclass(slots=True)
class Progress:
    """What the background thread is working on. The trainer's thread reads it after a timeout."""

    # The batches that are being planned, or the batch that is being finished.
    working_on: Sequence[Ids] | PendingBatch = ()


def split_samples(values: Values, n: int, *, as_tuple: bool) -> list[Any]:
    """Splits a batch into ``n`` samples (dicts or tuples), the input of collate functions."""
    if as_tuple:
        return [tuple(value[place] for value in values.values()) for place in range(n)]
    return [{name: value[place] for name, value in values.items()} for place in range(n)]
