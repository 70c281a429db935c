"""Draws a plan row: the source image with its crop, next to the output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastload._plan import labels
from fastload._plan.warps import VERTICAL_FLIP

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from PIL import Image, ImageDraw

    from fastload._plan.rows import PlanRow

_CROP_COLOR = (255, 64, 64)
_BOX_COLOR = (64, 220, 64)
_POINT_COLOR = (255, 220, 0)
_GAP = 8  # pixels between source and output


def render(row: PlanRow, image: Image.Image, *, fill: int = 114) -> Image.Image:
    """Computes the output with Pillow, without color changes.

    Decode backends produce nearly the same pixels.
    """
    from PIL import Image

    filters = (Image.Resampling.BILINEAR, Image.Resampling.BILINEAR, Image.Resampling.NEAREST)
    crop = image.crop((row.x, row.y, row.x + row.w, row.y + row.h))
    pixels = crop.resize((row.out_w, row.out_h), filters[row.filter])
    if row.flip:
        pixels = pixels.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    fill_color = (fill,) * len(image.getbands())
    canvas = Image.new(image.mode, (row.canvas_w, row.canvas_h), fill_color)
    canvas.paste(pixels, (row.pad_left, row.pad_top))
    for op, params in row.ops:
        if op == VERTICAL_FLIP:
            canvas = canvas.transpose(Image.Transpose.FLIP_TOP_BOTTOM) if params[0] else canvas
        elif op.moves_pixels:  # every other warp is a matrix
            affine = Image.Transform.AFFINE
            canvas = canvas.transform(canvas.size, affine, params, filters[0], fillcolor=fill_color)
    return canvas


def draw_row(
    row: PlanRow,
    image: Image.Image,
    *,
    boxes: ArrayLike | None = None,
    points: ArrayLike | None = None,
) -> Image.Image:
    """Draws the source with darkened unused pixels on the left, and the output on the right."""
    from PIL import Image, ImageDraw

    if image.size != (row.source_w, row.source_h):
        raise ValueError(
            f"sample {row.sample_id}: expected an image of {row.source_w}x{row.source_h} pixels, "
            f"found {image.width}x{image.height}"
        )
    image = image.convert("RGB")
    output = render(row, image)
    roi = (row.x, row.y, row.x + row.w, row.y + row.h)
    source = image.point(lambda value: value // 3)
    source.paste(image.crop(roi), roi[:2])
    pen = ImageDraw.Draw(source)
    out_pen = ImageDraw.Draw(output)
    pen.rectangle((roi[0], roi[1], roi[2] - 1, roi[3] - 1), outline=_CROP_COLOR)
    if boxes is not None:
        _draw_boxes(pen, np.asarray(boxes, np.float64))
        _draw_boxes(out_pen, labels.move_boxes(boxes, row)[0])
    if points is not None:
        moved, visible = labels.move_points(points, row)
        _draw_points(pen, np.asarray(points, np.float64))
        _draw_points(out_pen, moved[visible])
    both = Image.new("RGB", (source.width + _GAP + output.width, max(source.height, output.height)))
    both.paste(source, (0, 0))
    both.paste(output, (source.width + _GAP, 0))
    return both


def _draw_boxes(pen: ImageDraw.ImageDraw, boxes: NDArray[np.floating]) -> None:
    for x0, y0, x1, y1 in boxes.reshape(-1, 4).tolist():
        pen.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=_BOX_COLOR)


def _draw_points(pen: ImageDraw.ImageDraw, points: NDArray[np.floating]) -> None:
    for x, y, *_ in points.tolist():
        # A point at 0.5 lies in the middle of pixel 0.
        pen.ellipse((x - 2, y - 2, x + 1, y + 1), fill=_POINT_COLOR)
