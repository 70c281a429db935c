"""Resolves what a loader delivers from the dataset and the options: fields, channels, shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from fastload._load.collate import COLLATE, Stack
from fastload._order.saved_state import shortened
from fastload._plan.compiler import compile_fields
from fastload._plan.field_plan import FieldPlan
from fastload._plan.labels import LabelMove, check_box_limits, label_move
from fastload._store.dataset import Dataset
from fastload._store.fields import SPLIT, Field, image_of
from fastload._store.kinds import BOXES, IMAGE, INT
from fastload.errors import ConfigError

IMPLICIT = ("id", "source")
COLORS = ("rgb", "bgr", "gray")
RAGGED = ("list", "pad")
SEARCHED = 1000  # samples that are searched for an example in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """The arguments of a DataLoader that define the content of a sample."""

    transform: object = None
    fields: Sequence[str] | None = None
    color: str | None = None
    ragged: str | Mapping[str, str] = "list"
    exact: bool = False
    return_matrix: bool = False
    min_visible: float = 0.0
    min_side: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadedField:
    """A field that is delivered, or the image field that a delivered field belongs to."""

    number: int  # index in the fields of the dataset
    field: Field
    image: str = ""  # the image field whose plan moves the values
    channels: int = 3  # channels of an image
    items: int = 1  # items per sample of a list field; 0: any number
    bits: int = 8  # bits per pixel of a mask, or per channel of an image
    ragged: str = "list"  # "list", "pad", or "stack" if all samples have the same shape
    move: LabelMove | None = None  # moves the values with the image

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
    rows: tuple[LoadedField, ...]  # boxes that delivered fields are along, delivered or not
    box_limits: tuple[float, float]  # min_visible, min_side

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
        found = {**plans, "color": color, "exact": str(self.exact)}
        if any(each.field.kind is BOXES for each in (*self.fields, *self.rows)):
            found["boxes"] = "min_visible={}, min_side={}".format(*self.box_limits)
        return shortened(found)


def load_spec(dataset: Dataset, options: SampleOptions) -> LoadSpec:
    """Checks the options against the dataset; raises ConfigError."""
    color = options.color
    if color is not None and color not in COLORS:
        raise ConfigError(f"color={color!r:.40}: expected None or one of {', '.join(COLORS)}")
    by_name = {each.name: (number, each) for number, each in enumerate(dataset.fields)}
    names = _names(options.fields, tuple(by_name))
    check_box_limits(options.min_visible, options.min_side)
    ragged = _ragged(options.ragged, names)
    images = {
        each.name: _image(dataset, number, each, color)
        for number, each in by_name.values()
        if each.kind.is_image
    }
    all_plans = compile_fields(
        options.transform,
        tuple(images),
        bits={name: each.bits for name, each in images.items()},
    )
    chosen = tuple(
        images.get(name) or _label(dataset, *by_name[name], images, modes=ragged, options=options)
        for name in names
        if name in by_name
    )
    # Without a transform, labels are loaded alone also from images of different sizes.
    drops = options.transform is not None or options.min_visible > 0 or options.min_side > 0
    rows = tuple(
        _label(dataset, *by_name[name], images, modes=ragged, options=options)
        for name in dict.fromkeys(each.field.along for each in chosen)
        if name and by_name[name][1].kind is BOXES and (drops or name in names)
    )
    needed = {
        each.image or each.name
        for each in (*chosen, *rows)
        if each.image or each.field.kind.is_image
    }
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
        rows,
        (options.min_visible, options.min_side),
    )
    for each in image_fields:
        if not each.items:
            raise ConfigError(
                f"field {each.name!r}: no sample has an image in its list. "
                "Remove the field from fields="
            )
    for each in spec.fields:
        _check(each, spec)
    for each in spec.images:
        _check_depth(each, spec.plans[each.name], dataset)
    return spec


def _one_shape(dataset: Dataset, number: int, *, items: int = 1) -> bool:
    """Returns whether every sample has ``items`` arrays of one shape and type."""
    found = dataset.manifest.properties[number]
    return found.shape is not None and found.in_every_sample(len(dataset), items)


def image_channels(dataset: Dataset, number: int) -> int:
    """Returns 1 if all images of a field are grayscale, else 3."""
    return 1 if dataset.manifest.properties[number].channels == {1} else 3


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


def _image(dataset: Dataset, number: int, field: Field, color: str | None) -> LoadedField:
    channels = image_channels(dataset, number) if color is None else 1 if color == "gray" else 3
    return LoadedField(
        number,
        field,
        channels=channels,
        items=dataset.manifest.properties[number].length if field.list else 1,
        bits=max({8, *dataset.manifest.properties[number].bits}),
    )


def _label(
    dataset: Dataset,
    number: int,
    field: Field,
    images: Mapping[str, LoadedField],
    *,
    modes: Mapping[str, str],
    options: SampleOptions,
) -> LoadedField:
    image = image_of(field, dataset.fields)
    ragged = modes.get(field.name) or modes.get(field.along) or "list unless stacked"
    move = label_move(field, min_visible=options.min_visible, min_side=options.min_side)
    image_field = images.get(image)
    stack = COLLATE[field.kind].stack
    if not field.list:
        items = 1
    elif image_field and image_field.field.list:
        items = image_field.items
    else:
        items = dataset.manifest.properties[number].length if stack is Stack.ALWAYS else 0
    if field.kind.is_mask and image:
        bits = max({8, *dataset.manifest.properties[number].bits})
        return LoadedField(number, field, image=image, items=items, bits=bits)
    how, _, unless_stacked = ragged.partition(" ")
    one_shape = stack is Stack.ALWAYS or (
        stack is Stack.SAME_SHAPE and not field.list and _one_shape(dataset, number)
    )
    if field.along:  # boxes may be dropped
        one_shape = False
        unless_stacked = ""
    cameras = next((each.items for each in images.values() if each.field.list), 0)
    if (
        stack is Stack.SAME_SHAPE
        and not field.kind.moves_with_image
        and field.list
        and unless_stacked
        and cameras
        and _one_shape(dataset, number, items=cameras)
    ):
        one_shape = True  # one value per camera, for example a pose
        items = cameras
    return LoadedField(
        number,
        field,
        image=image,
        items=items,
        ragged="stack" if one_shape and unless_stacked else how,
        move=move,
    )


def _check_depth(each: LoadedField, plan: FieldPlan, dataset: Dataset) -> None:
    """Raises ConfigError for pixel values above the depth, and for depths without a decision."""
    if any(value > plan.output.white for value in plan.fill):
        raise ConfigError(
            f"transform of {each.name!r}: fill={max(plan.fill)}: expected at most "
            f"{plan.output.white:.0f}, because the images have {plan.output.bits} bits per channel"
        )
    if {8, 16} <= dataset.manifest.properties[each.number].bits and not plan.sets_dtype:
        found = " and ".join(
            f"{bits} bits per channel{_sample_of(dataset, each.number, bits)}" for bits in (8, 16)
        )
        raise ConfigError(
            f"field {each.name!r} has images of {found}. Add ToDtype('uint8') to reduce all images "
            "to 8 bits, ToDtype('uint16') to multiply 8-bit values by 257, or Normalize"
        )


def _sample_of(dataset: Dataset, number: int, bits: int) -> str:
    """Returns an example of an image of this depth; "" if it is not among the first samples."""
    for sample in range(min(len(dataset), SEARCHED)):
        parts = dataset.parts(sample)
        if any(part.field == number and part.bits == bits for part in parts):
            return f" (sample {sample}, {dataset.source(sample)})"
    return ""


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
