"""Checks many records at once: their bytes in the native core, their columns with NumPy.

A record is valid or doubtful. ``RecordChecker`` examines the doubtful ones one by one and describes
their faults, so the report does not depend on the native core.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastload._common.native import core
from fastload._store.fields import Field
from fastload._store.kinds import BYTES, FLOAT, IMAGE, INT, MASK, STR
from fastload._store.manifest import Shard
from fastload._store.properties import PropertyCounter
from fastload._store.record import DATA, PART_ROW
from fastload._store.verify.columns import Columns

if TYPE_CHECKING:
    from fastload import _core

# Kind -> ValueCheck of native/verify/record_check.h. Other kinds need Python.
_CHECKS = {INT: 0, FLOAT: 0, STR: 1, BYTES: 2, IMAGE: 3, MASK: 4}


class BulkChecker:
    """Finds the valid records of a dataset. Several threads may share one."""

    def __init__(self, module: ModuleType, fields: Sequence[Field], columns: Columns) -> None:
        self._core = module
        self.fields = tuple(fields)
        self.columns = columns
        self._checks = bytes(_CHECKS[field.kind] for field in fields)
        self._lists = bytes(field.list for field in fields)

    @classmethod
    def create(cls, fields: Sequence[Field], columns: Columns) -> BulkChecker | None:
        """Returns None without the native core, and if a field needs Python."""
        module = core()
        if module is None or not all(field.kind in _CHECKS for field in fields):
            return None
        return cls(module, fields, columns)

    def find_doubtful(
        self, file: _core.ShardFile, shard: Shard, records: range, counter: PropertyCounter
    ) -> list[int]:
        """Returns the numbers of the records to examine; adds the other ones to ``counter``."""
        found: _core.CheckedRecords = self._core.check_records(
            file,
            shard.base + records.start,
            len(records),
            checks=self._checks,
            lists=self._lists,
        )
        rows = np.frombuffer(found.rows, PART_ROW)
        values = np.frombuffer(found.values, np.int64)
        doubtful = np.zeros(len(records), np.bool_)
        for number, field in enumerate(self.fields):
            own = (rows["field"] == number) & (rows["role"] == DATA)
            for wrong in self._compare(field, rows[own], values[own], shard, records):
                doubtful |= wrong
        doubtful[np.frombuffer(found.doubtful, np.uint32)] = True
        counter.add_rows(rows[~doubtful[rows["sample"]]] if doubtful.any() else rows)
        return [records.start + int(place) for place in np.flatnonzero(doubtful)]

    def _compare(
        self,
        field: Field,
        rows: NDArray[np.void],
        values: NDArray[np.int64],
        shard: Shard,
        records: range,
    ) -> Iterator[NDArray[np.bool_]]:
        """Yields which records have no such class, or another value than a column."""
        samples = rows["sample"]
        if field.classes:
            wrong = np.zeros(len(records), np.bool_)
            wrong[samples] = (values < 0) | (values >= len(field.classes))
            yield wrong
        if field.list:
            return
        start = shard.first + records.start
        for name, found, missing in _column_values(field, rows, values):
            if name in self.columns:
                column = self.columns[name][start : start + len(records)]
                expected = np.full(len(records), missing, column.dtype)
                expected[samples] = found
                # NaN marks a missing value in a float column, and it differs from itself.
                both_nan = (column != column) & (expected != expected)  # noqa: PLR0124
                yield (column != expected) & ~both_nan


def _column_values(
    field: Field, rows: NDArray[np.void], values: NDArray[np.int64]
) -> Iterator[tuple[str, NDArray[Any], float]]:
    """Does the work of ``FieldKind.column_values``: (column, its values, value if missing)."""
    if field.kind.is_image:
        rotated = rows["orientation"] >= 5
        yield f"{field.name}.width", np.where(rotated, rows["height"], rows["width"]), 0
        yield f"{field.name}.height", np.where(rotated, rows["width"], rows["height"]), 0
    elif field.kind.in_column:
        yield field.name, values.view(field.kind.column_dtype), field.kind.missing
