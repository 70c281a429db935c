"""A picture of what the plan does to one sample: the source with its crop marked, beside the output. For people, not for training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastload._plan import labels

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from PIL import Image, ImageDraw

    from fastload._plan.rows import PlanRow

_ROI, _BOX, _POINT, _GAP = (255, 64, 64), (64, 220, 64), (255, 220, 0), 8


def render(row: PlanRow, image: Image.Image, *, fill: int = 114) -> Image.Image:
    """The output by Pillow: close to what the backends make, and readable."""
    from PIL import Image

    filters = (Image.Resampling.BILINEAR, Image.Resampling.BILINEAR, Image.Resampling.NEAREST)
    pixels = image.crop((row.x, row.y, row.x + row.w, row.y + row.h)).resize(
        (row.out_w, row.out_h), filters[row.filter]
    )
    if row.flip:
        pixels = pixels.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    canvas = Image.new(image.mode, (row.canvas_w, row.canvas_h), (fill,) * len(image.getbands()))
    canvas.paste(pixels, (row.pad_left, row.pad_top))
    for kind, values in row.colours:
        if kind == "upside_down" and values[0]:
            canvas = canvas.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        elif kind == "affine":
            canvas = canvas.transform(
                canvas.size,
                Image.Transform.AFFINE,
                values,
                Image.Resampling.BILINEAR,
                fillcolor=(fill,) * len(image.getbands()),
            )
    return canvas


def draw_row(
    row: PlanRow,
    image: Image.Image,
    *,
    boxes: ArrayLike | None = None,
    points: ArrayLike | None = None,
) -> Image.Image:
    """Left the source, what is not used darkened, with its labels; right the output, with the moved labels."""
    from PIL import Image, ImageDraw

    if image.size != (row.source_w, row.source_h):
        raise ValueError(
            f"sample {row.sample_id}: the plan is for an image of {row.source_w}x{row.source_h} pixels, this one has "
            f"{image.width}x{image.height}"
        )
    image = image.convert("RGB")
    output = render(row, image)
    roi = (row.x, row.y, row.x + row.w, row.y + row.h)
    source = image.point(lambda level: level // 3)
    source.paste(image.crop(roi), roi[:2])
    pen, out_pen = ImageDraw.Draw(source), ImageDraw.Draw(output)
    pen.rectangle((roi[0], roi[1], roi[2] - 1, roi[3] - 1), outline=_ROI)
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


def _draw_boxes(
    pen: ImageDraw.ImageDraw, boxes: np.ndarray[tuple[int, ...], np.dtype[np.floating]]
) -> None:
    for x0, y0, x1, y1 in boxes.reshape(-1, 4).tolist():
        pen.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=_BOX)


def _draw_points(
    pen: ImageDraw.ImageDraw, points: np.ndarray[tuple[int, ...], np.dtype[np.floating]]
) -> None:
    for x, y, *_ in points.tolist():
        pen.ellipse(
            (x - 2, y - 2, x + 1, y + 1), fill=_POINT
        )  # a point at 0.5 lies in the middle of pixel 0
