"""`fastload inspect --sample`: the values of one sample, one line each.

``SHOWN`` defines for each field kind how its values are described, captioned and drawn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastload._common.formatting import exact_percent
from fastload._common.tables import Row, Section
from fastload._store import kinds
from fastload._store.dataset import Dataset
from fastload._store.fields import Field, decode_value, kind_text
from fastload._store.jpeg_header import read_header
from fastload._store.kinds import FieldKind
from fastload._store.record import CODEC_NAMES, DATA, JPEG, RESTART_INDEX, Part, source_of
from fastload._tools.inspect.drawing import Color, draw_mask, draw_shapes, draw_tags
from fastload._tools.inspect.records import coding_name, sampling_name
from fastload.errors import BadImage, ConfigError, RecordError

# The most that is shown: characters of a text, numbers of a row, and rows.
_TEXT = 200
_VALUES = 8
_ROWS = 4

# n boxes or lines to their class names and colors
Classes = Callable[[int], tuple[Sequence[str], Sequence[Color]]]
Describe = Callable[[Field, Any, Part, "Part | None"], str]
Draw = Callable[[Image.Image, Any, tuple[int, ...], Classes], Image.Image]
_ITEMS = 12  # most items of a list that are shown


@dataclass(frozen=True, slots=True)
class Showing:
    """How one kind is shown.

    ``describe`` gets the field, its value, the stored part and the restart index of the part.
    ``draw`` gets the displayed image, the value, and the shape of the stored image.
    """

    describe: Describe
    caption: Callable[[Any], str] | None = None  # a short text; None: not in captions
    draw: Draw | None = None


def _image(_: Field, pixels: NDArray[Any], part: Part, index: Part | None) -> str:
    height, width, channels = pixels.shape
    colors = {1: "gray", 3: "RGB"}.get(channels, f"{channels} channels")
    phrases = [
        f"{width} x {height} {colors} {pixels.dtype}",
        f"{CODEC_NAMES[part.codec]} of {len(part.data):,} bytes",
    ]
    if part.codec == JPEG:
        header = read_header(memoryview(part.data))
        phrases.append(f"{coding_name(header)} {sampling_name(header.subsampling)}")
    if index is not None:
        phrases.append(f"{len(index.data) // 4 - 1} restart segments of {part.interval} MCUs")
    if part.orientation > 1:
        phrases.append(f"rotated or flipped when loaded (EXIF orientation {part.orientation})")
    return ", ".join([*phrases, f"mean {pixels.mean():.0f}"])


def _shape(array: NDArray[Any]) -> str:
    return f"{array.dtype} {'x'.join(map(str, array.shape)) or 'scalar'}"


def _numbers(array: NDArray[Any]) -> str:
    """The first numbers of each row: ``[1 0 0 | 0 1 0 | ...]``."""
    rows = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
    shown = [
        " ".join(_number(value) for value in row[:_VALUES].tolist())
        + (" ..." if len(row) > _VALUES else "")
        for row in rows[:_ROWS]
    ]
    return f"[{' | '.join([*shown, *(['...'] if len(rows) > _ROWS else [])])}]"


def _number(value: float) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _mask(_: Field, mask: NDArray[Any], __: Part, ___: Part | None) -> str:
    labels, counts = np.unique(mask, return_counts=True)
    first = zip(labels[:_VALUES], counts[:_VALUES], strict=True)
    shares = ", ".join(f"{label}: {exact_percent(count, mask.size)}" for label, count in first)
    more = ", ..." if len(labels) > _VALUES else ""
    return f"{_shape(mask)}, {len(labels)} labels ({shares}{more})"


def _array(_: Field, array: NDArray[Any], __: Part, ___: Part | None) -> str:
    return f"{_shape(array)} {_numbers(array)}"


def _scalar(field: Field, value: float, _: Part, __: Part | None) -> str:
    if not field.classes:
        return _shortened(json.dumps(value))
    known = 0 <= value < len(field.classes)
    return f"{value} ({field.classes[int(value)]})" if known else f"{value}: UNKNOWN CLASS"


def _str(_: Field, value: str, __: Part, ___: Part | None) -> str:
    return _shortened(value)


def _json(_: Field, value: Any, __: Part, ___: Part | None) -> str:
    return _shortened(json.dumps(value, ensure_ascii=False))


def _bytes(_: Field, value: bytes, __: Part, ___: Part | None) -> str:
    return f"{len(value)} bytes: {value[:16].hex(' ')}{' ...' if len(value) > 16 else ''}"


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}... ({len(text):,} characters)"


def _draw_mask(image: Image.Image, mask: Any, shape: tuple[int, ...], _: Classes) -> Image.Image:
    return draw_mask(image, mask) if mask.shape == shape[:2] else image


def _draw_boxes(
    image: Image.Image, boxes: Any, shape: tuple[int, ...], classes: Classes
) -> Image.Image:
    factors = _factors(image, shape)
    names, colors = classes(len(boxes))
    image = draw_shapes(image, factors, boxes=boxes, colors=colors)
    draw_tags(image, factors, boxes, names=names, colors=colors)
    return image


def _draw_points(
    image: Image.Image, points: Any, shape: tuple[int, ...], classes: Classes
) -> Image.Image:
    factors = _factors(image, shape)
    if isinstance(points, list):  # polylines: the lanes of one image
        _, colors = classes(len(points))
        return draw_shapes(image, factors, lines=points, colors=colors)
    return draw_shapes(image, factors, points=points)


def _factors(image: Image.Image, shape: tuple[int, ...]) -> tuple[float, float]:
    return (image.width / shape[1], image.height / shape[0])


SHOWN: dict[FieldKind, Showing] = {
    kinds.IMAGE: Showing(_image),
    kinds.MASK: Showing(_mask, draw=_draw_mask),
    kinds.BOXES: Showing(_array, draw=_draw_boxes),
    kinds.POINTS: Showing(_array, draw=_draw_points),
    kinds.MATRIX: Showing(_array),
    kinds.NUMBERS: Showing(_array),
    kinds.INT: Showing(_scalar, caption=str),
    kinds.FLOAT: Showing(_scalar, caption="{:.4g}".format),
    kinds.STR: Showing(_str, caption=str),
    kinds.JSON: Showing(_json),
    kinds.BYTES: Showing(_bytes),
}


@dataclass(frozen=True, slots=True)
class SampleView:
    """One decoded sample as text."""

    number: int  # in the split
    n_samples: int  # of the split
    sample_id: int  # in the packed dataset
    source: str
    shard: str
    record: int
    n_bytes: int
    # Field name, kind, and its value as text: one line, or one line per item of a list.
    values: tuple[tuple[str, str, tuple[str, ...]], ...]

    def sections(self) -> list[Section]:
        rows = [
            Row("id", f"{self.sample_id:,}"),
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
            "id": self.sample_id,
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
    parts = dataset.parts(index)
    sample_id = dataset.ids[index]
    shard = dataset.reader(sample_id).shard
    values = [
        (
            field.name,
            kind_text(field),
            tuple(_lines(field, [part for part in parts if part.field == place]))
            or ("empty list" if field.list else "missing",),
        )
        for place, field in enumerate(dataset.fields)
    ]
    return SampleView(
        index % n,
        n,
        sample_id,
        source_of(parts),
        shard.name,
        sample_id - shard.first,
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
