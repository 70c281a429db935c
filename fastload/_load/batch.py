"""A batch on its way from sample ids to the trainer.

    ids --plan--> PlannedBatch --submit--> PendingBatch --finish--> Batch

Each stage takes one of these values and returns the next one. ``Failed`` takes the place of a batch
whose stage raised an error.
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

Ids = NDArray[np.int64]
Values = dict[str, Any]  # what a batch holds under each name


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """Its records are mapped and every random decision is made; no pixel memory is allocated yet."""

    ids: Ids  # as requested
    epoch: int
    records: BatchRecords  # bad samples already replaced by good ones of the batch
    rows: dict[str, PlanRows]  # by image field
    faults: Faults  # bad samples found while planning
    plan_s: float  # time spent on it so far


@dataclass(frozen=True, slots=True)
class PendingField:
    """One image or mask field of a batch, being decoded."""

    chosen: LoadedField
    output: torch.Tensor
    ticket: Any  # the decode backend's handle
    faults: dict[int, SlotFault]  # slot -> why it cannot be decoded
    n_bytes: int  # encoded


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """The decode threads have it."""

    planned: PlannedBatch
    fields: tuple[PendingField, ...]

    @property
    def n_bytes(self) -> int:
        """Encoded bytes of its images and masks."""
        return sum(field.n_bytes for field in self.fields)


class Batch(NamedTuple):
    """A finished batch: the data that the user receives, and its number of samples."""

    data: Any
    n_samples: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Takes the place of a batch; later batches still arrive."""

    error: BaseException

    @staticmethod
    def of(error: BaseException) -> Failed:
        """Drops the traceback of our own errors, whose message says everything.

        A traceback keeps the frames of the background thread, and thereby whole batches, alive for
        as long as the user keeps the error.
        """
        return Failed(error.with_traceback(None) if isinstance(error, FastloadError) else error)


def unwrap(result: Batch | Failed) -> Batch:
    """The batch; raises the error that took its place."""
    if isinstance(result, Batch):
        return result
    try:
        raise result.error
    finally:
        del result  # the traceback holds this frame: error and frame must not hold each other


@dataclass(slots=True)
class Progress:
    """What the background thread is working on; the trainer's thread reads it after a timeout."""

    working_on: (
        Sequence[Ids] | PendingBatch
    ) = ()  # batches being planned, or the one being finished


def split_samples(values: Values, n: int, *, as_tuple: bool) -> list[Any]:
    """A batch as a list of samples, each a dict or a tuple: what torch's collate functions take."""
    samples = [{name: value[place] for name, value in values.items()} for place in range(n)]
    return [tuple(sample.values()) for sample in samples] if as_tuple else list(samples)
