"""A look at some samples, for what the manifest does not say: gray or color, how many images a sample has, shapes.

Only part tables are read where that is enough. Records that are damaged tell nothing and stop nothing here.
"""

from __future__ import annotations

import numpy as np

from fastload._load.read_ahead import ask_for
from fastload._load.records import BatchRecords, read_records
from fastload._store.dataset import Dataset
from fastload._store.values import decode_value
from fastload.errors import FastloadError, RecordError

LOOKED_AT = 64  # samples, spread over the dataset


class Look:
    """What a few samples have in common."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._ids = np.arange(
            0, len(dataset), max(1, -(-len(dataset) // LOOKED_AT)), dtype=np.int64
        )
        self._tables: BatchRecords | None = None
        self._checked: BatchRecords | None = None

    def channels(self, field: int) -> int:
        """1 where all images looked at are gray, else 3."""
        found = set(self._parts().part_rows(field)["channels"].tolist())
        return 1 if found == {1} else 3

    def items(self, field: int) -> int:
        """How many of a list field most samples have that have any; 0 where none has."""
        counts = np.bincount(self._parts().part_rows(field)["sample"], minlength=len(self._ids))
        counts = np.delete(counts, list(self._parts().faults))
        if not len(counts):
            return 1
        return int(np.bincount(counts[counts > 0], minlength=1).argmax())

    def bits(self, field: int) -> int:
        """The widest pixel of a mask."""
        return int(self._parts().part_rows(field)["bits"].max(initial=8))

    def same_shape(self, field: int, *, items: int = 0) -> bool:
        """Whether all samples have this array, in one shape and type; of a list field so many ``items`` of them."""
        parts = self._records()
        shapes = set()
        for place, own in enumerate(parts.field_parts(field)):
            if place in parts.faults:
                continue
            try:
                value = decode_value(self._dataset.fields[field], own, copy=False)
            except (RecordError, FastloadError):
                continue
            arrays = value if items else [value]
            shapes |= {None if each is None else (each.shape, each.dtype) for each in arrays}
            shapes |= {None} if items and len(arrays) != items else set()
        return len(shapes) == 1 and None not in shapes

    def _records(self) -> BatchRecords:
        """All their bytes, checked; for all fields the same."""
        if self._checked is None:
            ask_for(
                self._dataset, self._ids
            )  # else one page fault after another, some thousand in all
            self._checked = read_records(self._dataset, self._ids, check_crc=True)
        return self._checked

    def _parts(self) -> BatchRecords:
        if self._tables is None:
            self._tables = read_records(self._dataset, self._ids, check_crc=False)
        return self._tables
