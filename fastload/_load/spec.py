"""Resolves what a loader delivers from the dataset and the options: fields, channels, shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fastload._load.collate import COLLATE, Stack
from fastload._load.read_ahead import request_records
from fastload._load.records import BatchRecords, read_records
from fastload._order.saved_state import shortened
from fastload._plan.compiler import compile_fields
from fastload._plan.field_plan import FieldPlan
from fastload._store.dataset import SPLIT, Dataset
from fastload._store.fields import Field, decode_value, image_of
from fastload._store.kinds import IMAGE, INT
from fastload.errors import ConfigError, FastloadError, RecordError

IMPLICIT = ("id", "source")
COLORS = ("rgb", "bgr", "gray")
RAGGED = ("list", "pad")
SCANNED = 64  # samples


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """The arguments of a DataLoader that define the content of a sample."""

    transform: object = None
    fields: Sequence[str] | None = None
    color: str | None = None
    ragged: str | Mapping[str, str] = "list"
    exact: bool = False
    return_matrix: bool = False


@dataclass(frozen=True, slots=True)
class LoadedField:
    """A field that is delivered, or the image field that a delivered field belongs to."""

    number: int  # index in the fields of the dataset
    field: Field
    image: str = ""  # the image field whose plan moves the values
    channels: int = 3  # channels of an image
    items: int = 1  # items per sample of a list field; 0: any number
    bits: int = 8  # bits per pixel of a mask
    ragged: str = "list"  # "list", "pad", or "stack" if all samples have the same shape

    @property
    def name(self) -> str:
        return self.field.name

    @property
    def decoded_by_pool(self) -> bool:
        """Whether the decode threads write its pixels: images, and masks that belong to one."""
        return self.field.kind.is_image or (self.field.kind.is_mask and bool(self.image))

    @property
    def in_column(self) -> bool:
        """Whether its values are in a column, so that no record is needed."""
        return self.field.kind.in_column and not self.field.list


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """What a loader reads, and in which form it delivers it."""

    fields: tuple[LoadedField, ...]
    implicit: tuple[str, ...]  # "id", "source", if requested
    image_fields: tuple[LoadedField, ...]  # delivered, or needed by a delivered field
    plans: dict[str, FieldPlan]  # image field -> plan
    as_tuple: bool  # (images, labels) instead of a dict
    color: str  # "rgb" or "bgr", for images with three channels
    exact: bool
    return_matrix: bool

    @property
    def images(self) -> tuple[LoadedField, ...]:
        """The delivered image fields."""
        return tuple(each for each in self.fields if each.field.kind.is_image)

    @property
    def reads_records(self) -> bool:
        """Whether Python code uses bytes of the records, so that it must verify the checksums."""
        return "source" in self.implicit or any(
            not each.in_column and not each.field.kind.is_image for each in self.fields
        )

    def describe(self) -> dict[str, object]:
        """Returns a text of all options that determine the pixels: equal texts, equal pixels."""
        plans = {name: plan.describe() for name, plan in self.plans.items()}
        color = ", ".join("gray" if each.channels == 1 else self.color for each in self.images)
        return shortened({**plans, "color": color, "exact": str(self.exact)})


def load_spec(dataset: Dataset, options: SampleOptions) -> LoadSpec:
    """Checks the options against the dataset; raises ConfigError."""
    color = options.color
    if color is not None and color not in COLORS:
        raise ConfigError(f"color={color!r:.40}: expected None or one of {', '.join(COLORS)}")
    by_name = {each.name: (number, each) for number, each in enumerate(dataset.fields)}
    names = _names(options.fields, tuple(by_name))
    scan = SampleScan(dataset)
    ragged = _ragged(options.ragged, names)
    images = {
        each.name: _image(scan, number, each, color)
        for number, each in by_name.values()
        if each.kind.is_image
    }
    all_plans = compile_fields(options.transform, tuple(images))
    chosen = tuple(
        images.get(name)
        or _label(scan, *by_name[name], images, ragged.get(name, "list unless stacked"))
        for name in names
        if name in by_name
    )
    needed = {each.image or each.name for each in chosen if each.image or each.field.kind.is_image}
    image_fields = tuple(image for name, image in images.items() if name in needed)
    kinds = [(each.field.kind, each.field.list) for each in chosen]
    as_tuple = (
        len(names) == len(chosen)
        and kinds == [(IMAGE, False), (INT, False)]
        and not options.return_matrix
    )
    spec = LoadSpec(
        chosen,
        tuple(name for name in names if name in IMPLICIT),
        image_fields,
        {each.name: all_plans[each.name] for each in image_fields},
        as_tuple,
        "bgr" if color == "bgr" else "rgb",
        bool(options.exact),
        bool(options.return_matrix),
    )
    for each in image_fields:
        if not each.items:
            raise ConfigError(
                f"field {each.name!r}: no scanned sample has an image in its list. "
                "Remove the field from fields="
            )
    for each in spec.fields:
        _check(each, spec)
    return spec


class SampleScan:
    """Finds what the manifest does not contain in a few samples across the dataset.

    Reads only part tables if they are sufficient. Skips damaged records.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._ids = np.arange(0, len(dataset), max(1, -(-len(dataset) // SCANNED)), dtype=np.int64)

    def channels(self, field: int) -> int:
        """Returns 1 if all scanned images are grayscale, else 3."""
        found = set(self._tables.part_rows(field)["channels"].tolist())
        return 1 if found == {1} else 3

    def items(self, field: int) -> int:
        """Returns the most frequent length of non-empty lists; 0 if all lists are empty."""
        counts = np.bincount(self._tables.part_rows(field)["sample"], minlength=len(self._ids))
        counts = np.delete(counts, list(self._tables.faults))
        if not len(counts):
            return 1
        return int(np.bincount(counts[counts > 0], minlength=1).argmax())

    def bits(self, field: int) -> int:
        """Returns the maximum bits per pixel of a mask."""
        return int(self._tables.part_rows(field)["bits"].max(initial=8))

    def same_shape(self, field: int, *, items: int = 0) -> bool:
        """Returns whether all samples have this array in one shape and type.

        ``items`` is the number of arrays that each sample of a list field must have.
        """
        parts = self._records
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

    @cached_property
    def _records(self) -> BatchRecords:
        """The complete records with verified checksums."""
        request_records(self._dataset, self._ids)  # avoids thousands of consecutive page faults
        return read_records(self._dataset, self._ids, check_crc=True)

    @cached_property
    def _tables(self) -> BatchRecords:
        """The records without verified checksums; only their part tables may be used."""
        return read_records(self._dataset, self._ids, check_crc=False)


def _names(fields: Sequence[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    if fields is None:
        return tuple(name for name in known if name != SPLIT)
    if isinstance(fields, Set):
        raise ConfigError(f"fields={fields!r:.200}: expected a list, because a set has no order")
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    if (
        not names
        or len(set(names)) != len(names)
        or any(name not in known and name not in IMPLICIT for name in names)
    ):
        raise ConfigError(
            f"fields={list(names)!r:.200}: expected a selection of "
            f"{', '.join((*known, *IMPLICIT))} without duplicates"
        )
    return names


def _ragged(ragged: str | Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """Returns the mode of each field. "unless stacked" marks fields without an explicit mode."""
    requested = (
        dict(ragged)
        if isinstance(ragged, Mapping)
        else dict.fromkeys(names, f"{ragged} unless stacked")
    )
    for name, how in requested.items():
        if name not in names:
            raise ConfigError(
                f"ragged={ragged!r:.100}: {name!r} is not a delivered field. "
                f"Expected some of {', '.join(names)}"
            )
        if str(how).removesuffix(" unless stacked") not in RAGGED:
            raise ConfigError(
                f"ragged={ragged!r:.100}: expected 'list' (one tensor per sample) or 'pad' (one "
                "padded tensor and a mask), or a dict of field name and mode"
            )
    return requested


def _image(scan: SampleScan, number: int, field: Field, color: str | None) -> LoadedField:
    channels = scan.channels(number) if color is None else 1 if color == "gray" else 3
    return LoadedField(
        number, field, channels=channels, items=scan.items(number) if field.list else 1
    )


def _label(
    scan: SampleScan, number: int, field: Field, images: Mapping[str, LoadedField], ragged: str
) -> LoadedField:
    image = image_of(field, [each.field for each in images.values()])
    image_field = images.get(image)
    stack = COLLATE[field.kind].stack
    if not field.list:
        items = 1
    elif image_field and image_field.field.list:
        items = image_field.items
    else:
        items = scan.items(number) if stack is Stack.ALWAYS else 0
    if field.kind.is_mask and image:
        return LoadedField(number, field, image=image, items=items, bits=scan.bits(number))
    how, _, unless_stacked = ragged.partition(" ")
    one_shape = stack is Stack.ALWAYS or (
        stack is Stack.SAME_SHAPE and not field.list and scan.same_shape(number)
    )
    cameras = next((each.items for each in images.values() if each.field.list), 0)
    if (
        stack is Stack.SAME_SHAPE
        and not field.kind.moves_with_image
        and field.list
        and unless_stacked
        and cameras
        and scan.same_shape(number, items=cameras)
    ):
        one_shape = True  # one value per camera, for example a pose
        items = cameras
    return LoadedField(
        number,
        field,
        image=image,
        items=items,
        ragged="stack" if one_shape and unless_stacked else how,
    )


def _check(each: LoadedField, spec: LoadSpec) -> None:
    """Raises ConfigError for options that would otherwise fail in the middle of an epoch."""
    if each.image and each.image not in spec.plans:
        raise ConfigError(
            f"field {each.name!r}: its image {each.image!r} is not a field of the dataset"
        )
    if each.image:
        image_field = next(other for other in spec.image_fields if other.name == each.image)
        if each.field.list != image_field.field.list and (
            image_field.field.list or each.field.kind.is_mask
        ):
            raise ConfigError(
                f"field {each.name!r} and its image {image_field.name!r}: "
                "expected both or neither to be a list"
            )
        if each.field.kind.is_mask and spec.plans[each.image].mask_fill >= 1 << each.bits:
            raise ConfigError(
                f"mask_fill={spec.plans[each.image].mask_fill}: expected at most "
                f"{(1 << each.bits) - 1}, because mask {each.name!r} has {each.bits} bits"
            )
    if each.field.kind.is_image:
        plan = spec.plans[each.name]
        written = [(op.values_argument, op.channel_values) for op in plan.ops if op.channel_values]
        for what, values in (("Normalize", plan.output.mean), ("fill", plan.fill), *written):
            if len(values) not in (1, each.channels):
                raise ConfigError(
                    f"transform of {each.name!r}: {what} has values for {len(values)} channels, "
                    f"but the images have {each.channels}. Pass one value, or one per channel"
                )
        if (
            spec.color == "bgr"
            and each.channels == 3
            and any(not op.moves_pixels for op in plan.ops)
        ):
            raise ConfigError(
                "color='bgr': transforms that change colors work on RGB only. "
                "Omit color and reverse the channels of the batches"
            )
