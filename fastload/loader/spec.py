"""What a loader delivers, decided once, from the dataset and the options: fields, channels, shapes, types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastload.errors import ConfigError
from fastload.plan.compose import compile_fields
from fastload.plan.field_plan import FieldPlan
from fastload.store.dataset import Dataset
from fastload.store.fields import Field, image_of
from fastload.store.record import DATA

LOOKED_AT = 64              # samples looked at for what the manifest does not say: gray or colour, fixed shapes
IMPLICIT = ("id", "source")


@dataclass(frozen=True, slots=True)
class ChosenField:
    """One field that the batches hold."""

    number: int                     # in the dataset's fields; -1 for id and source
    field: Field
    image: str = ""                 # the image field whose plan moves it
    channels: int = 3               # of an image
    fixed: bool = False             # numbers of one shape in every sample: stacked to one tensor

    @property
    def name(self) -> str:
        """As in the dataset."""
        return self.field.name

    @property
    def in_python(self) -> bool:
        """Its bytes are unpacked by Python, not by decode threads or taken from a column."""
        return self.field.kind not in ("image", "int", "float") or (self.field.kind != "image" and self.field.list)


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """What is loaded and how it is handed out."""

    fields: tuple[ChosenField, ...]
    implicit: tuple[str, ...]                   # "id", "source", where asked for
    plans: dict[str, FieldPlan]                 # of each image field that is chosen or moves a chosen one
    as_tuple: bool                              # (images, labels) instead of a dict
    ragged: str                                 # "list" or "pad"
    exact: bool
    return_matrix: bool

    @property
    def images(self) -> tuple[ChosenField, ...]:
        """The image fields."""
        return tuple(each for each in self.fields if each.field.kind == "image")

    def describe(self) -> dict[str, str]:
        """The plans in words; equal words, equal pixels."""
        return {name: plan.describe() for name, plan in self.plans.items()}


def load_spec(dataset: Dataset, *, fields: Sequence[str] | None, transform: object, colour: str | None, ragged: str, exact: bool,
              return_matrix: bool) -> LoadSpec:
    """Checks the options against the dataset; raises ConfigError."""
    if ragged not in ("list", "pad"):
        raise ConfigError(f"ragged={ragged!r:.40}: expected 'list' (one tensor a sample) or 'pad' (one tensor and a mask)")
    by_name = {each.name: (number, each) for number, each in enumerate(dataset.fields)}
    names = tuple(fields) if fields is not None else tuple(name for name in by_name if name != "split")
    unknown = [name for name in names if name not in by_name and name not in IMPLICIT]
    if unknown or len(set(names)) != len(names) or not names:
        raise ConfigError(f"fields={list(names)!r:.200}: expected some of {', '.join((*by_name, *IMPLICIT))}, each once")
    image_names = [each.name for each in dataset.fields if each.kind == "image"]
    chosen = tuple(_chosen(dataset, *by_name[name], colour) for name in names if name in by_name)
    plans = compile_fields(transform, image_names)
    needed = {each.name for each in chosen if each.field.kind == "image"} | {each.image for each in chosen if each.image}
    kinds = [(each.field.kind, each.field.list) for each in chosen]
    as_tuple = len(names) == len(chosen) and kinds == [("image", False), ("int", False)] and not return_matrix
    return LoadSpec(chosen, tuple(name for name in names if name in IMPLICIT), {name: plans[name] for name in needed}, as_tuple, ragged,
                    exact, return_matrix)


def _chosen(dataset: Dataset, number: int, field: Field, colour: str | None) -> ChosenField:
    if field.kind == "image":
        return ChosenField(number, field, channels=_channels(dataset, number, colour))
    image = image_of(field, dataset.fields)
    fixed = field.kind == "matrix" or (field.kind in ("array", "points", "mask") and not field.list and _same_shape(dataset, field.name))
    return ChosenField(number, field, image=image, fixed=fixed)


def _some_ids(dataset: Dataset) -> range:
    return range(0, len(dataset), max(1, len(dataset) // LOOKED_AT))


def _channels(dataset: Dataset, number: int, colour: str | None) -> int:
    """1 where asked for, or where all images looked at are gray; else 3."""
    if colour is not None:
        if colour not in ("rgb", "bgr", "gray"):
            raise ConfigError(f"colour={colour!r:.40}: expected rgb, bgr or gray")
        return 1 if colour == "gray" else 3
    found = {part.channels for i in _some_ids(dataset) for part in dataset.parts(i) if part.field == number and part.role == DATA}
    return 1 if found == {1} else 3


def _same_shape(dataset: Dataset, name: str) -> bool:
    shapes = {None if (value := dataset[i][name]) is None else np.shape(value) for i in _some_ids(dataset)}
    return len(shapes) == 1 and None not in shapes
