"""`fastload inspect --sample`: the values of one sample, one line each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fastload._common.tables import Row, Section
from fastload._store.dataset import Dataset
from fastload._store.fields import Field, decode_value
from fastload._store.record import DATA, RESTART_INDEX, Part, source_of
from fastload._tools.inspect.showing import SHOWN
from fastload.errors import BadImage, ConfigError, RecordError

_ITEMS = 12  # most items of a list that are shown


@dataclass(frozen=True, slots=True)
class SampleView:
    """One decoded sample as text."""

    number: int
    n_samples: int
    source: str
    shard: str
    record: int
    n_bytes: int
    # Field name, kind, and its value as text: one line, or one line per item of a list.
    values: tuple[tuple[str, str, tuple[str, ...]], ...]

    def sections(self) -> list[Section]:
        rows = [
            Row("original file", self.source or "not recorded"),
            Row("stored in", f"{self.shard}, record {self.record}"),
            Row("bytes", f"{self.n_bytes:,}"),
        ]
        fields = [
            Row(name if i == 0 else "", line)
            for name, _, lines in self.values
            for i, line in enumerate(lines)
        ]
        return [
            Section(f"sample {self.number:,} of {self.n_samples:,}", rows),
            Section("fields", fields),
        ]

    def as_json(self) -> dict[str, object]:
        return {
            "number": self.number,
            "source": self.source,
            "shard": self.shard,
            "record": self.record,
            "bytes": self.n_bytes,
            "fields": [
                {"name": name, "kind": kind, "values": list(lines)}
                for name, kind, lines in self.values
            ],
        }


def view_sample(dataset: Dataset, index: int) -> SampleView:
    """Reads and decodes one sample. A field that cannot be decoded shows the reason."""
    n = len(dataset)
    if not -n <= index < n:
        raise ConfigError(
            f"sample {index} does not exist: {dataset.path} has {n} samples"
            + (f", 0 to {n - 1}" if n else "")
        )
    number = index % n
    parts = dataset.parts(number)
    shard = dataset.reader(number).shard
    values = [
        (
            field.name,
            f"list of {field.kind}" if field.list else field.kind.name,
            tuple(_lines(field, [part for part in parts if part.field == place]))
            or ("empty list" if field.list else "missing",),
        )
        for place, field in enumerate(dataset.fields)
    ]
    return SampleView(
        number,
        n,
        source_of(parts),
        shard.name,
        number - shard.first,
        sum(len(part.data) for part in parts),
        tuple(values),
    )


def _lines(field: Field, own_parts: list[Part]) -> Iterator[str]:
    indexes = {part.item: part for part in own_parts if part.role == RESTART_INDEX}
    found = [part for part in own_parts if part.role == DATA]
    for part in found[:_ITEMS]:
        where = f"[{part.item}] " if field.list else ""
        try:
            value = decode_value(field, [part])
            one = value[0] if field.list else value
            yield where + SHOWN[field.kind].describe(field, one, part, indexes.get(part.item))
        except (BadImage, RecordError) as error:
            yield f"{where}CANNOT BE DECODED: {error.why if isinstance(error, BadImage) else error}"
    if len(found) > _ITEMS:
        yield f"... {len(found) - _ITEMS} more"
