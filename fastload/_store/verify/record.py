"""Checks one record: its checksum, its fields, and their copies in the columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastload._store.columns import FOLDER
from fastload._store.fields import Field, decode_value, misaligned
from fastload._store.kinds import FLOAT, MISSING_INT, PixelKind
from fastload._store.properties import PropertyCounter
from fastload._store.record import (
    DATA,
    RESTART_INDEX,
    SOURCE_FIELD,
    Part,
    parse_record,
    salvage_source,
    source_of,
)
from fastload._store.verify.columns import Columns
from fastload._store.verify.image import check_image
from fastload.errors import BadImage, RecordError


@dataclass(frozen=True, slots=True)
class RecordChecker:
    """Checks records against the fields and columns of a dataset. Several threads may share one."""

    fields: tuple[Field, ...]
    columns: Columns
    deep: bool

    def check(
        self,
        sample_id: int,
        key: int,
        value: memoryview,
        counter: PropertyCounter | None = None,
    ) -> tuple[str, list[str], int]:
        """Returns (original file, faults, number of images decoded); checks all fields.

        Adds a record without faults to ``counter``.
        """
        try:
            parts = parse_record(value, key)
        except RecordError as error:
            return salvage_source(value), [str(error)], 0
        by_field: defaultdict[int, list[Part]] = defaultdict(list)
        for part in parts:
            by_field[part.field].append(part)
        wrong = [
            f"field number {number}, expected below {len(self.fields)}"
            for number in by_field
            if number >= len(self.fields) and number != SOURCE_FIELD
        ]
        wrong += _check_source(by_field[SOURCE_FIELD])
        images = 0
        for number, field in enumerate(self.fields):
            own = by_field[number]
            wrong += [f"field {field.name!r}: {why}" for why in self._check_field(field, own)]
            wrong += self._check_columns(field, own, sample_id)
            if self.deep and field.kind.decoded_by_pool:
                images += sum(part.role == DATA for part in own)
        wrong = wrong or [*self._check_along(by_field)]
        if counter is not None and not wrong:
            counter.add(parts)
        return source_of(parts), wrong, images

    def _check_along(self, by_field: Mapping[int, list[Part]]) -> Iterator[str]:
        """Checks that fields have one entry per row of the field that they are along."""
        numbers = {each.name: number for number, each in enumerate(self.fields)}
        for number, field in enumerate(self.fields):
            if field.along:
                rows = self.fields[numbers[field.along]]
                of = decode_value(rows, by_field[numbers[field.along]], copy=False)
                value = decode_value(field, by_field[number], copy=False)
                if why := misaligned(field, value, rows, of):
                    yield f"field {field.name!r}: {why}"

    def _check_field(self, field: Field, own: Sequence[Part]) -> Iterator[str]:
        indexes = {part.item: part for part in own if part.role == RESTART_INDEX}
        found = [part for part in own if part.role == DATA]
        if not field.list and [part.item for part in found] not in ([], [0]):
            yield (
                f"{len(found)} values, the last is item {found[-1].item}; expected only item 0 "
                "(the field is not a list)"
            )
        for item in sorted(indexes.keys() - {part.item for part in found}):
            yield f"a restart index for item {item}, which does not exist"
        for part in found:
            where = f"item {part.item}: " if field.list else ""
            if isinstance(field.kind, PixelKind):
                index = indexes.get(part.item)
                faults = check_image(field, field.kind, part, index, deep=self.deep)
            else:
                faults = _check_value(field, part)
            yield from (where + why for why in faults)

    def _check_columns(self, field: Field, own: Sequence[Part], sample_id: int) -> Iterator[str]:
        """Checks that the columns hold the same values as the record."""
        if field.list:
            return
        part = next((part for part in own if part.role == DATA), None)
        try:
            expected = field.kind.column_values(field, part)
        except RecordError:
            return  # already reported by _check_field
        for name, value in expected.items():
            column = self.columns.get(name)
            if column is not None and not _equal(column[sample_id], value):
                yield (
                    f"{FOLDER}/{name}.npy, row {sample_id}: {_describe(column[sample_id], field)}, "
                    f"but the record has {_describe(value, field)}"
                )


def _check_source(own: Sequence[Part]) -> Iterator[str]:
    if len(own) > 1:
        yield f"{len(own)} original paths, expected at most 1"
    for part in own:
        try:
            bytes(part.data).decode()
        except UnicodeDecodeError as error:
            yield f"the original path is not UTF-8 at byte {error.start}"


def _check_value(field: Field, part: Part) -> Iterator[str]:
    try:
        value = decode_value(field, [part])
    except (RecordError, BadImage) as error:
        yield str(error)
        return
    value = value[0] if field.list else value
    if field.classes and not 0 <= value < len(field.classes):
        yield f"class {value}, expected 0 to {len(field.classes) - 1}"
    if why := field.kind.misfit(value):
        yield why


def _equal(a: Any, b: Any) -> bool:
    # NaN marks a missing value in a float column, and it differs from itself.
    return bool(a == b) or bool(a != a and b != b)  # noqa: PLR0124


def _describe(value: Any, field: Field) -> str:
    number = float(value) if field.kind is FLOAT else int(value)
    if number == MISSING_INT or number != number:  # noqa: PLR0124
        return "no value"
    if field.classes and 0 <= number < len(field.classes):
        return f"{number} ({field.classes[int(number)]})"
    return str(number)
