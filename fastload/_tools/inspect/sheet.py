"""`fastload inspect --sheet`: a contact sheet of random samples with their labels drawn."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from fastload._common.files import temporary_path
from fastload._common.formatting import printable
from fastload._order.permutation import Permutation
from fastload._store.dataset import Dataset
from fastload._tools.inspect.drawing import fitted, font, shortened
from fastload._tools.inspect.panels import Panel, SampleImages
from fastload.errors import ConfigError, FastloadError

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
        "/".join(dataset.path.parts[-2:]).lstrip("/"),
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
        return _Cell([Panel(None, (4, 3), note=str(error))], "DAMAGED", f"#{number}")
    return _Cell(
        images.panels() or [Panel(None, (4, 3), note="no image")],
        printable(images.title()),
        printable(f"#{number}  {source}"),
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
