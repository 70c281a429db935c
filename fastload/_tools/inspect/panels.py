"""The images of one sample as panels, each with its boxes, lines and masks drawn on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from fastload._store.dataset import SPLIT, Dataset
from fastload._store.fields import Field
from fastload._store.kinds import POINTS
from fastload._tools.inspect.drawing import (
    Array,
    Color,
    color,
    draw_mask,
    scaled,
    to_rgb,
)
from fastload._tools.inspect.showing import SHOWN

# Fields with one class number per box or line.
_CLASS_FIELDS = ("labels", "label", "categories", "category_ids", "classes")
_CAPTION = 60  # most characters of a text value
_VALUES = 3  # most values in a title


@dataclass(frozen=True, slots=True)
class Panel:
    """One image of a sheet. ``render`` draws it at a (width, height); None shows only the note."""

    render: Callable[[tuple[int, int]], Image.Image] | None
    size: tuple[int, int]
    note: str = ""


class SampleImages:
    """The images and labels of a decoded ``sample``."""

    def __init__(self, dataset: Dataset, sample: dict[str, Any]) -> None:
        self.fields = dataset.fields
        self.sample = sample
        info = dataset.manifest.options.get("info")
        self._info: dict[str, Any] = info if isinstance(info, dict) else {}
        self._images = [each for each in self.fields if each.kind.is_image]

    def panels(self) -> list[Panel]:
        """All images with their labels, then masks whose size differs from their image.

        A bird's-eye view is an example of such a mask.
        """
        found = [
            self._panel(field, item, pixels)
            for field in self._images
            for item, pixels in enumerate(self._items(field))
        ]
        found += [
            Panel(_mask_alone(mask), (mask.shape[1], mask.shape[0]), field.name)
            for field in self.fields
            if field.kind.is_mask
            for mask in self._items(field)
            if not self._fits(field, mask)
        ]
        return found

    def title(self) -> str:
        """Class names first, then a few short values."""
        classes = []
        others = []
        for field in self.fields:
            value = self.sample[field.name]
            if value is None or field.list or field.name == SPLIT:
                continue
            if field.classes:
                classes.append(
                    field.classes[value]
                    if 0 <= value < len(field.classes)
                    else f"{field.name} {value}?"
                )
            elif (caption := SHOWN[field.kind].caption) is not None:
                others.append(f"{field.name} {caption(value)}"[:_CAPTION])
        return "  ·  ".join([*classes, *others[: max(0, _VALUES - len(classes))]])

    def _items(self, field: Field) -> list[Array]:
        value = self.sample[field.name]
        if value is None:
            return []
        return value if field.list else [value]

    def _panel(self, field: Field, item: int, pixels: Array) -> Panel:
        labels = [
            (each, draw)
            for each in self.fields
            if (draw := SHOWN[each.kind].draw) is not None and self._image_of(each) == field.name
        ]
        labels.sort(key=lambda each: not each[0].kind.is_mask)  # draw masks below lines

        def render(size: tuple[int, int]) -> Image.Image:
            image = scaled(to_rgb(pixels), size)
            for each, draw in labels:
                for value in self._belonging(each, field, item):
                    image = draw(image, value, pixels.shape, self._classes)
            return image

        return Panel(render, (pixels.shape[1], pixels.shape[0]), self._note(field, item))

    def _note(self, field: Field, item: int) -> str:
        if field.list:
            return self._camera(item)
        return field.name if len(self._images) > 1 else ""

    def _belonging(self, label: Field, image: Field, item: int) -> Iterator[Any]:
        """The values of a label field that are drawn on item ``item`` of an image field.

        If both are lists, items correspond. Otherwise all values belong to the first image.
        """
        value = self.sample[label.name]
        if value is None:
            return
        if label.list and image.list:
            yield from value[item : item + 1]
        elif item == 0:
            # A list of points is one set of polylines. Boxes and masks are drawn one by one.
            yield from [value] if not label.list or label.kind is POINTS else value

    def _classes(self, n: int) -> tuple[Sequence[str], Sequence[Color]]:
        """Class names and colors of n boxes or lines, if a field of the sample has them."""
        for name in _CLASS_FIELDS:
            numbers = self.sample.get(name)
            if (
                isinstance(numbers, np.ndarray)
                and numbers.shape == (n,)
                and numbers.dtype.kind in "iu"
            ):
                known = self._category_names()
                return [known.get(int(k), str(k)) for k in numbers], [
                    color(int(k)) for k in numbers
                ]
        return (), ()

    def _category_names(self) -> dict[int, str]:
        """Class names from the manifest: a list in class order, or a mapping of numbers."""
        found = self._info.get("categories") or self._info.get("lane_categories")
        if isinstance(found, list):
            return {
                number: str(each.get("name", number) if isinstance(each, dict) else each)
                for number, each in enumerate(found)
            }
        if isinstance(found, dict):
            return {int(number): str(name) for number, name in found.items() if number.isdecimal()}
        return {}

    def _camera(self, item: int) -> str:
        cameras = self._info.get("cameras")
        return (
            str(cameras[item]) if isinstance(cameras, list) and item < len(cameras) else f"[{item}]"
        )

    def _image_of(self, label: Field) -> str:
        return label.image or (self._images[0].name if self._images else "")

    def _fits(self, field: Field, mask: Array) -> bool:
        """Whether the mask has the size of its image, so that it can be drawn on it."""
        images = [each for each in self._images if each.name == self._image_of(field)]
        return any(
            pixels.shape[:2] == mask.shape for image in images for pixels in self._items(image)
        )


def _mask_alone(mask: Array) -> Callable[[tuple[int, int]], Image.Image]:
    return lambda size: draw_mask(Image.new("RGB", size), mask, alpha=200)
