"""One sample in words: what each field holds, shortened to a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload._common.formatting import exact_percent
from fastload._common.tables import Row, Section
from fastload._store.dataset import Dataset, source_of
from fastload._store.fields import Field
from fastload._store.jpeg_header import read_header
from fastload._store.kinds import BYTES, STR
from fastload._store.record import CODEC_NAMES, DATA, JPEG, RESTART_INDEX, Part
from fastload._store.values import decode_value
from fastload._tools.inspect.records import coding_name, sampling_name
from fastload.errors import BadImage, ConfigError, RecordError

_TEXT = 200  # characters of a text shown
_VALUES = 8  # numbers of a row shown
_ROWS = 4
_ITEMS = 12  # of a list shown


@dataclass(frozen=True, slots=True)
class SampleView:
    """One sample, decoded, in words."""

    number: int
    n_samples: int
    source: str
    shard: str
    record: int
    n_bytes: int
    values: tuple[
        tuple[str, str, tuple[str, ...]], ...
    ]  # field, kind, what it holds: one line, for a list one an item

    def sections(self) -> list[Section]:
        """For ``screen.show``."""
        rows = [
            Row("original file", self.source or "not kept"),
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
        """For machines: the same words."""
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
    """Reads and decodes one sample; a field that cannot be decoded says so, the others are shown."""
    n = len(dataset)
    if not -n <= index < n:
        raise ConfigError(
            f"sample {index}: {dataset.path} has {n} samples" + (f", 0 to {n - 1}" if n else "")
        )
    number = index % n
    parts = dataset.parts(number)
    shard = dataset.reader(number).shard
    values = []
    for place, field in enumerate(dataset.fields):
        own = [part for part in parts if part.field == place]
        kind = f"list of {field.kind}" if field.list else field.kind.name
        values.append(
            (
                field.name,
                kind,
                tuple(_lines(field, own)) or ("an empty list" if field.list else "missing",),
            )
        )
    return SampleView(
        number,
        n,
        source_of(parts),
        shard.name,
        number - shard.first,
        sum(len(part.data) for part in parts),
        tuple(values),
    )


def _lines(field: Field, own: list[Part]) -> Iterator[str]:
    indexes = {part.item: part for part in own if part.role == RESTART_INDEX}
    found = [part for part in own if part.role == DATA]
    for part in found[:_ITEMS]:
        where = f"[{part.item}] " if field.list else ""
        try:
            value = decode_value(field, [part])
            yield where + _told(
                field, value[0] if field.list else value, part, indexes.get(part.item)
            )
        except (BadImage, RecordError) as error:
            yield f"{where}CANNOT BE DECODED: {error.why if isinstance(error, BadImage) else error}"
    if len(found) > _ITEMS:
        yield f"... {len(found) - _ITEMS} more"


def _told(field: Field, value: Any, part: Part, index: Part | None) -> str:
    if field.kind.is_image:
        return _told_image(value, part, index)
    if field.kind.is_mask:
        labels, counts = np.unique(value, return_counts=True)
        first = zip(labels[:_VALUES], counts[:_VALUES], strict=True)
        shares = ", ".join(f"{label}: {exact_percent(count, value.size)}" for label, count in first)
        return f"{_shape(value)}, {len(labels)} labels ({shares}{', ...' if len(labels) > _VALUES else ''})"
    if isinstance(value, np.ndarray):
        return f"{_shape(value)} {_numbers(value)}"
    if field.classes:
        return (
            f"{value} ({field.classes[value]})"
            if 0 <= value < len(field.classes)
            else f"{value}: NO SUCH CLASS"
        )
    if field.kind is BYTES:
        return f"{len(value)} bytes: {value[:16].hex(' ')}{' ...' if len(value) > 16 else ''}"
    text = value if field.kind is STR else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}... ({len(text):,} characters)"


def _told_image(pixels: NDArray[Any], part: Part, index: Part | None) -> str:
    height, width, channels = pixels.shape
    colours = {1: "gray", 3: "RGB"}.get(channels, f"{channels} channels")
    words = [
        f"{width} x {height} {colours} {pixels.dtype}",
        f"{CODEC_NAMES[part.codec]} of {len(part.data):,} bytes",
    ]
    if part.codec == JPEG:
        header = read_header(memoryview(part.data))
        words.append(f"{coding_name(header)} {sampling_name(header.subsampling)}")
    if index is not None:
        words.append(f"{len(index.data) // 4 - 1} restart segments of {part.interval} MCUs")
    if part.orientation > 1:
        words.append(f"turned when loaded (EXIF orientation {part.orientation})")
    return ", ".join([*words, f"mean {pixels.mean():.0f}"])


def _shape(array: NDArray[Any]) -> str:
    return f"{array.dtype} {'x'.join(map(str, array.shape)) or 'scalar'}"


def _numbers(array: NDArray[Any]) -> str:
    """The first numbers, rows apart: ``[1 0 0 | 0 1 0 | ...]``."""
    rows = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
    shown = [
        " ".join(_number(value) for value in row[:_VALUES].tolist())
        + (" ..." if len(row) > _VALUES else "")
        for row in rows[:_ROWS]
    ]
    return f"[{' | '.join([*shown, *(['...'] if len(rows) > _ROWS else [])])}]"


def _number(value: float) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
