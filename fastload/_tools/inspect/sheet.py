"""`--sheet`: a page of random samples with their labels drawn, to see at a glance whether a dataset is what it should be."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from fastload._common.files import temporary_path
from fastload._common.formatting import printable
from fastload._order.permutation import Permutation
from fastload._store.dataset import Dataset
from fastload._tools.inspect.drawing import fitted, font, shortened
from fastload._tools.inspect.panels import Panel, SamplePictures
from fastload.errors import ConfigError, FastloadError

COUNT = 24
_WIDTH = 1680  # of the page, about
_TALL = 210  # of a picture
_GAP = 14
_EDGE = 28
_HEAD = 92
# heights of the words below a sample
_TITLE = 24
_LINE = 22
_ACROSS = 4  # pictures of one sample side by side, before a second row begins
_PAPER = (24, 26, 31)
_FRAME = (42, 45, 52)
_INK = (236, 238, 242)
_FAINT = (146, 151, 162)


@dataclass(frozen=True, slots=True)
class _Cell:
    """One sample on the page."""

    panels: Sequence[Panel]
    title: str
    below: str


def write_sheet(dataset: Dataset, path: Path, *, seed: int = 0, count: int = COUNT) -> int:
    """Writes a contact sheet of ``count`` samples; returns how many there are on it. The same seed shows the same."""
    _check_path(path)
    n = min(count, len(dataset))
    numbers = Permutation(len(dataset), seed=seed)(np.arange(n)).tolist()
    page = _page(
        [_cell(dataset, number) for number in numbers],
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
        raise ConfigError(f"--sheet {path}: cannot be written: {error.strerror or error}") from None
    return n


def _check_path(path: Path) -> None:
    """Before anything is decoded."""
    Image.init()
    if Image.registered_extensions().get(path.suffix.lower()) not in Image.SAVE:
        raise ConfigError(
            f"--sheet {path}: {path.suffix or 'no suffix'}: expected a file name that ends with .png or .jpg"
        )
    if not path.absolute().parent.is_dir():
        raise ConfigError(
            f"--sheet {path}: there is no folder {path.absolute().parent}; make it first"
        )
    if path.is_dir():
        raise ConfigError(f"--sheet {path}: is a folder, expected the name of a new picture")


def _cell(dataset: Dataset, number: int) -> _Cell:
    """A sample that cannot be decoded has a place on the page all the same, and says why."""
    try:
        pictures = SamplePictures(dataset, dataset[number])
        source = dataset.source(number)
    except FastloadError as error:
        return _Cell([Panel(None, (4, 3), note=str(error))], "DAMAGED", f"#{number}")
    return _Cell(
        pictures.panels() or [Panel(None, (4, 3), note="no image")],
        printable(pictures.title()),
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
        x = _EDGE + place % grid.columns * (grid.cell[0] + _GAP)
        y = _HEAD + place // grid.columns * (grid.cell[1] + _GAP)
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

    wide: int  # of a picture
    across: int  # pictures of a sample in a row
    cell: tuple[int, int]  # of a sample with its words
    columns: int
    page: tuple[int, int]

    @classmethod
    def of(cls, cells: Sequence[_Cell]) -> _Grid:
        """As wide as the median picture is, as many as the page takes, and no hole at the end where that can be."""
        shapes = [panel.size[0] / panel.size[1] for cell in cells for panel in cell.panels] or [1.0]
        wide = round(_TALL * min(2.0, max(0.75, statistics.median(shapes))))
        pictures = max((len(cell.panels) for cell in cells), default=1)
        down = -(-pictures // _ACROSS)
        across = -(-pictures // down)
        words = _LINE + (_TITLE if any(cell.title for cell in cells) else 0)
        cell = across * (wide + 4) - 4, down * (_TALL + 4) - 4 + words
        columns = max(1, min(len(cells), (_WIDTH - 2 * _EDGE + _GAP) // (cell[0] + _GAP)))
        if columns > 2 and len(cells) % columns and not len(cells) % (columns - 1):
            columns -= 1
        rows = -(-len(cells) // columns)
        page = (
            max(columns * (cell[0] + _GAP) - _GAP, 420) + 2 * _EDGE,
            _HEAD + rows * (cell[1] + _GAP) - _GAP + _EDGE,
        )
        return cls(wide, across, cell, columns, page)


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
        words = printable(panel.note)
        lines = [words[i : i + room[0] // 8] for i in range(0, len(words), room[0] // 8)][
            : room[1] // 20
        ]
        for row, line in enumerate(lines):
            draw.text(
                (corner[0] + 8, corner[1] + 16 + 18 * row),
                line,
                (240, 120, 110),
                letters,
                anchor="lm",
            )
