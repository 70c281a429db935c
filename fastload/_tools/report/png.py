"""Shapes → PNG with Pillow, which fastload needs anyway: no browser, no matplotlib. Drawn three times as large, then made smaller."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from fastload._tools.report.palette import rgb
from fastload._tools.report.shapes import Area, Line, Plot, Rect, Shape, Text
from fastload.errors import ConfigError

SCALE = 2  # pixels a unit: sharp on paper and on fine screens
MARGIN = 20
SMOOTH = 2  # Pillow draws polygons without smoothing
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}
Paint = tuple[int, int, int, int]


def write_png(plot: Plot, path: Path, *, title: str) -> None:
    """The plot as an image under its title, in the light colours."""
    factor = SCALE * SMOOTH
    image = Image.new(
        "RGBA", (round(plot.width * factor), round(plot.height * factor)), (*rgb("card"), 255)
    )
    for shape in plot.shapes:
        if isinstance(shape, Text):
            continue
        if isinstance(shape, Rect | Area) and shape.opacity < 1:
            _see_through(image, shape, factor)
        else:
            _draw(ImageDraw.Draw(image), shape, factor)
    small = image.convert("RGB").resize(
        (round(plot.width * SCALE), round(plot.height * SCALE)), Image.Resampling.BOX
    )
    draw = ImageDraw.Draw(small)
    for shape in plot.shapes:
        if isinstance(shape, Text):
            font = ImageFont.load_default(size=shape.size * SCALE)
            draw.text(
                (shape.x * SCALE, shape.y * SCALE),
                shape.text,
                fill=rgb(shape.fill),
                font=font,
                anchor=_ANCHORS[shape.anchor],
            )
    try:
        _titled(small, title).save(path)
    except OSError as error:
        raise ConfigError(
            f"writing {path}: {error.strerror or error}; give --png a folder that can be written"
        ) from error


def _titled(image: Image.Image, title: str) -> Image.Image:
    sheet = Image.new(
        "RGB", (image.width + 2 * MARGIN, image.height + 2 * MARGIN + 44), rgb("card")
    )
    ImageDraw.Draw(sheet).text(
        (MARGIN, MARGIN),
        title,
        fill=rgb("text"),
        font=ImageFont.load_default(size=15 * SCALE),
        anchor="lt",
    )
    sheet.paste(image, (MARGIN, MARGIN + 44))
    return sheet


def _see_through(image: Image.Image, shape: Rect | Area, factor: int) -> None:
    """Pillow paints over; only a layer of its own can be seen through. As small as the shape: hundreds of them are drawn."""
    points = (
        shape.points
        if isinstance(shape, Area)
        else ((shape.x, shape.y), (shape.x + shape.width, shape.y + shape.height))
    )
    left, top = (max(math.floor(min(each) * factor), 0) for each in zip(*points, strict=True))
    right, bottom = (math.ceil(max(each) * factor) + 1 for each in zip(*points, strict=True))
    size = (min(right, image.width) - left, min(bottom, image.height) - top)
    if size[0] <= 0 or size[1] <= 0:
        return
    layer = Image.new("RGBA", size, (0, 0, 0, 0))
    moved = (
        replace(shape, points=tuple((x - left / factor, y - top / factor) for x, y in shape.points))
        if isinstance(shape, Area)
        else replace(shape, x=shape.x - left / factor, y=shape.y - top / factor)
    )
    _draw(ImageDraw.Draw(layer), moved, factor)
    image.alpha_composite(layer, (left, top))


def _draw(draw: ImageDraw.ImageDraw, shape: Shape, factor: int) -> None:
    if isinstance(shape, Rect):
        if shape.width > 0 and shape.height > 0:
            draw.rectangle(
                (
                    shape.x * factor,
                    shape.y * factor,
                    (shape.x + shape.width) * factor - 1,
                    max((shape.y + shape.height) * factor - 1, shape.y * factor),
                ),
                fill=_paint(shape.fill, shape.opacity),
            )
    elif isinstance(shape, Area):
        draw.polygon(
            [(x * factor, y * factor) for x, y in shape.points],
            fill=_paint(shape.fill, shape.opacity),
        )
    elif isinstance(shape, Line):
        points = [(x * factor, y * factor) for x, y in shape.points]
        width = max(round(shape.width * factor), 1)
        if not shape.dashed:
            draw.line(points, fill=_paint(shape.stroke, 1.0), width=width, joint="curve")
            return
        (x0, y0), (x1, y1) = points[0], points[-1]
        n = max(round(((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5 / (7 * factor)), 1)
        for k in range(n):
            start, end = k / n, (k + 0.57) / n
            draw.line(
                (
                    x0 + (x1 - x0) * start,
                    y0 + (y1 - y0) * start,
                    x0 + (x1 - x0) * end,
                    y0 + (y1 - y0) * end,
                ),
                fill=_paint(shape.stroke, 1.0),
                width=width,
            )


def _paint(name: str, opacity: float) -> Paint:
    return (*rgb(name), round(255 * opacity))
