"""Shapes → PNG with Pillow, which fastload needs anyway: no browser, no matplotlib. Drawn three times as large, then made smaller."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from fastload.errors import ConfigError
from fastload.report.palette import rgb
from fastload.report.shapes import Area, Line, Plot, Rect, Shape, Text

SCALE = 2                   # pixels a unit: sharp on paper and on fine screens
SMOOTH = 2                  # Pillow draws polygons without smoothing
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}
Paint = tuple[int, int, int, int]


def write_png(plot: Plot, path: Path) -> None:
    """The plot as an image, in the light colours."""
    factor = SCALE * SMOOTH
    image = Image.new("RGBA", (round(plot.width * factor), round(plot.height * factor)), (*rgb("card"), 255))
    for shape in plot.shapes:
        if isinstance(shape, Text):
            continue
        if _opacity(shape) < 1:             # Pillow paints over; only a layer of its own can be seen through
            layer = Image.new("RGBA", image.size, (0, 0, 0, 0))
            _draw(ImageDraw.Draw(layer), shape, factor)
            image.alpha_composite(layer)
        else:
            _draw(ImageDraw.Draw(image), shape, factor)
    small = image.convert("RGB").resize((round(plot.width * SCALE), round(plot.height * SCALE)), Image.Resampling.BOX)
    draw = ImageDraw.Draw(small)
    for shape in plot.shapes:
        if isinstance(shape, Text):
            font = ImageFont.load_default(size=shape.size * SCALE)
            draw.text((shape.x * SCALE, shape.y * SCALE), shape.text, fill=rgb(shape.fill), font=font, anchor=_ANCHORS[shape.anchor],
                      stroke_width=1 if shape.bold else 0)
    try:
        small.save(path)
    except OSError as error:
        raise ConfigError(f"writing {path}: {error.strerror or error}; give --png a folder that can be written") from error


def _opacity(shape: Shape) -> float:
    return shape.opacity if isinstance(shape, Rect | Area) else 1.0


def _draw(draw: ImageDraw.ImageDraw, shape: Shape, factor: int) -> None:
    if isinstance(shape, Rect):
        if shape.width > 0 and shape.height > 0:
            draw.rectangle((shape.x * factor, shape.y * factor, (shape.x + shape.width) * factor - 1,
                            max((shape.y + shape.height) * factor - 1, shape.y * factor)), fill=_paint(shape.fill, shape.opacity))
    elif isinstance(shape, Area):
        draw.polygon([(x * factor, y * factor) for x, y in shape.points], fill=_paint(shape.fill, shape.opacity))
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
            draw.line((x0 + (x1 - x0) * start, y0 + (y1 - y0) * start, x0 + (x1 - x0) * end, y0 + (y1 - y0) * end),
                      fill=_paint(shape.stroke, 1.0), width=width)


def _paint(name: str, opacity: float) -> Paint:
    return (*rgb(name), round(255 * opacity))
