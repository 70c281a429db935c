"""One record: its checksum, its fields, and what the columns say of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fastload._store.columns import FOLDER
from fastload._store.fields import Field, decode_value
from fastload._store.kinds import FLOAT, MISSING_INT, PixelKind
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


class RecordChecker:
    """Checks records against the fields and columns of their dataset. Several threads may use one."""

    def __init__(self, fields: Sequence[Field], columns: Columns, *, deep: bool) -> None:
        self.fields = tuple(fields)
        self.columns = columns
        self.deep = deep

    def check(self, sample_id: int, value: memoryview) -> tuple[str, list[str], int]:
        """(original file, what is wrong, images decoded) of one record; reads on behind a wrong field."""
        try:
            parts = parse_record(value, sample_id)
        except RecordError as error:
            return salvage_source(value), [str(error)], 0
        by_field: dict[int, list[Part]] = {}
        for part in parts:
            by_field.setdefault(part.field, []).append(part)
        wrong = [
            f"field number {number}, expected below {len(self.fields)}"
            for number in by_field
            if number >= len(self.fields) and number != SOURCE_FIELD
        ]
        wrong += _check_source(by_field.get(SOURCE_FIELD, []))
        images = 0
        for number, field in enumerate(self.fields):
            own = by_field.get(number, [])
            wrong += [f"field {field.name!r}: {why}" for why in self._check_field(field, own)]
            wrong += self._check_columns(field, own, sample_id)
            if self.deep and field.kind.decoded_by_pool:
                images += sum(part.role == DATA for part in own)
        return source_of(parts), wrong, images

    def _check_field(self, field: Field, own: Sequence[Part]) -> Iterator[str]:
        indexes = {part.item: part for part in own if part.role == RESTART_INDEX}
        found = [part for part in own if part.role == DATA]
        if not field.list and [part.item for part in found] not in ([], [0]):
            yield f"{len(found)} values, the last with place {found[-1].item}, expected one with place 0: it is no list"
        for item in sorted(indexes.keys() - {part.item for part in found}):
            yield f"a restart index of item {item}, which is not there"
        for part in found:
            where = f"item {part.item}: " if field.list else ""
            if isinstance(field.kind, PixelKind):
                faults = check_image(field.kind, part, indexes.get(part.item), deep=self.deep)
            else:
                faults = _check_value(field, part)
            yield from (where + why for why in faults)

    def _check_columns(self, field: Field, own: Sequence[Part], sample_id: int) -> Iterator[str]:
        """The columns repeat what the record says, so that samplers need not read records: they must not differ."""
        if field.list:
            return
        part = next((part for part in own if part.role == DATA), None)
        try:
            expected = field.kind.column_values(field, part)
        except RecordError:
            return  # reported as a fault of the field
        for name, said in expected.items():
            column = self.columns.get(name)
            if column is not None and not _equal(column[sample_id], said):
                yield (
                    f"{FOLDER}/{name}.npy says {_shown(column[sample_id], field)} in row {sample_id}, the record says "
                    f"{_shown(said, field)}"
                )


def _check_source(own: Sequence[Part]) -> Iterator[str]:
    if len(own) > 1:
        yield f"{len(own)} names of its original file, expected at most one"
    for part in own:
        try:
            bytes(part.data).decode()
        except UnicodeDecodeError as error:
            yield f"the name of its original file is not UTF-8 at byte {error.start}"


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
    return bool(a == b) or bool(a != a and b != b)  # noqa: PLR0124 - NaN is what a float column has for "missing"


def _shown(value: Any, field: Field) -> str:
    number = float(value) if field.kind is FLOAT else int(value)
    if number == MISSING_INT or number != number:  # noqa: PLR0124
        return "that it is missing"
    if field.classes and 0 <= number < len(field.classes):
        return f"{number} ({field.classes[int(number)]})"
    return str(number)
