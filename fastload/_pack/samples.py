"""Encodes a sample into the parts of a record. Labels are scaled together with their image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import SupportsInt

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastload._pack.images import StoredImage, images_of, rewrite_all, store_image
from fastload._pack.options import PackOptions
from fastload._pack.pillow import mask_array
from fastload._pack.sources.base import Encoded, Sample, Value
from fastload._store.fields import (
    SPLIT,
    Field,
    check_references,
    decode_value,
    encode_value,
    image_of,
    misaligned,
    source_part,
    splits_of,
)
from fastload._store.kinds import BOXES, MATRIX, POINTS
from fastload._store.record import (
    DATA,
    MAX_PARTS,
    MAX_RECORD,
    PLAIN,
    RESTART_INDEX,
    Part,
    encode_record,
)
from fastload.errors import BadImage, ConfigError

Scale = tuple[float, float]


@dataclass(frozen=True, slots=True)
class EncodedSample:
    """The parts of a record and the values that the packer counts."""

    parts: Sequence[Part]
    source: str
    bytes_in: int
    converted: tuple[str, ...] = ()
    split: int = 0  # 0 in a dataset without splits


class SampleEncoder:
    """Encodes samples with the given fields. Thread-safe."""

    def __init__(self, fields: Sequence[Field], options: PackOptions) -> None:
        self.fields = tuple(fields)
        self.options = options
        names = [each.name for each in self.fields]
        if len(set(names)) != len(names):
            raise ConfigError(f"fields {', '.join(names)}: expected unique names")
        check_references(self.fields)
        numbers = {name: number for number, name in enumerate(names)}
        # The number of each field that is along another one, and the number of that other field.
        self._along = [
            (numbers[each.name], numbers[each.along]) for each in self.fields if each.along
        ]
        self._images = [each.name for each in self.fields if each.kind.is_image]
        self._image_of = {each.name: image_of(each, self.fields) for each in self.fields}
        self._splits = splits_of(self.fields)

    def encode_all(
        self, samples: Iterable[Sample | BadImage]
    ) -> Iterator[EncodedSample | BadImage]:
        """Encodes a few samples, their JPEGs in one native call. Yields an error in place of each
        bad sample. If ``samples`` raises, the samples before it are encoded first.
        """
        loaded: list[Sample | BadImage] = []
        failure: Exception | None = None
        try:
            loaded.extend(samples)
        except Exception as error:  # noqa: BLE001 - raised at its position
            failure = error
        images = (
            image
            for sample in loaded
            if not isinstance(sample, BadImage)
            for image in images_of(sample, self._images)
        )
        rewritten = rewrite_all(images, self.options)
        for sample in loaded:
            yield sample if isinstance(sample, BadImage) else self._encode_one(sample, rewritten)
        if failure is not None:
            raise failure

    def _encode_one(
        self, sample: Sample, rewritten: dict[int, StoredImage]
    ) -> EncodedSample | BadImage:
        try:
            if unknown := sample.values.keys() - self._image_of.keys():
                raise BadImage(f"unknown fields {sorted(unknown)}: expected {list(self._image_of)}")
            return self._encode(sample, rewritten)
        except BadImage as error:
            return error if error.source else BadImage(error.why, source=sample.source)
        except ConfigError as error:  # a value that does not fit its field
            return BadImage(str(error), source=sample.source)

    def _encode(self, sample: Sample, rewritten: dict[int, StoredImage]) -> EncodedSample:
        parts: list[Part] = [source_part(sample.source)]
        scales: dict[tuple[str, int], Scale] = {}
        converted: dict[str, None] = {}
        bytes_in = 0
        # Images first: other fields may depend on their scale.
        for number, each in enumerate(self.fields):
            if each.kind.is_image:
                for item, value in self._items(each, sample):
                    if not isinstance(value, Encoded | np.ndarray | Image.Image):
                        raise BadImage(
                            f"field {each.name!r}: expected an image, found {type(value).__name__}"
                        )
                    stored = rewritten.pop(id(value), None) or store_image(value, self.options)
                    bytes_in += len(value.data) if isinstance(value, Encoded) else len(stored.data)
                    scales[each.name, item] = stored.scale
                    parts += image_parts(number, item, stored)
                    if stored.converted:
                        converted[stored.converted] = None
        for number, each in enumerate(self.fields):
            if not each.kind.is_image:
                moved = [
                    _moved(each, value, self._scale_of(each, item, scales))
                    for item, value in self._items(each, sample)
                ]
                one = next(iter(moved), None)
                parts += encode_value(number, each, moved if each.list else one)
        for number, rows in self._along:
            self._check_along(number, rows, parts)
        if len(parts) > MAX_PARTS // 2 or sum(len(part.data) for part in parts) > MAX_RECORD // 2:
            # Raises if the record is too large: a bad sample here, the end of the pack later.
            encode_record(0, parts)
        split = self._split(sample.values.get(SPLIT)) if self._splits else 0
        return EncodedSample(parts, sample.source, bytes_in, tuple(converted), split)

    def _split(self, value: Value) -> int:
        if not isinstance(value, SupportsInt):
            raise BadImage(
                f"has no split: field {SPLIT!r} is {value!r:.40}, expected one of "
                f"{', '.join(self._splits)!s:.80}. Every sample needs one, or none has the field"
            )
        return int(value)

    def _check_along(self, number: int, rows: int, parts: Sequence[Part]) -> None:
        """Raises BadImage unless a field has one entry per row of the field that it is along."""
        value, of = (
            decode_value(
                self.fields[each], [part for part in parts if part.field == each], copy=False
            )
            for each in (number, rows)
        )
        if why := misaligned(self.fields[number], value, self.fields[rows], of):
            raise BadImage(f"field {self.fields[number].name!r}: {why}")

    def _scale_of(self, each: Field, item: int, scales: dict[tuple[str, int], Scale]) -> Scale:
        """Returns the scale of the image that a label belongs to, for lists by index."""
        image = self._image_of[each.name]
        return scales.get((image, item)) or scales.get((image, 0)) or (1.0, 1.0)

    @staticmethod
    def _items(each: Field, sample: Sample) -> list[tuple[int, Value]]:
        value = sample.values.get(each.name)
        if value is None:
            return []
        if not each.list:
            return [(0, value)]
        if not isinstance(value, list | tuple):
            raise BadImage(f"field {each.name!r}: expected a list, found {type(value).__name__}")
        return list(enumerate(value))


def image_parts(number: int, item: int, stored: StoredImage) -> list[Part]:
    """Returns the part of the image and the part of its restart index, if any."""
    image = Part(
        number,
        stored.data,
        item,
        stored.codec,
        DATA,
        stored.channels,
        stored.bits,
        stored.width,
        stored.height,
        stored.interval,
        stored.orientation,
    )
    index = Part(number, stored.index, item, PLAIN, RESTART_INDEX)
    return [image, index] if stored.index else [image]


def _moved(each: Field, value: Value, scale: Scale) -> Value:
    """Returns a label in pixels of the stored image."""
    if each.kind.is_mask:
        try:
            mask = mask_array(value)
        except BadImage as error:
            raise BadImage(f"field {each.name!r}: {error.why}") from None
        return _scaled_mask(mask, scale) if scale != (1.0, 1.0) else mask
    if scale == (1.0, 1.0) or each.kind not in (BOXES, POINTS, MATRIX):
        return value
    try:
        array = np.array(value, np.float64)
    except (TypeError, ValueError) as error:
        raise BadImage(f"field {each.name!r}: {each.kind}: {error}") from None
    if array.ndim != 2 or not array.size:
        return value  # nothing to scale, or a wrong shape that encode_value reports
    if each.kind is POINTS:
        array[:, :2] *= scale[: array.shape[1]]
    elif each.kind is BOXES and array.shape[1] == 4:
        array *= np.tile(scale, 2)
    elif each.kind is MATRIX and len(array) == 3:  # a projection: the first two rows are in pixels
        array[:2] *= np.array(scale)[:, None]
    return array


def _scaled_mask(mask: NDArray[np.generic], scale: Scale) -> NDArray[np.generic]:
    """Nearest neighbor, floor((i + 0.5) / scale), as in the loader. Never mixes classes."""
    # Integer arithmetic: with floats, the center of a new pixel may fall on either side of an edge.
    rows, columns = (
        (2 * np.arange(new_side, dtype=np.int64) + 1) * side // (2 * new_side)
        for side, by in zip(mask.shape, (scale[1], scale[0]), strict=True)
        for new_side in [max(1, round(side * by))]
    )
    return np.asarray(mask[rows[:, None], columns[None, :]])
