"""The pictures of one sample, each with what belongs to it: which boxes, lines and masks go on which image."""

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
    as_picture,
    color,
    draw_mask,
    scaled,
)
from fastload._tools.inspect.showing import SHOWN

# Arrays with one class number a box or line
_CLASS_FIELDS = ("labels", "label", "categories", "category_ids", "classes")
_CAPTION = 60  # characters of a text value
_VALUES = 3  # in a title


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture to be; ``render`` draws it at a given size (width, height). None: only the note is shown."""

    render: Callable[[tuple[int, int]], Image.Image] | None
    size: tuple[int, int]
    note: str = ""


class SamplePictures:
    """The decoded ``sample`` of a dataset, ready to be drawn."""

    def __init__(self, dataset: Dataset, sample: dict[str, Any]) -> None:
        self.fields = dataset.fields
        self.sample = sample
        info = dataset.manifest.options.get("info")
        self._info: dict[str, Any] = info if isinstance(info, dict) else {}
        self._images = [each for each in self.fields if each.kind.is_image]

    def panels(self) -> list[Panel]:
        """All images, of lists too, with their labels; then the masks that are no image's size (a bird's eye view)."""
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
        """Classes first, then a few short values."""
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
        labels.sort(key=lambda each: not each[0].kind.is_mask)  # masks lie below lines

        def render(size: tuple[int, int]) -> Image.Image:
            picture = scaled(as_picture(pixels), size)
            for each, draw in labels:
                for value in self._belonging(each, field, item):
                    picture = draw(picture, value, pixels.shape, self._classes)
            return picture

        return Panel(render, (pixels.shape[1], pixels.shape[0]), self._note(field, item))

    def _note(self, field: Field, item: int) -> str:
        if field.list:
            return self._camera(item)
        return field.name if len(self._images) > 1 else ""

    def _belonging(self, label: Field, image: Field, item: int) -> Iterator[Any]:
        """The value of a label for one image: of two lists, the same place; of one list, all of it; else the first image's."""
        value = self.sample[label.name]
        if value is None:
            return
        if label.list and image.list:
            yield from value[item : item + 1]
        elif item == 0:
            # A list of points is one set of polylines; lists of boxes or masks are drawn one after the other.
            yield from [value] if not label.list or label.kind is POINTS else value

    def _classes(self, n: int) -> tuple[Sequence[str], Sequence[Color]]:
        """Class names and colors of n boxes or lines, where an array of the sample says them."""
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
        """Names that the source gave to class numbers, kept in the manifest: a list in class order, or numbers to names."""
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
        """The mask has the size of its image, so it is drawn there."""
        images = [each for each in self._images if each.name == self._image_of(field)]
        return any(
            pixels.shape[:2] == mask.shape for image in images for pixels in self._items(image)
        )


def _mask_alone(mask: Array) -> Callable[[tuple[int, int]], Image.Image]:
    return lambda size: draw_mask(Image.new("RGB", size), mask, alpha=200)
