"""`fastload inspect --sheet`: a contact sheet of random samples with their labels drawn."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from fastload._common.files import temporary_path
from fastload._common.formatting import printable
from fastload._order.permutation import Permutation
from fastload._store.dataset import Dataset
from fastload._store.fields import SPLIT, Field
from fastload._store.kinds import POINTS
from fastload._tools.inspect.drawing import (
    Array,
    Color,
    color,
    draw_mask,
    fitted,
    font,
    scaled,
    shortened,
    to_rgb,
)
from fastload._tools.inspect.sample import SHOWN
from fastload.errors import ConfigError, FastloadError

# Fields with one class number per box or line.
_CLASS_FIELDS = ("labels", "label", "categories", "category_ids", "classes")
_CAPTION = 60  # most characters of a text value
_VALUES = 3  # most values in a title
COUNT = 24
# Sizes in pixels.
_WIDTH = 1680  # largest width of the page
_TALL = 210  # height of an image
_GAP = 14
_EDGE = 28
_HEAD = 92
# Heights of the two lines of text below a sample.
_TITLE = 24
_LINE = 22
_ACROSS = 4  # images of one sample side by side, before a second row begins
_PAPER = (24, 26, 31)
_FRAME = (42, 45, 52)
_INK = (236, 238, 242)
_FAINT = (146, 151, 162)
_ERROR = (240, 120, 110)


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


@dataclass(frozen=True, slots=True)
class _Cell:
    """One sample of the sheet, with two lines of text below its images."""

    panels: Sequence[Panel]
    title: str
    below: str


def write_sheet(
    dataset: Dataset,
    path: Path,
    *,
    seed: int = 0,
    count: int = COUNT,
    tick: Callable[[int, int], None] | None = None,
) -> int:
    """Writes a contact sheet of up to ``count`` samples and returns their number.

    ``seed`` selects the samples. ``tick`` is called with (samples done, total).
    """
    _check_path(path)
    n = min(count, len(dataset))
    cells = []
    for number in Permutation(len(dataset), seed=seed)(np.arange(n)).tolist():
        cells.append(_cell(dataset, number))
        if tick is not None:
            tick(len(cells), n)
    page = _page(
        cells,
        "/".join((*dataset.path.parts[-2:], dataset.split_name or "")).strip("/"),
        f"{n:,} of {len(dataset):,} samples, seed {seed}",
    )
    temporary = temporary_path(path)
    try:
        with temporary.open("wb") as file:
            page.save(file, Image.registered_extensions()[path.suffix.lower()])
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigError(f"--sheet {path}: cannot write it: {error.strerror or error}") from None
    return n


def _check_path(path: Path) -> None:
    Image.init()
    if Image.registered_extensions().get(path.suffix.lower()) not in Image.SAVE:
        raise ConfigError(f"--sheet {path}: expected a file name that ends in .png or .jpg")
    if not path.absolute().parent.is_dir():
        raise ConfigError(
            f"--sheet {path}: the folder {path.absolute().parent} does not exist; create it first"
        )
    if path.is_dir():
        raise ConfigError(f"--sheet {path}: this is a folder; expected the name of an image file")


def _cell(dataset: Dataset, number: int) -> _Cell:
    """A sample that cannot be decoded keeps its place and shows the reason."""
    try:
        images = SampleImages(dataset, dataset[number])
        source = dataset.source(number)
    except FastloadError as error:
        return _Cell([Panel(None, (4, 3), note=str(error))], "DAMAGED", f"#{dataset.ids[number]}")
    return _Cell(
        images.panels() or [Panel(None, (4, 3), note="no image")],
        printable(images.title()),
        printable(f"#{dataset.ids[number]}  {source}"),
    )


def _page(cells: Sequence[_Cell], title: str, below: str) -> Image.Image:
    grid = _Grid.of(cells)
    page = Image.new("RGB", grid.page, _PAPER)
    draw = ImageDraw.Draw(page)
    draw.text(
        (_EDGE, 30),
        shortened(printable(title), font(28), page.width - 2 * _EDGE),
        _INK,
        font(28),
        anchor="lm",
    )
    draw.text((_EDGE, 64), below, _FAINT, font(15), anchor="lm")
    for place, cell in enumerate(cells):
        x, y = grid.corner(place)
        for number, panel in enumerate(cell.panels):
            _paste(
                page,
                panel,
                (
                    x + number % grid.across * (grid.wide + 4),
                    y + number // grid.across * (_TALL + 4),
                ),
                (grid.wide, _TALL),
            )
        bottom = y + grid.cell[1]
        if cell.title:
            draw.text(
                (x, bottom - _LINE - 9),
                shortened(cell.title, font(15), grid.cell[0]),
                _INK,
                font(15),
                anchor="lm",
            )
        draw.text(
            (x, bottom - 11),
            shortened(cell.below, font(12), grid.cell[0]),
            _FAINT,
            font(12),
            anchor="lm",
        )
    return page


@dataclass(frozen=True, slots=True)
class _Grid:
    """Where things go; sizes are (width, height)."""

    wide: int  # width of an image
    across: int  # images of a sample in a row
    cell: tuple[int, int]  # a sample with its text
    columns: int
    page: tuple[int, int]

    @classmethod
    def of(cls, cells: Sequence[_Cell]) -> _Grid:
        """Fits images of the median aspect ratio; prefers full rows over one more column."""
        shapes = [panel.size[0] / panel.size[1] for cell in cells for panel in cell.panels] or [1.0]
        wide = round(_TALL * min(2.0, max(0.75, statistics.median(shapes))))
        n_images = max((len(cell.panels) for cell in cells), default=1)
        down = -(-n_images // _ACROSS)
        across = -(-n_images // down)
        text = _LINE + (_TITLE if any(cell.title for cell in cells) else 0)
        cell = across * (wide + 4) - 4, down * (_TALL + 4) - 4 + text
        columns = max(1, min(len(cells), (_WIDTH - 2 * _EDGE + _GAP) // (cell[0] + _GAP)))
        if columns > 2 and len(cells) % columns and not len(cells) % (columns - 1):
            columns -= 1
        rows = -(-len(cells) // columns)
        page = (
            max(columns * (cell[0] + _GAP) - _GAP, 420) + 2 * _EDGE,
            _HEAD + rows * (cell[1] + _GAP) - _GAP + _EDGE,
        )
        return cls(wide, across, cell, columns, page)

    def corner(self, place: int) -> tuple[int, int]:
        """The upper left corner (x, y) of a cell."""
        row, column = divmod(place, self.columns)
        return _EDGE + column * (self.cell[0] + _GAP), _HEAD + row * (self.cell[1] + _GAP)


def _paste(page: Image.Image, panel: Panel, corner: tuple[int, int], room: tuple[int, int]) -> None:
    draw = ImageDraw.Draw(page)
    draw.rectangle((*corner, corner[0] + room[0] - 1, corner[1] + room[1] - 1), fill=_FRAME)
    if panel.render is not None:
        size = fitted(panel.size, room)
        page.paste(
            panel.render(size),
            (corner[0] + (room[0] - size[0]) // 2, corner[1] + (room[1] - size[1]) // 2),
        )
    letters = font(12)
    if panel.note and panel.render is not None:
        note = shortened(printable(panel.note), letters, room[0] - 12)
        width = letters.getlength(note) + 10
        draw.rectangle(
            (corner[0], corner[1] + room[1] - 18, corner[0] + width, corner[1] + room[1] - 1),
            fill=_PAPER,
        )
        draw.text((corner[0] + 5, corner[1] + room[1] - 9), note, _FAINT, letters, anchor="lm")
    elif panel.note:
        lines = textwrap.wrap(printable(panel.note), room[0] // 8)[: room[1] // 20]
        for row, line in enumerate(lines):
            at = (corner[0] + 8, corner[1] + 16 + 18 * row)
            draw.text(at, line, _ERROR, letters, anchor="lm")
