"""Draws labels on an image: boxes, points, polylines and masks, at the displayed size."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Color = tuple[int, int, int]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
Array = NDArray[Any]

# Shapes are drawn this many times larger and then reduced, because Pillow does not antialias lines.
_FINER = 3
_MASK_ALPHA = 110
_EDGE_ALPHA = 230
_SHADOW = (0, 0, 0, 170)
# Coordinates are clamped to this many image sizes, because Pillow stores them as small integers.
_FAR = 4.0


def color(number: int) -> Color:
    """A bright color for a class or instance. Consecutive numbers get distant hues."""
    hue = (0.58 + 0.61803398875 * number) % 1.0
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.72, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def font(size: int) -> Font:
    """DejaVu if it is installed (it covers most scripts), otherwise the font of Pillow."""
    try:
        return ImageFont.truetype("DejaVuSans.ttf", size)
    except OSError:
        return ImageFont.load_default(size)


def to_rgb(pixels: Array) -> Image.Image:
    """Converts any stored image to 8-bit RGB. 16-bit images are scaled to their maximum."""
    if pixels.dtype != np.uint8:
        pixels = (pixels.astype(np.float64) * (255.0 / max(1, int(pixels.max())))).astype(np.uint8)
    return Image.fromarray(pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, 0]).convert(
        "RGB"
    )


def fitted(size: tuple[int, int], room: tuple[int, int]) -> tuple[int, int]:
    """The largest (width, height) of the same aspect ratio that fits into ``room``."""
    scale = min(room[0] / size[0], room[1] / size[1])
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def scaled(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resizes an image. Strongly enlarged images keep sharp pixels; others are smoothed."""
    grows = size[0] >= 2 * image.width
    return image.resize(size, Image.Resampling.NEAREST if grows else Image.Resampling.LANCZOS)


def draw_mask(image: Image.Image, mask: Array, *, alpha: int = _MASK_ALPHA) -> Image.Image:
    """Blends a mask over the image: 0 is transparent, other labels get a color and an edge."""
    labels = np.asarray(
        Image.fromarray(mask.astype(np.int32)).resize(image.size, Image.Resampling.NEAREST)
    )
    layer = np.zeros((*labels.shape, 4), np.uint8)
    for label in np.unique(labels)[:256].tolist():
        if label:
            # 255 is the usual "ignore" label.
            layer[labels == label] = (*((200, 200, 200) if label == 255 else color(label)), alpha)
    edge = np.zeros(labels.shape, np.bool_)
    edge[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    edge[1:] |= labels[1:] != labels[:-1]
    layer[edge & (labels != 0), 3] = max(alpha, _EDGE_ALPHA)
    return Image.alpha_composite(image.convert("RGBA"), Image.fromarray(layer)).convert("RGB")


def draw_shapes(
    image: Image.Image,
    scale: tuple[float, float],
    *,
    boxes: Array | None = None,
    lines: Sequence[Array] = (),
    points: Array | None = None,
    colors: Sequence[Color] = (),
) -> Image.Image:
    """Draws boxes (n, 4), polylines and points (n, 2 or 3) that are in stored-image pixels.

    ``scale`` is (x, y): displayed pixels per stored pixel.
    """
    layer = Image.new("RGBA", (image.width * _FINER, image.height * _FINER))
    draw = ImageDraw.Draw(layer)
    for number, box in enumerate(_rows(boxes, 4)):
        x0, y0 = _moved(box[:2], scale, image.size)
        x1, y1 = _moved(box[2:], scale, image.size)
        left, right = sorted((x0, x1))
        top, bottom = sorted((y0, y1))
        # Our boxes exclude their right and bottom coordinates; Pillow's rectangles include them.
        corners = (left, top, max(left, right - 1), max(top, bottom - 1))
        draw.rectangle(corners, outline=_SHADOW, width=4 * _FINER)
        inner = tuple(
            side + d for side, d in zip(corners, (_FINER, _FINER, -_FINER, -_FINER), strict=True)
        )
        if inner[0] <= inner[2] and inner[1] <= inner[3]:
            draw.rectangle(inner, outline=(*_chosen(colors, number), 255), width=2 * _FINER)
    for number, line in enumerate(lines):
        path = [_moved(point[:2], scale, image.size) for point in _rows(line, 2)]
        for width, tint in ((5, _SHADOW), (3, (*_chosen(colors, number), 255))):
            if len(path) > 1:
                draw.line(path, fill=tint, width=width * _FINER, joint="curve")
            for x, y in (path[0], path[-1]) if path else ():
                draw.circle((x, y), width * _FINER / 2, fill=tint)
    for number, point in enumerate(_rows(points, 2)):
        x, y = _moved(point[:2], scale, image.size)
        draw.circle((x, y), 5 * _FINER, fill=_SHADOW)
        draw.circle((x, y), 3.5 * _FINER, fill=(*_chosen(colors, number), 255))
    layer = layer.resize(image.size, Image.Resampling.BOX)
    return Image.alpha_composite(image.convert("RGBA"), layer).convert("RGB")


def draw_tags(
    image: Image.Image,
    scale: tuple[float, float],
    boxes: Array,
    *,
    names: Sequence[str],
    colors: Sequence[Color],
) -> None:
    """Writes the class name of each box on its upper edge, inside the image."""
    letters = font(12)
    draw = ImageDraw.Draw(image)
    for number, box in enumerate(_rows(boxes, 4)):
        if number >= len(names) or not names[number]:
            continue
        left, top = (
            min(max(0.0, place / _FINER), limit)
            for place, limit in zip(
                _moved(np.minimum(box[:2], box[2:]), scale, image.size), image.size, strict=True
            )
        )
        width = draw.textlength(names[number], font=letters) + 8
        x = min(left, max(0, image.width - width))
        y = max(0, top - 16)
        draw.rectangle((x, y, x + width, y + 16), fill=_chosen(colors, number))
        draw.text((x + 4, y + 8), names[number], fill=(0, 0, 0), font=letters, anchor="lm")


def shortened(text: str, letters: Font, room: float) -> str:
    """Cuts the middle out of a text until it fits ``room`` pixels: both ends of a path matter."""
    if letters.getlength(text) <= room:
        return text
    length = len(text)
    while length > 2 and letters.getlength(_middle_out(text, length)) > room:
        length -= 1
    return _middle_out(text, length)


def _middle_out(text: str, length: int) -> str:
    return f"{text[: length // 2]}...{text[len(text) - (length - length // 2) :]}"


def _chosen(colors: Sequence[Color], number: int) -> Color:
    return colors[number] if number < len(colors) else color(number)


def _rows(array: Array | None, least: int) -> Array:
    """The rows that contain only finite numbers."""
    if array is None or array.ndim != 2 or array.shape[1] < least:
        return np.zeros((0, least))
    return array[np.isfinite(array).all(axis=1)]


def _moved(point: Array, scale: tuple[float, float], size: tuple[int, int]) -> tuple[float, float]:
    x, y = (
        float(np.clip(place * factor, -_FAR * side, _FAR * side)) * _FINER
        for place, factor, side in zip(point, scale, size, strict=True)
    )
    return x, y
