"""Properties of a field over all samples. They are stored in the manifest.

The loader chooses channels, list lengths and stacking from them, so it reads no record at start.
Properties of several datasets or shards can be merged without reading records.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastload._common.strict_json import Json, Row, count, typed
from fastload._store.kinds import MAX_DIMENSIONS
from fastload._store.record import DATA, MAX_PARTS, MAX_RECORD, Part

if TYPE_CHECKING:
    from fastload._store.fields import Field

Shape = tuple[str, tuple[int, ...]]  # NumPy's name of the dtype, and the dimensions

_KEYS = frozenset(("lengths", "channels", "bits", "shape"))
_DTYPE = re.compile(r"[<|][biuf][1248]")
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")


@dataclass(slots=True)
class Properties:
    """The properties of one field."""

    # Number of values → number of samples with so many. Samples without the field do not count.
    lengths: Counter[int] = field(default_factory=Counter)
    channels: set[int] = field(default_factory=set)  # that occur in images and masks
    bits: set[int] = field(default_factory=set)  # per channel, that occur in images and masks
    # The dtype and shape of all arrays or masks; None if they differ. Undefined without values.
    shape: Shape | None = None

    @property
    def length(self) -> int:
        """The most frequent number of values, 0 if no sample has the field."""
        return max(sorted(self.lengths), key=self.lengths.__getitem__, default=0)

    def in_every_sample(self, n_samples: int, length: int = 1) -> bool:
        """Returns whether every sample has exactly so many values."""
        return self.lengths[length] == n_samples

    def merge(self, other: Properties) -> None:
        """Adds the properties of further samples."""
        if not self.lengths:
            self.shape = other.shape
        elif other.lengths and self.shape != other.shape:
            self.shape = None
        self.lengths.update(other.lengths)
        self.channels |= other.channels
        self.bits |= other.bits

    def contradictions(self, records: Properties, *, every: bool) -> Iterator[str]:
        """Yields what cannot be true if the records have these properties.

        ``every``: they are all records of the dataset. Otherwise more records may exist.
        """
        pairs: list[tuple[str, object, object, bool]] = [
            ("lengths", dict(self.lengths), dict(records.lengths), records.lengths <= self.lengths),
            ("channels", self.channels, records.channels, records.channels <= self.channels),
            ("bits", self.bits, records.bits, records.bits <= self.bits),
        ]
        if records.lengths:
            pairs.append(("shape", self.shape, records.shape, self.shape is None))
        for name, stated, found, possible in pairs:
            if stated != found and (every or not possible):
                yield f"{name} {stated or 'none'}, but the records have {found or 'none'}"

    def as_json(self) -> dict[str, Json]:
        return {
            "lengths": {str(length): self.lengths[length] for length in sorted(self.lengths)},
            "channels": [*sorted(self.channels)],
            "bits": [*sorted(self.bits)],
            "shape": [self.shape[0], list(self.shape[1])] if self.shape else None,
        }

    @classmethod
    def from_json(cls, what: str, value: Json, n_samples: int) -> Properties:
        """Checks the result of ``as_json``; raises ValueError."""
        row = Row.of(what, value, _KEYS)
        lengths: Counter[int] = Counter()
        for length, samples in row.get("lengths", dict).items():
            if not _NUMBER.fullmatch(length):
                raise ValueError(f"{what}: length {length!r:.40}: expected {_NUMBER.pattern}")
            lengths[int(length)] = count(f"{what}: lengths", samples, n_samples)
        if lengths.total() > n_samples or max(lengths, default=0) > MAX_PARTS:
            raise ValueError(
                f"{what}: {lengths.total()} samples with up to {max(lengths)} values, expected at "
                f"most {n_samples} with {MAX_PARTS}"
            )
        channels = {count(f"{what}: channels", each, 4) for each in row.get("channels", list)}
        shape = row.values["shape"]
        return cls(
            lengths,
            channels,
            {count(f"{what}: bits", each, 32) for each in row.get("bits", list)},
            None if shape is None else _shape(f"{what}: shape", shape),
        )


def _shape(what: str, value: Json) -> Shape:
    pair = typed(what, value, list)
    dtype, dims = pair if len(pair) == 2 else ("", None)
    sides = tuple(count(what, side, MAX_RECORD) for side in typed(what, dims, list))
    if type(dtype) is not str or not _DTYPE.fullmatch(dtype) or len(sides) > MAX_DIMENSIONS:
        raise ValueError(f"{what}: expected a dtype and its dimensions, found {value!r:.80}")
    return dtype, sides


class PropertyCounter:
    """Collects the properties of samples."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        self.found = tuple(Properties() for _ in fields)

    def merge(self, other: PropertyCounter) -> None:
        for mine, found in zip(self.found, other.found, strict=True):
            mine.merge(found)

    def add(self, parts: Iterable[Part]) -> None:
        """Adds one sample."""
        lengths: dict[int, int] = {}
        for part in parts:
            if part.role != DATA or part.field >= len(self.found):
                continue
            found = self.found[part.field]
            lengths[part.field] = lengths.get(part.field, 0) + 1
            if part.channels:
                found.channels.add(part.channels)
                found.bits.add(part.bits)
            shape = _shape_of(self.fields[part.field], part)
            if not found.lengths and lengths[part.field] == 1:
                found.shape = shape
            elif shape != found.shape:
                found.shape = None
        for number, length in lengths.items():
            self.found[number].lengths[length] += 1

    def add_rows(self, rows: NDArray[np.void]) -> None:
        """Adds all samples that have rows of a part table here (PART_ROW), but no arrays."""
        for number, each in enumerate(self.fields):
            own = rows[(rows["field"] == number) & (rows["role"] == DATA)]
            if not own.size:
                continue
            samples_by_length = np.bincount(np.bincount(own["sample"]))
            pixels = own[own["channels"] > 0]
            self.found[number].merge(
                Properties(
                    Counter({n: int(c) for n, c in enumerate(samples_by_length) if n and c}),
                    set(np.unique(pixels["channels"]).tolist()),
                    set(np.unique(pixels["bits"]).tolist()),
                    _common_mask_shape(own) if each.kind.is_mask else None,
                )
            )


def _shape_of(field: Field, part: Part) -> Shape | None:
    if field.kind.is_mask:
        return _mask_shape(part.bits // 8, part.height, part.width)
    if field.kind.is_array:
        value = field.kind.decode(field, part)
        return value.dtype.str, value.shape
    return None


def _common_mask_shape(rows: NDArray[np.void]) -> Shape | None:
    numbers = (rows["bits"] // 8, rows["height"], rows["width"])
    if any((each != each[0]).any() for each in numbers):
        return None
    return _mask_shape(*(int(each[0]) for each in numbers))


def _mask_shape(n_bytes: int, height: int, width: int) -> Shape:
    # Like np.dtype.str, but for any size: a damaged record may have 3 bytes per pixel.
    return f"{'|' if n_bytes < 2 else '<'}u{n_bytes}", (height, width)
